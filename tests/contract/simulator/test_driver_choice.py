"""Where the driver puts an instance when nobody says: every public transcript, and the map of instance ids."""

from typing import Any

import pytest

from tests.contract.simulator.conftest import MakeNode
from tests.contract.simulator.expectations import DATA


def names(transcript: dict[str, Any]) -> str:
    return f"{transcript['gpu']}-{'-'.join(map(str, transcript['profile_ids']))}"


@pytest.mark.parametrize("transcript", DATA["driver_choices"], ids=names)
def test_transcripts(make_node: MakeNode, transcript: dict[str, Any]) -> None:
    with make_node(model=transcript["gpu"]).nvml() as nvml:
        handle = nvml.nvmlDeviceGetHandleByIndex(0)
        nvml.nvmlDeviceSetMigMode(handle, 1)
        starts: list[int | None] = []
        for profile in transcript["profile_ids"]:
            try:
                instance = nvml.nvmlDeviceCreateGpuInstance(handle, profile)
            except nvml.NVMLError_InsufficientResources:
                starts.append(None)
            else:
                starts.append(nvml.nvmlGpuInstanceGetInfo(instance).placement.start)
    assert starts == transcript["starts"]


@pytest.mark.parametrize("mapping", DATA["gpu_instance_ids"])
def test_instance_ids_follow_the_cards_own_map(make_node: MakeNode, mapping: str) -> None:
    expected = {tuple(span): int(number) for number, span in DATA["gpu_instance_ids"][mapping].items()}
    node = make_node(per_gpu={0: {"gi_map": mapping}})
    seen = {}
    with node.nvml() as nvml:
        handle = nvml.nvmlDeviceGetHandleByIndex(0)
        nvml.nvmlDeviceSetMigMode(handle, 1)
        for profile in (19, 14, 15, 9, 0):
            count = nvml.c_uint(0)
            places = (nvml.c_nvmlGpuInstancePlacement_t * 8)()
            nvml.nvmlDeviceGetGpuInstancePossiblePlacements(handle, profile, places, nvml.byref(count))
            for place in places[: count.value]:
                instance = nvml.nvmlDeviceCreateGpuInstanceWithPlacement(handle, profile, nvml.byref(place))
                info = nvml.nvmlGpuInstanceGetInfo(instance)
                seen[(place.start, place.size)] = info.id
                nvml.nvmlGpuInstanceDestroy(instance)
    assert seen == {span: expected[span] for span in seen}
    assert len(seen) == 14
