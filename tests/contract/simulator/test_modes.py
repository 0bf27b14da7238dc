"""MIG mode: when a change takes effect, what it survives, and what prevents it."""

from typing import Any

import pytest

from tests.contract.simulator.conftest import MakeNode

AMPERE, HOPPER = "a100-80gb", "h100-80gb"
IN_USE, RESET_REQUIRED = 19, 16
both = pytest.mark.parametrize("model", [AMPERE, HOPPER])


@both
def test_an_idle_card_takes_the_mode_at_once(make_node: MakeNode, model: str) -> None:
    with make_node(model=model).nvml() as nvml:
        handle = nvml.nvmlDeviceGetHandleByIndex(0)
        assert nvml.nvmlDeviceGetMigMode(handle) == [0, 0]
        assert nvml.nvmlDeviceSetMigMode(handle, 1) == 0
        assert nvml.nvmlDeviceGetMigMode(handle) == [1, 1]
        assert nvml.nvmlDeviceSetMigMode(handle, 0) == 0
        assert nvml.nvmlDeviceGetMigMode(handle) == [0, 0]


@both
@pytest.mark.parametrize("kind", ["compute", "graphics", "mps", "monitor"])
def test_a_card_in_use_keeps_the_change_pending_until_a_reset(
    make_node: MakeNode, model: str, kind: str
) -> None:
    node = make_node(model=model)
    node.add_client(0, 4711, kind=kind)
    with node.nvml() as nvml:
        handle = nvml.nvmlDeviceGetHandleByIndex(0)
        assert nvml.nvmlDeviceSetMigMode(handle, 1) == IN_USE
        assert nvml.nvmlDeviceGetMigMode(handle) == [0, 1]
        node.remove_client(4711)
        assert nvml.nvmlDeviceGetMigMode(handle) == [0, 1]
        node.reset(0)
        assert nvml.nvmlDeviceGetMigMode(nvml.nvmlDeviceGetHandleByIndex(0)) == [1, 1]


def test_a_pending_change_can_be_taken_back(make_node: MakeNode) -> None:
    node = make_node(model=AMPERE, per_gpu={0: {"activation": "pending"}})
    with node.nvml() as nvml:
        handle = nvml.nvmlDeviceGetHandleByIndex(0)
        assert nvml.nvmlDeviceSetMigMode(handle, 1) == IN_USE
        assert nvml.nvmlDeviceSetMigMode(handle, 0) == 0
        assert nvml.nvmlDeviceGetMigMode(handle) == [0, 0]


@pytest.mark.parametrize("properties", [{"reset_unsupported": 1}, {"virtualization": 1}], ids=str)
def test_a_card_that_cannot_be_reset_says_so(make_node: MakeNode, properties: dict[str, object]) -> None:
    node = make_node(gpus=2, per_gpu={0: {"model": AMPERE, **properties}, 1: properties})
    with node.nvml() as nvml:
        needs_reset, immediate = (nvml.nvmlDeviceGetHandleByIndex(i) for i in range(2))
        assert nvml.nvmlDeviceSetMigMode(needs_reset, 1) == RESET_REQUIRED
        assert nvml.nvmlDeviceGetMigMode(needs_reset) == [0, 1]
        assert nvml.nvmlDeviceSetMigMode(immediate, 1) == 0


def test_a_guest_with_a_slice_of_a_card_cannot_partition_it(make_node: MakeNode) -> None:
    node = make_node(per_gpu={0: {"virtualization": 2}})
    with node.nvml() as nvml:
        handle = nvml.nvmlDeviceGetHandleByIndex(0)
        assert nvml.nvmlDeviceGetVirtualizationMode(handle) == 2
        with pytest.raises(nvml.NVMLError_NotSupported):
            nvml.nvmlDeviceSetMigMode(handle, 1)


@pytest.mark.parametrize(
    ("model", "event", "mode"),
    [
        pytest.param(AMPERE, "reboot", [1, 1], id="ampere-keeps-it-over-a-reboot"),
        pytest.param(AMPERE, "reload", [1, 1], id="ampere-keeps-it-over-a-reload"),
        pytest.param(HOPPER, "reboot", [0, 0], id="hopper-loses-it-at-a-reboot"),
        pytest.param(HOPPER, "reload", [0, 0], id="hopper-loses-it-at-a-reload"),
        pytest.param("b200-180gb", "reboot", [0, 0], id="blackwell-loses-it-at-a-reboot"),
        pytest.param(HOPPER, "reset", [1, 1], id="hopper-keeps-it-over-a-reset"),
    ],
)
def test_what_a_mode_survives(make_node: MakeNode, model: str, event: str, mode: list[int]) -> None:
    node = make_node(model=model)
    with node.nvml() as nvml:
        handle = nvml.nvmlDeviceGetHandleByIndex(0)
        nvml.nvmlDeviceSetMigMode(handle, 1)
        nvml.nvmlDeviceCreateGpuInstance(handle, 19)
        node.command(event, *([0] if event == "reset" else []))
        handle = nvml.nvmlDeviceGetHandleByIndex(0)
        assert nvml.nvmlDeviceGetMigMode(handle) == mode
        assert node.layout(0) == [], "instances survive nothing"


def test_a_reboot_changes_the_boot_id_and_a_reload_does_not(make_node: MakeNode) -> None:
    node = make_node()
    first = node.dump()["boot_id"]
    node.reload()
    assert node.dump()["boot_id"] == first
    node.reboot()
    assert node.dump()["boot_id"] != first


def test_a_reboot_forgets_what_only_the_driver_knew(make_node: MakeNode) -> None:
    node = make_node(
        per_gpu={0: {"compute_mode": 3, "timeslice": 2, "persistence_mode": 1, "ecc_pending": 0}}
    )
    node.add_client(0, 1)
    node.reboot()
    gpu = node.gpu(0)
    assert [gpu[k] for k in ("compute_mode", "timeslice", "persistence_mode", "ecc_current")] == [0, 0, 0, 0]
    assert node.dump()["clients"] == []


def test_the_mode_cannot_be_left_while_instances_live(nvml: Any, gpu: Any) -> None:
    instance = nvml.nvmlDeviceCreateGpuInstance(gpu, 19)
    with pytest.raises(nvml.NVMLError_InUse):
        nvml.nvmlDeviceSetMigMode(gpu, 0)
    assert nvml.nvmlDeviceGetMigMode(gpu) == [1, 1]
    nvml.nvmlGpuInstanceDestroy(instance)
    assert nvml.nvmlDeviceSetMigMode(gpu, 0) == 0


def test_with_mig_off_nothing_can_be_created_or_listed(node: Any, nvml: Any) -> None:
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    count = nvml.c_uint(0)
    with pytest.raises(nvml.NVMLError_NotSupported):
        nvml.nvmlDeviceCreateGpuInstance(handle, 19)
    with pytest.raises(nvml.NVMLError_NotSupported):
        nvml.nvmlDeviceGetGpuInstanceRemainingCapacity(handle, 19)
    with pytest.raises(nvml.NVMLError_NotSupported):
        nvml.nvmlDeviceGetGpuInstances(handle, 19, (nvml.c_nvmlGpuInstance_t * 7)(), nvml.byref(count))
    assert nvml.nvmlDeviceGetMaxMigDeviceCount(handle) == 0


def test_the_first_instance_needs_an_idle_card(node: Any, nvml: Any, gpu: Any) -> None:
    node.add_client(0, 4711)
    with pytest.raises(nvml.NVMLError_InUse):
        nvml.nvmlDeviceCreateGpuInstance(gpu, 19)
    node.remove_client(4711)
    first = nvml.nvmlDeviceCreateGpuInstance(gpu, 19)
    node.add_client(0, 4711, gi=nvml.nvmlGpuInstanceGetInfo(first).id)
    nvml.nvmlDeviceCreateGpuInstance(gpu, 19)


@pytest.mark.parametrize("mode", [2, 3])
def test_compute_modes_are_for_whole_cards(nvml: Any, mode: int) -> None:
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    nvml.nvmlDeviceSetComputeMode(handle, mode)
    assert nvml.nvmlDeviceGetComputeMode(handle) == mode
    nvml.nvmlDeviceSetMigMode(handle, 1)
    with pytest.raises(nvml.NVMLError_NotSupported):
        nvml.nvmlDeviceSetComputeMode(handle, 3)


def test_ecc_mode_waits_for_a_reset(node: Any, nvml: Any) -> None:
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    nvml.nvmlDeviceSetEccMode(handle, 0)
    assert nvml.nvmlDeviceGetEccMode(handle) == [1, 0]
    node.reset(0)
    assert nvml.nvmlDeviceGetEccMode(nvml.nvmlDeviceGetHandleByIndex(0)) == [0, 0]


@pytest.mark.parametrize("privilege", ["allow", "deny"])
def test_changes_need_privilege(make_node: MakeNode, privilege: str) -> None:
    node = make_node(per_gpu={0: {"mig_current": 1, "mig_pending": 1}}, properties={"privilege": privilege})
    with node.nvml() as nvml:
        handle = nvml.nvmlDeviceGetHandleByIndex(0)
        changes = [
            lambda: nvml.nvmlDeviceSetMigMode(handle, 1),
            lambda: nvml.nvmlDeviceCreateGpuInstance(handle, 19),
            lambda: nvml.nvmlDeviceSetPersistenceMode(handle, 1),
        ]
        for change in changes:
            if privilege == "allow":
                change()
            else:
                with pytest.raises(nvml.NVMLError_NoPermission):
                    change()
    assert len(node.layout(0)) == (privilege == "allow")
