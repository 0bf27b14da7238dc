"""The loop on simulated cards: layouts come about, what is in use or foreign stays, nothing is shown that does not stand."""

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import pytest

from gpupolicy.agent.ports import Surroundings
from gpupolicy.api import names
from gpupolicy.core.inventory import Placement
from tests.integration.agent.agent_node import INFER, INFER_PLACED, SEVEN, AgentNode, held, prepare

pytestmark = pytest.mark.usefixtures("quick_listener")


async def test_nothing_is_touched_or_published_without_a_policy(node: AgentNode) -> None:
    await node.until(lambda: node.wish.status is not None)
    assert node.simulator.writes() == 0
    assert node.slices.shown == frozenset()
    assert node.card(0).reason == "Idle"


async def test_whole_cards_need_no_write(node: AgentNode) -> None:
    node.want_all()
    await node.until_applied(0, 1)
    assert node.simulator.writes() == 0
    assert len(node.slices.shown) == 2


async def test_a_layout_comes_about_and_goes_again(node: AgentNode) -> None:
    node.want_all(*INFER)
    await node.until_applied(0, 1)
    assert node.layout(0) == node.layout(1) == INFER_PLACED
    assert len(node.slices.shown) == 8
    node.want_all(revision="r2")
    await node.until_applied(0, 1, revision="r2")
    assert node.layout(0) == []
    assert not node.simulator.gpu(0)["mig_current"]
    assert len(node.slices.shown) == 2


async def test_what_stands_already_is_not_written_again(node: AgentNode) -> None:
    node.want_all(*INFER)
    await node.until_applied(0, 1)
    writes = node.simulator.writes()
    node.want_all(*INFER, revision="r2")
    await node.until_applied(0, 1, revision="r2")
    await node.restart()
    await node.until(lambda: len(node.slices.shown) == 8)
    assert node.simulator.writes() == writes


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        pytest.param({"symbol": "nvmlDeviceGetMigMode", "code": 3}, "MigUnsupported", id="denies-its-mig"),
        pytest.param(
            {"symbol": "nvmlDeviceGetGpuInstanceProfileInfoV", "code": 999, "skip": 2},
            "GpuUnhealthy",
            id="does-not-tell-a-profile",
        ),
        pytest.param(
            {"symbol": "nvmlDeviceGetGpuInstancePossiblePlacements", "code": 999, "skip": 3},
            "GpuUnhealthy",
            id="does-not-tell-the-places-of-a-profile",
        ),
    ],
)
async def test_what_is_ours_stays_ours_whatever_the_card_says_at_the_first_look(
    node: AgentNode, fault: dict[str, Any], reason: str
) -> None:
    """A driver that answers wrongly for a moment, right after the start of the agent."""
    node.want(0, *INFER)
    await node.until_applied(0)
    writes = node.simulator.writes()
    await node.stop()
    node.simulator.add_fault(**fault, gpu=0, count=-1)
    await node.start()
    await node.until(lambda: node.wish.status is not None and node.card(0).reason == reason)
    node.simulator.clear_faults()
    await node.until_applied(0)
    assert node.simulator.writes() == writes
    assert [i.ownership for i in node.card(0).instances] == ["Owned"] * 4


async def test_only_what_differs_is_written(node: AgentNode) -> None:
    node.want(0, *INFER)
    await node.until_applied(0)
    node.simulator.reset_counters()
    node.want(0, ("3g.40gb", 1), ("1g.10gb", 4), revision="r2")
    await node.until_applied(0, revision="r2")
    journal = [e["symbol"] for e in node.simulator.journal()]
    assert journal.count("nvmlGpuInstanceDestroy") == 1
    assert journal.count("nvmlDeviceCreateGpuInstanceWithPlacement") == 2
    assert "nvmlDeviceSetMigMode" not in journal


async def test_a_device_is_withdrawn_before_it_is_destroyed(node: AgentNode) -> None:
    node.want(0, *INFER)
    await node.until_applied(0)
    node.slices.open = False
    node.want(0, *SEVEN, revision="r2")
    await node.until(lambda: len(node.slices.history[-1]) == 2)
    writes = node.simulator.writes()
    await node.until(lambda: node.card(0).reason == "WaitingForSlices")
    assert node.simulator.writes() == writes, "the API server still shows the devices"
    node.slices.open = True
    await node.until_applied(0, revision="r2")
    assert [len(names) for names in node.slices.history[-3:]] == [4, 2, 7], (
        "no half-made layout was published"
    )


async def test_an_allocation_that_was_on_its_way_is_found_and_pinned(node: AgentNode) -> None:
    node.want(0, *INFER)
    await node.until_applied(0)
    name = held(node, 0, "2g.20gb")
    node.claims.allocate("late", name, "pod-1")
    node.want(0, *SEVEN, revision="r2")
    await node.until(lambda: node.card(0).reason == "WaitingForClaims")
    assert "2g.20gb@0" in node.layout(0)
    assert "ns/pod-1" in (node.card(0).message or "")
    assert [t.key for t in node.slices.devices[name].taints] == [names.RETIRING_TAINT]
    del node.claims.objects["late"]
    await node.until_applied(0, revision="r2")
    assert len(node.layout(0)) == 7


async def test_what_a_claim_names_is_made_where_there_is_a_choice(node: AgentNode) -> None:
    """The claim came late, or is of before a reboot: the pass and the round have to choose the same arrangement."""
    node.want(0, ("3g.40gb", 2))
    await node.until_applied(0)
    one = held(node, 0, "3g.40gb")
    node.claims.allocate("late", f"{one.rpartition('-')[0].removesuffix('-9')}-14-4", "pod-1")
    node.want(0, ("3g.40gb", 1), ("2g.20gb", 1), revision="r2")
    await node.until_applied(0, revision="r2")
    assert node.layout(0) == ["3g.40gb@0", "2g.20gb@4"]


async def test_a_round_destroys_nothing_that_it_did_not_withdraw(
    node: AgentNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another layout is wanted while the claims are being listed: the list may be older than the last allocation."""
    node.want(0, *SEVEN)
    await node.until_applied(0)
    listing, may_end = asyncio.Event(), asyncio.Event()
    list_now = node.claims.list

    async def list_slowly(*arguments: Any, **options: Any) -> Any:
        found = await list_now(*arguments, **options)
        listing.set()
        await may_end.wait()
        return found

    monkeypatch.setattr(node.claims, "list", list_slowly)
    node.want(0, ("1g.10gb", 5), ("2g.20gb", 1), revision="r2")
    await node.until(listing.is_set)
    late = min(node.slices.shown)
    node.claims.allocate("late", late, "pod-1")
    node.want(0, ("7g.80gb", 1), revision="r3")
    await node.until(lambda: node.slices.shown == frozenset())
    may_end.set()
    await node.until(lambda: node.card(0).reason == "WaitingForClaims")
    assert f"1g.10gb@{late.rpartition('-')[2]}" in node.layout(0)
    del node.claims.objects["late"]
    await node.until_applied(0, revision="r3")


async def test_a_round_goes_by_what_holds_when_it_acts(node: AgentNode) -> None:
    """A device plugin came while the round waited: then nothing is written any more."""
    node.want(0)
    await node.until_applied(0)
    async with node.state.hold([node.card(0).uuid]):
        node.want(0, *INFER, revision="r2")
        await node.until(lambda: bool(node.loop._changing))
        node.around = Surroundings(device_plugin="nvidia.com/gpu: 2")
        await node.until(
            lambda: node.wish.status is not None and node.wish.status.allocator == "DevicePlugin"
        )
    await node.until(lambda: not node.loop._rounds)
    assert node.simulator.writes() == 0
    node.around = Surroundings()
    await node.until_applied(0, revision="r2")


async def test_a_claim_is_pinned_and_the_other_cards_go_on(node: AgentNode) -> None:
    node.want_all(*INFER)
    await node.until_applied(0, 1)
    await prepare(node, "busy", held(node, 0, "3g.40gb"), "training-0")
    uuid = node.card(0).instances[-1].uuid
    node.want_all(*SEVEN, revision="r2")
    await node.until(lambda: node.are_applied([1], "r2") and node.card(0).reason == "WaitingForClaims")
    assert "3g.40gb@4" in node.layout(0)
    assert node.card(0).instances[-1].uuid == uuid
    assert "ns/training-0" in (node.card(0).message or "")
    assert node.card(0).applied_revision == "r1"
    await node.state.drop_claim("busy")
    await node.until_applied(0, 1, revision="r2")


async def test_a_process_pins_as_well(node: AgentNode) -> None:
    node.want(0, *INFER)
    await node.until_applied(0)
    instance = node.card(0).instances[-1]
    node.simulator.add_client(0, 4711, gi=instance.gpu_instance_id, ci=0, name="python")
    node.want(0, *SEVEN, revision="r2")
    await node.until(lambda: node.card(0).reason == "WaitingForClaims")
    assert "4711" in (node.card(0).message or "")
    assert "3g.40gb@4" in node.layout(0)
    node.simulator.remove_client(4711)
    await node.until_applied(0, revision="r2")


async def test_a_whole_card_in_use_is_not_cut(node: AgentNode) -> None:
    node.want(0)
    await node.until_applied(0)
    (name,) = node.slices.shown
    await prepare(node, "busy", name)
    node.want(0, *INFER, revision="r2")
    await node.until(lambda: node.card(0).reason == "WaitingForClaims")
    assert node.simulator.writes() == 0
    assert [t.key for t in node.slices.devices[name].taints] == [names.RETIRING_TAINT]
    await node.state.drop_claim("busy")
    await node.until_applied(0, revision="r2")


async def test_a_policy_that_goes_leaves_what_is_in_use(node: AgentNode) -> None:
    node.want(0, *INFER)
    await node.until_applied(0)
    name = held(node, 0, "3g.40gb")
    await prepare(node, "busy", name)
    writes = node.simulator.writes()
    node.wish.spec = replace_spec(node)
    await node.until(lambda: node.slices.shown == frozenset() and node.card(0).reason == "Idle")
    assert node.layout(0) == INFER_PLACED
    assert node.simulator.writes() == writes
    assert name in node.state.devices, "its claim can still be prepared again after a restart"


def replace_spec(node: AgentNode) -> object:
    assert node.wish.spec is not None
    return node.wish.spec.model_copy(update={"gpus": []})


async def test_foreign_instances_are_left_alone_and_ours_stay_published(node: AgentNode) -> None:
    node.want(0, ("3g.40gb", 1), ("1g.10gb", 1))
    await node.until_applied(0)
    uuid = node.card(0).uuid
    await node.nvml.create_instance(uuid, 19, Placement(2, 1))
    node.want(0, *INFER, revision="r2")
    await node.until(lambda: node.card(0).reason == "OwnershipConflict")
    assert "1g.10gb@2" in node.layout(0)
    assert len(node.slices.shown) == 2
    assert {i.ownership for i in node.card(0).instances} == {"Owned", "Foreign"}
    node.want(0, *INFER, revision="r3", adopt=True)
    await node.until_applied(0, revision="r3")
    assert len(node.slices.shown) == 4


async def test_adopted_instances_are_recorded_and_offered(node: AgentNode) -> None:
    uuid = (await node.nvml.observe()).gpus[0].uuid
    await node.nvml.set_mig_mode(uuid, enabled=True)
    await node.nvml.create_instance(uuid, 9, Placement(0, 4))
    node.simulator.reset_counters()
    node.want(0, ("3g.40gb", 1), adopt=True)
    await node.until_applied(0)
    assert node.simulator.writes() == 0
    await node.restart()
    await node.until(lambda: len(node.slices.shown) == 1)
    assert node.card(0).instances[0].ownership == "Owned"


async def test_what_somebody_destroyed_is_made_again(node: AgentNode) -> None:
    node.want(0, *INFER)
    await node.until_applied(0)
    assert node.told.drifts == 0
    instance = node.card(0).instances[0]
    await node.nvml.destroy_instance(
        node.card(0).uuid, instance.profile_id, Placement(instance.placement.start, instance.placement.size)
    )
    await node.until(lambda: node.layout(0) == INFER_PLACED and node.are_applied([0]))
    assert len(node.slices.shown) == 4
    assert node.told.drifts == 1
    node.want(0, *SEVEN, revision="r2")
    await node.until_applied(0, revision="r2")
    assert node.told.drifts == 1, "another wish is no drift"


async def test_a_swapped_card_is_another_card(node: AgentNode) -> None:
    node.want_all(*INFER)
    await node.until_applied(0, 1)
    old = node.card(1).uuid
    await prepare(node, "busy", held(node, 0, "3g.40gb"))
    node.simulator.swap(1)
    await node.until(lambda: old not in {g.uuid for g in node.wish.status.gpus})  # type: ignore[union-attr]
    assert node.card(1).reason == "Idle"
    assert len(node.slices.shown) == 4
    assert node.layout(0) == INFER_PLACED
    node.want(1, *INFER)
    await node.until_applied(0, 1)
    assert len(node.slices.shown) == 8


async def test_a_reboot_brings_the_layout_back_before_anything_is_published(node: AgentNode) -> None:
    node.want_all(*INFER)
    await node.until_applied(0, 1)
    shown = node.slices.shown
    await prepare(node, "old", held(node, 0, "3g.40gb"))
    await node.stop()
    node.simulator.reboot()
    node.boot_id_path.write_text("boot-2\n")
    node.slices = type(node.slices)()
    await node.start()
    assert node.layout(0) == []
    node.state.claims.clear()  # The claims handler drops what an earlier boot had prepared.
    await node.until_applied(0, 1)
    assert node.slices.shown == shown
    assert {len(published) for published in node.slices.history} <= {0, 4, 8}, (
        "only whole layouts were published"
    )


async def test_a_mode_that_waits_for_a_reset_is_told_and_never_ready(tmp_path: Path) -> None:
    node = AgentNode(tmp_path)
    node.simulator.create(model="a100-40gb", per_gpu={0: {"activation": "pending"}})
    async with node:
        node.want(0, ("3g.20gb", 1))
        await node.until(
            lambda: node.wish.status is not None and node.card(0).reason == "MigActivationPending"
        )
        assert node.slices.shown == frozenset()
        writes = node.simulator.writes()
        await node.until(lambda: "nvidia-smi --gpu-reset" in (node.card(0).message or ""))
        assert node.simulator.writes() == writes, "a pending mode is not set again and again"
        node.simulator.reset(0)
        await node.until_applied(0)


async def test_a_layout_that_can_never_fit_is_refused(node: AgentNode) -> None:
    node.want(0, ("3g.40gb", 3))
    node.want(1, ("1g.5gb", 1))
    await node.until(lambda: node.wish.status is not None and node.card(0).reason == "InvalidLayout")
    assert node.card(1).reason == "InvalidLayout"
    assert node.simulator.writes() == 0


async def test_a_card_without_mig_is_told(tmp_path: Path) -> None:
    node = AgentNode(tmp_path)
    node.simulator.create(model="l40s")
    async with node:
        node.want(0, ("1g.10gb", 1))
        await node.until(lambda: node.wish.status is not None and node.card(0).reason == "MigUnsupported")
        node.want(0, revision="r2")
        await node.until_applied(0, revision="r2")


async def test_a_device_plugin_on_the_node_means_hands_off(node: AgentNode) -> None:
    node.want_all()
    await node.until_applied(0, 1)
    node.around = Surroundings(device_plugin="nvidia.com/gpu: 8")
    node.want_all(*INFER, revision="r2")
    await node.until(lambda: node.slices.shown == frozenset() and node.card(0).reason == "OwnershipConflict")
    assert node.simulator.writes() == 0
    assert "nvidia.com/gpu: 8" in (node.card(0).message or "")
    node.around = Surroundings()
    await node.until_applied(0, 1, revision="r2")


async def test_wishes_that_change_faster_than_cards_end_at_the_last_one(node: AgentNode) -> None:
    """At no moment may a device be shown that is not on the hardware, whatever the order of passes and rounds."""
    layouts = [INFER, SEVEN, (), (("4g.40gb", 1), ("1g.10gb", 2)), (("7g.80gb", 1),)]
    for index in (0, 1):
        node.simulator.set_latency(3_000, symbol="nvmlDeviceCreateGpuInstanceWithPlacement", gpu=index)
    for turn in range(12):
        for index in (0, 1):
            node.want(index, *layouts[(turn * (index + 1)) % len(layouts)], revision=f"r{turn}")
        with contextlib.suppress(AssertionError):
            await node.until(lambda: shown_is_real(node), seconds=0.12)
    node.want_all(*INFER, revision="last")
    await node.until_applied(0, 1, revision="last")
    assert node.layout(0) == node.layout(1) == INFER_PLACED
    assert len(node.slices.shown) == 8


def shown_is_real(node: AgentNode) -> bool:
    """Fail where the slices show an instance that does not stand; False otherwise, to be asked again."""
    for device in list(node.slices.devices.values()):
        if device.name in node.slices.visible and device.record.placement is not None:
            index = next(i for i in (0, 1) if node.simulator.gpu(i)["uuid"] == device.record.gpu_uuid)
            where = f"{device.record.profile}@{device.record.placement.start}"
            if device.name in node.slices.visible and device.name in node.slices.devices:
                standing = node.layout(index)
                if where not in standing and device.name in node.slices.devices:
                    raise RuntimeError(f"{device.name} is shown and {where} is not among {standing}")
    return False


async def test_a_foreign_instance_beside_ours_is_told_at_the_next_look(node: AgentNode) -> None:
    """Nothing wakes the loop, and nothing is to be changed: a look at the cards is enough."""
    node.want(0, ("3g.40gb", 1), ("1g.10gb", 1))
    await node.until_applied(0)
    assert not node.state.reconcile._event.is_set()
    await node.nvml.create_instance(node.card(0).uuid, 19, Placement(2, 1))
    await node.loop.reconcile_once()
    assert node.card(0).reason == "OwnershipConflict"
    assert "1g.10gb@2" in (node.card(0).message or "")
    assert len(node.slices.shown) == 2
