"""Every card model tells what the documentation and public transcripts tell, through unchanged pynvml."""

import math
from typing import Any

import pytest

from tests.contract.simulator.conftest import MakeNode
from tests.contract.simulator.expectations import MODELS, Profile, profiles_of
from tests.simulator import Simulator

every_model = pytest.mark.parametrize("model", MODELS)


def read_profile(nvml: Any, handle: Any, enum: int) -> tuple[Any, ...] | None:
    try:
        info = nvml.nvmlDeviceGetGpuInstanceProfileInfo(handle, enum)
    except nvml.NVMLError_NotSupported:
        return None
    count = nvml.c_uint(0)
    nvml.nvmlDeviceGetGpuInstancePossiblePlacements(handle, info.id, None, nvml.byref(count))
    places = (nvml.c_nvmlGpuInstancePlacement_t * count.value)()
    nvml.nvmlDeviceGetGpuInstancePossiblePlacements(handle, info.id, places, nvml.byref(count))
    assert len({place.size for place in places}) == 1
    return (
        info.id,
        enum,
        info.name.removeprefix("MIG "),
        info.memorySizeMB,
        info.multiprocessorCount,
        info.copyEngineCount,
        info.decoderCount,
        info.encoderCount,
        info.jpegCount,
        info.ofaCount,
        info.instanceCount,
        places[0].size,
        tuple(place.start for place in places),
    )


def as_read(profile: Profile) -> tuple[Any, ...]:
    return tuple(getattr(profile, field) for field in Profile.__slots__ if field != "compute")


@every_model
def test_profiles_and_placements_while_mig_is_off(make_node: MakeNode, model: str) -> None:
    with make_node(model=model).nvml() as nvml:
        handle = nvml.nvmlDeviceGetHandleByIndex(0)
        found = [read_profile(nvml, handle, enum) for enum in range(nvml.NVML_GPU_INSTANCE_PROFILE_COUNT)]
        with pytest.raises(nvml.NVMLError_InvalidArgument):
            nvml.nvmlDeviceGetGpuInstanceProfileInfo(handle, nvml.NVML_GPU_INSTANCE_PROFILE_COUNT)
    assert {row[0]: row for row in found if row} == {p.id: as_read(p) for p in profiles_of(model)}


@every_model
def test_the_card(make_node: MakeNode, model: str) -> None:
    expected = MODELS[model]
    with make_node(model=model).nvml() as nvml:
        handle = nvml.nvmlDeviceGetHandleByIndex(0)
        assert nvml.nvmlDeviceGetName(handle) == expected["name"]
        assert nvml.nvmlDeviceGetArchitecture(handle) == expected["architecture"]
        assert list(nvml.nvmlDeviceGetCudaComputeCapability(handle)) == expected["compute_capability"]
        assert nvml.nvmlDeviceGetMemoryInfo(handle).total == expected["memory_mib"] << 20


@every_model
def test_compute_profiles(make_node: MakeNode, model: str) -> None:
    with make_node(model=model).nvml() as nvml:
        handle = nvml.nvmlDeviceGetHandleByIndex(0)
        nvml.nvmlDeviceSetMigMode(handle, 1)
        for profile in profiles_of(model):
            instance = nvml.nvmlDeviceCreateGpuInstance(handle, profile.id)
            found = []
            for enum in range(nvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
                try:
                    info = nvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(instance, enum, 0)
                except nvml.NVMLError_NotSupported:
                    continue
                count = nvml.c_uint(0)
                places = (nvml.c_nvmlComputeInstancePlacement_t * 8)()
                nvml.nvmlGpuInstanceGetComputeInstancePossiblePlacements(
                    instance, info.id, places, nvml.byref(count)
                )
                found.append(
                    (
                        info.id,
                        enum,
                        info.sliceCount,
                        info.instanceCount,
                        info.multiprocessorCount,
                        tuple(place.start for place in places[: count.value]),
                    )
                )
            expected = [tuple(getattr(c, field) for field in c.__slots__) for c in profile.compute]
            assert found == expected, profile.name
            nvml.nvmlGpuInstanceDestroy(instance)


def client_name(slices: int, memory_mib: int, total_bytes: int) -> str:
    """Return the name that Go clients compute, who never ask for one. Halves are rounded up."""
    eighths = math.ceil(8 * (memory_mib << 20) / total_bytes)
    return f"{slices}g.{math.floor(eighths * math.ceil(total_bytes / 2**30) / 8 + 0.5)}gb"


@every_model
def test_clients_compute_the_same_names_from_sizes(make_node: MakeNode, model: str) -> None:
    with make_node(model=model).nvml() as nvml:
        total = nvml.nvmlDeviceGetMemoryInfo(nvml.nvmlDeviceGetHandleByIndex(0)).total
    computed = {p.name: client_name(p.slices, p.memory_mib, total) for p in profiles_of(model)}
    assert computed == {name: name.split("+")[0].removesuffix("-me") for name in computed}


@pytest.mark.parametrize("model", ["t4", "l40s"])
def test_cards_without_mig(make_node: MakeNode, model: str) -> None:
    with make_node(model=model).nvml() as nvml:
        handle = nvml.nvmlDeviceGetHandleByIndex(0)
        for call in (
            lambda: nvml.nvmlDeviceGetMigMode(handle),
            lambda: nvml.nvmlDeviceSetMigMode(handle, 1),
            lambda: nvml.nvmlDeviceGetGpuInstanceProfileInfo(handle, 0),
        ):
            with pytest.raises(nvml.NVMLError_NotSupported):
                call()
        assert nvml.nvmlDeviceGetMaxMigDeviceCount(handle) == 0


def test_identifiers_follow_from_the_seed_and_differ_over_nodes(make_node: MakeNode) -> None:
    def identity(node: Simulator) -> list[tuple[str, str]]:
        return [(gpu["uuid"], gpu["serial"]) for gpu in node.dump()["gpus"]]

    first, again, other = (
        identity(make_node(name, gpus=16, seed=seed)) for name, seed in [("a", "x"), ("b", "x"), ("c", "y")]
    )
    assert first == again
    everything = [value for pair in first + other for value in pair]
    assert len(set(everything)) == len(everything)
