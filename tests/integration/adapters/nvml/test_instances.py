"""MIG modes and instances through NVML: made where they were asked for, taken away where that failed, never those of others."""

import ctypes

import pynvml
import pytest

from gpupolicy.adapters.nvml.errors import Fault, NvmlError
from gpupolicy.core.inventory import Placement
from tests.integration.adapters.nvml.nvml_node import Node, profile_id


async def test_instances_come_and_go_where_they_were_asked_for(node: Node) -> None:
    node.simulator.create()
    nvml, card = await node.enabled()
    made = await nvml.create_instance(card.uuid, profile_id(card, "3g.40gb"), Placement(4, 4))
    other = await nvml.create_instance(card.uuid, profile_id(card, "1g.10gb"), Placement(1, 1))
    seen = await nvml.read(card.uuid)
    assert seen.instances == (other, made)
    assert made.uuid.startswith("MIG-")
    assert made.compute_instance_id == 0
    assert node.simulator.layout(0) == [("1g.10gb", 1), ("3g.40gb", 4)]
    assert await nvml.destroy_instance(card.uuid, made.profile_id, made.placement, uuid=made.uuid)
    assert not await nvml.destroy_instance(card.uuid, made.profile_id, made.placement)
    assert node.simulator.layout(0) == [("1g.10gb", 1)]


async def test_of_two_profiles_that_fill_an_instance_the_one_with_all_multiprocessors_is_taken(
    node: Node,
) -> None:
    """Since Hopper one slice with twice the memory has two; the ordinary one leaves multiprocessors idle."""
    node.simulator.create()
    nvml, card = await node.enabled()
    await nvml.create_instance(card.uuid, profile_id(card, "1g.20gb"), Placement(2, 2))
    (made,) = node.simulator.gpu(0)["gpu_instances"]
    assert [compute["profile_id"] for compute in made["compute_instances"]] == [7]
    assert [i.profile for i in (await nvml.read(card.uuid)).instances] == ["1g.20gb"]


async def test_processes_are_told_by_instance_and_by_card(node: Node) -> None:
    node.simulator.create(gpus=2)
    nvml, card = await node.enabled()
    made = await nvml.create_instance(card.uuid, profile_id(card, "2g.20gb"), Placement(0, 2))
    node.simulator.add_client(0, 4711, gi=made.gpu_instance_id, ci=0, name="python")
    node.simulator.add_client(1, 4712, kind="graphics", name="Xorg")
    first, second = (await nvml.observe()).gpus
    assert [p.pid for p in first.instances[0].processes] == [4711]
    assert first.processes == ()
    assert [p.pid for p in second.processes] == [4712]
    assert second.in_use


async def test_an_instance_in_use_is_not_destroyed(node: Node) -> None:
    node.simulator.create()
    nvml, card = await node.enabled()
    made = await nvml.create_instance(card.uuid, profile_id(card, "1g.10gb"), Placement(0, 1))
    node.simulator.add_client(0, 4711, gi=made.gpu_instance_id, ci=0)
    with pytest.raises(NvmlError) as failure:
        await nvml.destroy_instance(card.uuid, made.profile_id, made.placement)
    assert failure.value.fault is Fault.IN_USE
    assert node.simulator.layout(0) == [("1g.10gb", 0)]


async def test_an_instance_that_is_not_the_expected_one_is_not_destroyed(node: Node) -> None:
    node.simulator.create()
    nvml, card = await node.enabled()
    made = await nvml.create_instance(card.uuid, profile_id(card, "1g.10gb"), Placement(0, 1))
    with pytest.raises(NvmlError) as failure:
        await nvml.destroy_instance(card.uuid, made.profile_id, made.placement, uuid="MIG-another")
    assert failure.value.fault is Fault.CHANGED
    assert node.simulator.layout(0) == [("1g.10gb", 0)]


async def test_a_place_where_something_stands_is_not_taken_for_ours(node: Node) -> None:
    node.simulator.create()
    nvml, card = await node.enabled()
    await nvml.create_instance(card.uuid, profile_id(card, "1g.10gb"), Placement(0, 1))
    with pytest.raises(NvmlError) as failure:
        await nvml.create_instance(card.uuid, profile_id(card, "1g.10gb"), Placement(0, 1))
    assert failure.value.fault is Fault.CHANGED
    with pytest.raises(NvmlError) as failure:
        await nvml.create_instance(card.uuid, profile_id(card, "3g.40gb"), Placement(0, 4))
    assert failure.value.fault is Fault.NO_ROOM


@pytest.mark.parametrize(
    ("mode", "fault"),
    [("before", Fault.FAILED), ("after", Fault.FAILED)],
    ids=["no effect", "effect, then error"],
)
@pytest.mark.parametrize(
    "symbol",
    [
        "nvmlGpuInstanceGetInfo",
        "nvmlGpuInstanceCreateComputeInstance",
        "nvmlComputeInstanceGetInfo",
        "nvmlGpuInstanceGetComputeInstances",
    ],
)
async def test_what_a_failed_creation_made_is_taken_away(
    node: Node, symbol: str, mode: str, fault: Fault
) -> None:
    node.simulator.create()
    nvml, card = await node.enabled()
    node.simulator.add_fault(symbol, mode=mode)
    with pytest.raises(NvmlError) as failure:
        await nvml.create_instance(card.uuid, profile_id(card, "2g.20gb"), Placement(2, 2))
    assert failure.value.fault is fault
    assert node.simulator.layout(0) == []


async def test_what_the_driver_makes_elsewhere_is_taken_away(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing in the ledger would prove that it is ours, so it would be in our way for ever."""
    node.simulator.create()
    nvml, card = await node.enabled()
    create = pynvml.nvmlDeviceCreateGpuInstanceWithPlacement

    def elsewhere(handle: object, profile: int, _: object) -> object:
        place = pynvml.c_nvmlGpuInstancePlacement_t(start=4, size=2)
        return create(handle, profile, ctypes.byref(place))

    monkeypatch.setattr(pynvml, "nvmlDeviceCreateGpuInstanceWithPlacement", elsewhere)
    with pytest.raises(NvmlError, match=r"made 2g\.20gb at 4:2 instead of 2g\.20gb at 2:2") as failure:
        await nvml.create_instance(card.uuid, profile_id(card, "2g.20gb"), Placement(2, 2))
    assert failure.value.fault is Fault.FAILED, "CHANGED would say that somebody else has made it"
    assert node.simulator.layout(0) == []


async def test_an_instance_that_goes_while_it_is_read_says_nothing_of_the_others(node: Node) -> None:
    """The handle is invalid then for every question, also for the profiles that it could have."""
    node.simulator.create()
    nvml, card = await node.enabled()
    one = await nvml.create_instance(card.uuid, profile_id(card, "1g.10gb"), Placement(0, 1))
    # NVML_ERROR_INVALID_ARGUMENT for each of the nine compute profiles.
    node.simulator.add_fault("nvmlGpuInstanceGetComputeInstanceProfileInfoV", code=2, count=9)
    other = node.nvml()
    (seen,) = (await other.observe()).gpus
    assert [i.uuid for i in seen.instances] == [""], "all nine were hit"
    node.simulator.clear_faults()
    assert (await other.read(card.uuid)).instances == (one,)


async def test_a_gpu_instance_without_compute_instance_is_seen(node: Node) -> None:
    """A creation that the driver does not even let us take back must not become an invisible hole in the card."""
    node.simulator.create()
    nvml, card = await node.enabled()
    node.simulator.add_fault("nvmlGpuInstanceCreateComputeInstance")
    node.simulator.add_fault("nvmlGpuInstanceDestroy")
    with pytest.raises(NvmlError):
        await nvml.create_instance(card.uuid, profile_id(card, "2g.20gb"), Placement(2, 2))
    (left,) = (await nvml.read(card.uuid)).instances
    assert (left.placement, left.compute_instance_id, left.uuid) == (Placement(2, 2), None, "")
    assert await nvml.destroy_instance(card.uuid, left.profile_id, left.placement)


async def test_a_mode_that_waits_for_a_reset_is_pending(node: Node) -> None:
    node.simulator.create(model="a100-40gb", per_gpu={0: {"activation": "pending"}})
    nvml = node.nvml()
    uuid = (await nvml.observe()).gpus[0].uuid
    mode = await nvml.set_mig_mode(uuid, enabled=True)
    assert (mode.enabled, mode.pending_enabled) == (False, True)
    card = await nvml.read(uuid)
    assert (card.mig.enabled, card.mig.pending_enabled) == (False, True)
    node.simulator.reset(0)
    (card,) = (await nvml.observe()).gpus
    assert (card.mig.enabled, card.mig.pending_enabled) == (True, None)


async def test_an_activation_that_fails_is_an_error_or_pending_but_never_success(node: Node) -> None:
    node.simulator.create()
    nvml = node.nvml()
    uuid = (await nvml.observe()).gpus[0].uuid
    node.simulator.add_fault("nvmlDeviceSetMigMode", mode="activation", code=19)
    try:
        mode = await nvml.set_mig_mode(uuid, enabled=True)
    except NvmlError as error:
        assert error.fault is Fault.IN_USE  # noqa: PT017 - both answers are right, success is not.
    else:
        assert mode.pending_enabled
        assert not mode.enabled
