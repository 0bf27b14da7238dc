"""GPU instances, compute instances and the MIG devices that they are."""

from typing import Any

import pytest

from tests.contract.simulator.conftest import MakeNode
from tests.simulator import Simulator


def place(nvml: Any, start: int, size: int) -> Any:
    return nvml.byref(nvml.c_nvmlGpuInstancePlacement_t(start, size))


def mig_uuids(nvml: Any, gpu: Any) -> dict[int, str]:
    """Return the MIG devices that a walk over all indices finds."""
    found = {}
    for index in range(nvml.nvmlDeviceGetMaxMigDeviceCount(gpu)):
        try:
            found[index] = nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, index))
        except nvml.NVMLError_NotFound:
            continue
    return found


def cut(nvml: Any, gpu: Any, profile: int, span: tuple[int, int], compute: int) -> tuple[Any, Any, str]:
    """Create a GPU instance and the compute instance that fills it; returns both and the MIG UUID."""
    instance = nvml.nvmlDeviceCreateGpuInstanceWithPlacement(gpu, profile, place(nvml, *span))
    made = nvml.nvmlGpuInstanceCreateComputeInstance(instance, compute)
    return instance, made, nvml.nvmlDeviceGetUUID(nvml.nvmlComputeInstanceGetInfo(made).device)


@pytest.mark.parametrize(
    ("profile", "span", "error"),
    [
        pytest.param(9, (0, 4), "InsufficientResources", id="taken"),
        pytest.param(0, (0, 8), "InsufficientResources", id="overlapping"),
        pytest.param(9, (2, 4), "InvalidArgument", id="no-legal-start"),
        pytest.param(9, (4, 2), "InvalidArgument", id="wrong-size"),
        pytest.param(9, (2**32 - 1, 4), "InvalidArgument", id="not-the-drivers-choice-in-disguise"),
        pytest.param(77, (0, 4), "InvalidArgument", id="no-such-profile"),
    ],
)
def test_refused_placements(nvml: Any, gpu: Any, profile: int, span: tuple[int, int], error: str) -> None:
    nvml.nvmlDeviceCreateGpuInstanceWithPlacement(gpu, 9, place(nvml, 0, 4))
    with pytest.raises(getattr(nvml, f"NVMLError_{error}")):
        nvml.nvmlDeviceCreateGpuInstanceWithPlacement(gpu, profile, place(nvml, *span))


def test_one_instance_with_media_extensions(nvml: Any, gpu: Any) -> None:
    assert nvml.nvmlDeviceGetGpuInstanceRemainingCapacity(gpu, 20) == 1
    nvml.nvmlDeviceCreateGpuInstance(gpu, 20)
    assert nvml.nvmlDeviceGetGpuInstanceRemainingCapacity(gpu, 20) == 0
    with pytest.raises(nvml.NVMLError_InsufficientResources):
        nvml.nvmlDeviceCreateGpuInstance(gpu, 20)
    assert nvml.nvmlDeviceGetGpuInstanceRemainingCapacity(gpu, 19) == 6


def test_an_instance_with_all_media_engines_leaves_room_for_those_without(make_node: MakeNode) -> None:
    with make_node(model="rtx-pro-6000-96gb").nvml() as nvml:
        gpu = nvml.nvmlDeviceGetHandleByIndex(0)
        nvml.nvmlDeviceSetMigMode(gpu, 1)
        nvml.nvmlDeviceCreateGpuInstance(gpu, 65)
        for profile in (14, 21, 47, 5):
            with pytest.raises(nvml.NVMLError_InsufficientResources):
                nvml.nvmlDeviceCreateGpuInstance(gpu, profile)
        nvml.nvmlDeviceCreateGpuInstance(gpu, 67)


def test_a_second_compute_instance_in_a_full_gpu_instance_is_refused(nvml: Any, gpu: Any) -> None:
    """Tools probe for this before they make another GPU instance."""
    instance, _, _ = cut(nvml, gpu, 9, (0, 4), 2)
    for profile in (2, 0):
        assert nvml.nvmlGpuInstanceGetComputeInstanceRemainingCapacity(instance, profile) == 0
        with pytest.raises(nvml.NVMLError_InsufficientResources):
            nvml.nvmlGpuInstanceCreateComputeInstance(instance, profile)
    with pytest.raises(nvml.NVMLError_InvalidArgument):
        nvml.nvmlGpuInstanceCreateComputeInstance(instance, 4)


def test_partial_compute_instances_share_memory_and_split_processors(nvml: Any, gpu: Any) -> None:
    instance = nvml.nvmlDeviceCreateGpuInstance(gpu, 9)
    small = nvml.nvmlGpuInstanceCreateComputeInstance(instance, 0)
    spot = nvml.c_nvmlComputeInstancePlacement_t(1, 1)
    nvml.nvmlGpuInstanceCreateComputeInstanceWithPlacement(instance, 0, nvml.byref(spot))
    info = nvml.nvmlComputeInstanceGetInfo(small)
    attributes = nvml.nvmlDeviceGetAttributes_v2(info.device)
    assert (attributes.gpuInstanceSliceCount, attributes.computeInstanceSliceCount) == (3, 1)
    assert (attributes.multiprocessorCount, attributes.memorySizeMB) == (16, 40448)
    assert nvml.nvmlDeviceGetMemoryInfo(info.device).total == 40448 << 20
    assert nvml.nvmlDeviceGetName(info.device) == "NVIDIA H100 80GB HBM3 MIG 1c.3g.40gb"
    with pytest.raises(nvml.NVMLError_InsufficientResources):
        nvml.nvmlGpuInstanceCreateComputeInstance(instance, 1)


def test_a_mig_device_answers_for_itself(nvml: Any, gpu: Any) -> None:
    instance, made, uuid = cut(nvml, gpu, 14, (2, 2), 1)
    info, compute = nvml.nvmlGpuInstanceGetInfo(instance), nvml.nvmlComputeInstanceGetInfo(made)
    device = nvml.nvmlDeviceGetHandleByUUID(uuid)
    assert bool(nvml.nvmlDeviceIsMigDeviceHandle(device))
    assert not nvml.nvmlDeviceIsMigDeviceHandle(gpu)
    assert nvml.nvmlDeviceGetGpuInstanceId(device) == info.id
    assert nvml.nvmlDeviceGetComputeInstanceId(device) == compute.id == 0
    assert nvml.nvmlDeviceGetIndex(device) == 0
    parent = nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(device)
    assert nvml.nvmlDeviceGetUUID(parent) == nvml.nvmlDeviceGetUUID(gpu)
    assert nvml.nvmlDeviceGetCudaComputeCapability(device) == (9, 0)
    with pytest.raises(nvml.NVMLError_InvalidArgument):
        nvml.nvmlDeviceGetMinorNumber(device)
    with pytest.raises(nvml.NVMLError_InvalidArgument):
        nvml.nvmlDeviceGetGpuInstanceId(gpu)
    with pytest.raises(nvml.NVMLError_NotSupported):
        nvml.nvmlDeviceGetAttributes_v2(gpu)


def test_a_mig_device_has_its_share_of_the_window_to_memory(nvml: Any, gpu: Any) -> None:
    whole = nvml.nvmlDeviceGetBAR1MemoryInfo(gpu).bar1Total
    for profile, span, full in [(9, (4, 4), 2), (15, (0, 2), 7)]:
        _, made, _ = cut(nvml, gpu, profile, span, full)
        share = nvml.nvmlDeviceGetBAR1MemoryInfo(nvml.nvmlComputeInstanceGetInfo(made).device)
        assert (share.bar1Total, share.bar1Used) == (whole * span[1] // 8, 0)
        assert share.bar1Free == share.bar1Total


@pytest.mark.parametrize(
    ("mode", "kept"),
    [pytest.param("dense", {0, 1}, id="renumbered"), pytest.param("sticky", {0, 2}, id="with-a-gap")],
)
def test_mig_indices_after_a_destruction(make_node: MakeNode, mode: str, kept: set[int]) -> None:
    with make_node(per_gpu={0: {"index_mode": mode}}).nvml() as nvml:
        gpu = nvml.nvmlDeviceGetHandleByIndex(0)
        nvml.nvmlDeviceSetMigMode(gpu, 1)
        made = [cut(nvml, gpu, 19, (start, 1), 0) for start in range(3)]
        assert list(mig_uuids(nvml, gpu)) == [0, 1, 2]
        nvml.nvmlComputeInstanceDestroy(made[1][1])
        assert set(mig_uuids(nvml, gpu)) == kept
        assert set(mig_uuids(nvml, gpu).values()) == {made[0][2], made[2][2]}


@pytest.mark.parametrize(
    ("mode", "same"),
    [
        pytest.param("by-place", True, id="reused-by-another-profile"),
        pytest.param("fresh", False, id="never-again"),
    ],
)
def test_mig_uuids_over_time(make_node: MakeNode, mode: str, same: bool) -> None:
    with make_node(per_gpu={0: {"uuid_mode": mode}}).nvml() as nvml:
        gpu = nvml.nvmlDeviceGetHandleByIndex(0)
        nvml.nvmlDeviceSetMigMode(gpu, 1)
        instance, made, first = cut(nvml, gpu, 14, (0, 2), 1)
        nvml.nvmlComputeInstanceDestroy(made)
        nvml.nvmlGpuInstanceDestroy(instance)
        _, _, second = cut(nvml, gpu, 15, (0, 2), 7)
        assert (first == second) is same
        assert first.startswith("MIG-")


@pytest.mark.parametrize("whole_instance", [True, False])
def test_destruction_waits_for_clients(node: Simulator, nvml: Any, gpu: Any, whole_instance: bool) -> None:
    instance, made, _ = cut(nvml, gpu, 9, (0, 4), 2)
    identifier = nvml.nvmlGpuInstanceGetInfo(instance).id
    with pytest.raises(nvml.NVMLError_InUse):
        nvml.nvmlGpuInstanceDestroy(instance)
    node.add_client(0, 4711, gi=identifier, ci=None if whole_instance else 0, kind="monitor")
    if whole_instance:
        # A monitor that holds the GPU instance lets its compute instance go: a half-cleared card.
        nvml.nvmlComputeInstanceDestroy(made)
    else:
        with pytest.raises(nvml.NVMLError_InUse):
            nvml.nvmlComputeInstanceDestroy(made)
    with pytest.raises(nvml.NVMLError_InUse):
        nvml.nvmlGpuInstanceDestroy(instance)
    node.remove_client(4711)
    if not whole_instance:
        nvml.nvmlComputeInstanceDestroy(made)
    nvml.nvmlGpuInstanceDestroy(instance)
    assert node.layout(0) == []


def test_stale_handles_are_refused_and_crash_nothing(node: Simulator, nvml: Any, gpu: Any) -> None:
    instance, made, uuid = cut(nvml, gpu, 9, (0, 4), 2)
    device = nvml.nvmlDeviceGetHandleByUUID(uuid)
    nvml.nvmlComputeInstanceDestroy(made)
    nvml.nvmlGpuInstanceDestroy(instance)
    again, made_again, _ = cut(nvml, gpu, 9, (0, 4), 2)
    for stale in (
        lambda: nvml.nvmlGpuInstanceGetInfo(instance),
        lambda: nvml.nvmlGpuInstanceDestroy(instance),
        lambda: nvml.nvmlComputeInstanceDestroy(made),
        lambda: nvml.nvmlDeviceGetUUID(device),
        lambda: nvml.nvmlDeviceGetUUID(nvml.c_nvmlDevice_t()),
        lambda: nvml.nvmlDeviceGetUUID(instance),
        lambda: nvml.nvmlGpuInstanceGetInfo(gpu),
    ):
        with pytest.raises(nvml.NVMLError_InvalidArgument):
            stale()
    nvml.nvmlComputeInstanceDestroy(made_again)
    nvml.nvmlGpuInstanceDestroy(again)
    node.reset(0)
    with pytest.raises(nvml.NVMLError_InvalidArgument):
        nvml.nvmlDeviceGetMigMode(gpu)


def test_lists_never_exceed_the_instance_count_of_the_profile(nvml: Any, gpu: Any) -> None:
    """Go clients give a buffer of exactly that size."""
    for _ in range(7):
        nvml.nvmlDeviceCreateGpuInstance(gpu, 19)
    with pytest.raises(nvml.NVMLError_InsufficientResources):
        nvml.nvmlDeviceCreateGpuInstance(gpu, 19)
    count = nvml.c_uint(0)
    buffer = (nvml.c_nvmlGpuInstance_t * 8)()
    nvml.nvmlDeviceGetGpuInstances(gpu, 19, buffer, nvml.byref(count))
    assert count.value == 7
    assert not buffer[7]


def test_processes_are_listed_with_their_instances(node: Simulator, nvml: Any, gpu: Any) -> None:
    instance, _, uuid = cut(nvml, gpu, 9, (0, 4), 2)
    identifier = nvml.nvmlGpuInstanceGetInfo(instance).id
    node.add_client(0, 4711, gi=identifier, ci=0, memory_mib=1024, name="trainer")
    node.add_client(0, 4712, gi=identifier, ci=0, kind="graphics")
    device = nvml.nvmlDeviceGetHandleByUUID(uuid)
    for handle in (gpu, device):
        (process,) = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
        assert (process.pid, process.usedGpuMemory) == (4711, 1024 << 20)
        assert (process.gpuInstanceId, process.computeInstanceId) == (identifier, 0)
    assert [p.pid for p in nvml.nvmlDeviceGetGraphicsRunningProcesses(device)] == [4712]
    assert nvml.nvmlDeviceGetMPSComputeRunningProcesses(device) == []
    assert nvml.nvmlSystemGetProcessName(4711) == "trainer"
    assert nvml.nvmlDeviceGetMemoryInfo(device).used == 1024 << 20
