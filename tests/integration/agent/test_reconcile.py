"""The loop on simulated cards: layouts come about, what is in use stays, trouble stays where it is."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpupolicy.adapters import logs
from gpupolicy.adapters.nvml import events
from gpupolicy.agent import reconcile
from gpupolicy.agent.ports import Surroundings
from gpupolicy.api import names
from gpupolicy.core.inventory import Gpu, Health, Placement
from gpupolicy.core.records import ClaimRecord, ClaimState, PreparedDevice
from tests.integration.agent.agent_node import FAST, AgentNode

INFER = (("3g.40gb", 1), ("2g.20gb", 1), ("1g.10gb", 2))
SEVEN = (("1g.10gb", 7),)
INFER_PLACED = ["2g.20gb@0", "1g.10gb@2", "1g.10gb@3", "3g.40gb@4"]


@pytest.fixture(autouse=True)
def quick_listener(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "WAIT_SECONDS", 0.05)


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[AgentNode]:
    node = AgentNode(tmp_path)
    node.simulator.create(gpus=2)
    async with node:
        yield node


async def prepare(node: AgentNode, uid: str, device: str, *pods: str) -> None:
    """Do what the claims handler does to the state when a claim is prepared."""
    record = node.state.devices[device]
    held = PreparedDevice(record, node.state.pool)
    await node.state.save_claim(
        ClaimRecord(uid, "ns", uid, ClaimState.PREPARE_COMPLETED, (held,), pods or (f"{uid}-pod",))
    )


def held(node: AgentNode, index: int, profile: str) -> str:
    """Return the name of a published device of a card and profile."""
    uuid = node.simulator.gpu(index)["uuid"]
    return next(
        d.name
        for d in node.slices.devices.values()
        if d.record.gpu_uuid == uuid and d.record.profile == profile
    )


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


async def test_a_card_that_fails_does_not_make_its_neighbour_wait_longer(node: AgentNode) -> None:
    """The one pauses for up to a minute between two attempts; the claim that the other waits for goes before that."""
    node.want_all(*INFER)
    await node.until_applied(0, 1)
    name = held(node, 1, "3g.40gb")
    node.simulator.add_fault("nvmlComputeInstanceDestroy", gpu=0, count=-1)
    node.claims.allocate("late", name, "pod-1")
    node.want_all(*SEVEN, revision="r2")
    await node.until(lambda: node.card(0).reason == "Degraded" and node.card(1).reason == "WaitingForClaims")
    uuid = node.card(0).uuid
    node.loop._failures[uuid].retry_at += 3600
    del node.claims.objects["late"]
    await node.until_applied(1, revision="r2")


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


async def test_a_card_that_cannot_be_decided_on_keeps_its_devices_and_its_neighbours(
    node: AgentNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.want_all(*INFER)
    await node.until_applied(0, 1)
    strange = node.card(0).uuid
    decide = reconcile.decide_card

    def buggy(gpu: Gpu, *arguments: Any, **options: Any) -> Any:
        if gpu.uuid == strange:
            raise ZeroDivisionError("a card of zero slices")
        return decide(gpu, *arguments, **options)

    monkeypatch.setattr(reconcile, "decide_card", buggy)
    node.want_all(*SEVEN, revision="r2")
    await node.until(lambda: node.are_applied([1], "r2") and node.card(0).reason == "Degraded")
    assert "ZeroDivisionError" in (node.card(0).message or "")
    assert node.layout(0) == INFER_PLACED
    assert len([d for d in node.slices.devices.values() if d.record.gpu_uuid == strange]) == 4
    monkeypatch.setattr(reconcile, "decide_card", decide)
    await node.until_applied(0, revision="r2")


async def test_a_bug_that_one_card_brings_to_light_stays_with_it(
    node: AgentNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is told on the card and tried again after a pause; the neighbour goes on."""
    sick = node.simulator.gpu(0)["uuid"]
    tried = []
    create = node.nvml.create_instance

    async def buggy(gpu_uuid: str, *arguments: object) -> object:
        if gpu_uuid == sick:
            tried.append(gpu_uuid)
            raise KeyError("surprise")
        return await create(gpu_uuid, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(node.nvml, "create_instance", buggy)
    node.want_all(*INFER)
    await node.until(lambda: node.are_applied([1]) and node.card(0).reason == "Degraded")
    assert "KeyError" in (node.card(0).message or "")
    await node.until(lambda: len(tried) > 1)
    monkeypatch.setattr(node.nvml, "create_instance", create)
    await node.until_applied(0)


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


async def test_a_failing_creation_degrades_its_card_and_no_other(node: AgentNode) -> None:
    node.simulator.add_fault("nvmlGpuInstanceCreateComputeInstance", gpu=0, count=-1)
    node.want_all(*INFER)
    await node.until(lambda: node.are_applied([1]) and node.card(0).reason == "Degraded")
    assert "card 0" in (node.card(0).message or "")
    assert node.layout(0) == [], "what could not be finished was taken away"
    assert len(node.slices.shown) == 4
    assert {"success", "Degraded"} == set(node.told.attempts)
    node.simulator.clear_faults()
    await node.until_applied(0, 1)
    assert node.told.attempts[-1] == "success"
    assert node.told.passes > 1


async def test_what_is_logged_of_one_change_has_one_id(
    node: AgentNode, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.handler.setFormatter(logs.JsonFormatter())
    caplog.set_level("INFO", "gpupolicy.agent.changes")
    node.simulator.add_fault("nvmlGpuInstanceCreateComputeInstance", gpu=0, count=3)
    node.want_all(*INFER)
    await node.until_applied(0, 1)
    lines = [line for line in map(json.loads, caplog.text.splitlines()) if "card" in line["message"]]
    failed = [line for line in lines if line["level"] == "warning"]
    assert failed
    for line in lines:
        uuid = line["subject"].removeprefix("card ")
        assert uuid in line["message"]
    together = [line for line in lines if line["operation"] == failed[0]["operation"]]
    assert [line["level"] for line in together] == ["info", "warning"], "the steps, then what failed of them"
    begun = [line["operation"] for line in lines if line["level"] == "info"]
    assert len(begun) == len(set(begun)), "each change has an id of its own"


async def test_parts_that_can_be_made_are_made_and_offered(node: AgentNode) -> None:
    node.simulator.add_fault("nvmlDeviceCreateGpuInstanceWithPlacement", gpu=0, count=1)
    node.want(0, *INFER)
    await node.until(lambda: len(node.layout(0)) == 3)
    await node.until_applied(0)
    assert node.layout(0) == INFER_PLACED


async def test_a_card_that_hangs_delays_no_other(tmp_path: Path) -> None:
    node = AgentNode(tmp_path, nvml_seconds=0.5)
    node.simulator.create(gpus=2)
    async with node:
        await node.until(lambda: node.wish.status is not None)
        node.simulator.add_fault("nvmlDeviceSetMigMode", gpu=0, mode="hang", hang_ms=8000)
        node.want_all(*INFER)
        await node.until(lambda: node.are_applied([1]) and node.card(0).health == "Unknown")
        assert "hangs since" in (node.card(0).message or "")
        await node.until_applied(0, 1)


async def test_a_slow_card_delays_itself_only(node: AgentNode) -> None:
    node.simulator.set_latency(2_000_000, symbol="nvmlDeviceCreateGpuInstanceWithPlacement", gpu=0)
    node.want_all(*SEVEN)
    await node.until(lambda: node.are_applied([1]))
    assert not node.are_applied([0])
    assert len(node.slices.shown) == 7
    node.simulator.clear_latency()
    await node.until_applied(0, 1)


async def test_a_lost_card_is_tainted_and_never_written_to(node: AgentNode) -> None:
    node.want_all(*INFER)
    await node.until_applied(0, 1)
    node.simulator.lose(0, quiet=True)
    await node.until(lambda: node.card(0).health == "Unhealthy")
    tainted = {d.record.gpu_uuid for d in node.slices.devices.values() if d.taints}
    assert tainted == {node.card(0).uuid}
    assert len(node.slices.shown) == 8
    writes = node.simulator.writes()
    node.want_all(*SEVEN, revision="r2")
    await node.until(lambda: node.are_applied([1], "r2"))
    assert node.card(0).reason == "GpuUnhealthy"
    node.simulator.recover(0)
    await node.until_applied(0, 1, revision="r2")
    assert node.simulator.writes() > writes


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


async def test_the_api_server_away_means_no_change(node: AgentNode) -> None:
    node.claims.down = True
    node.want(0, *INFER)
    await node.until(lambda: node.wish.status is not None and node.card(0).reason == "WaitingForClaims")
    assert node.simulator.writes() == 0
    node.claims.down = False
    await node.until_applied(0)


async def test_nvml_away_for_a_moment_changes_nothing_and_for_long_taints(node: AgentNode) -> None:
    node.want_all(*INFER)
    await node.until_applied(0, 1)
    node.loop._timing = replace(FAST, outage=600.0)
    node.simulator.add_fault("nvmlDeviceGetCount", code=999, count=-1)
    await node.loop.reconcile_once()
    assert not any(d.taints for d in node.slices.devices.values())
    assert {g.health for g in node.wish.status.gpus} == {"Healthy"}  # type: ignore[union-attr]
    node.loop._timing = FAST
    await node.until(lambda: all(d.taints for d in node.slices.devices.values()))
    assert len(node.slices.shown) == 8
    assert {g.health for g in node.wish.status.gpus} == {"Unknown"}  # type: ignore[union-attr]
    observed = next(c for c in node.wish.status.conditions if c.type == "Observed")  # type: ignore[union-attr]
    assert (observed.status, observed.reason) == ("Unknown", "NvmlUnavailable")
    node.simulator.clear_faults()
    await node.until_applied(0, 1)
    assert not any(d.taints for d in node.slices.devices.values())


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


async def test_a_card_with_a_damaged_record_is_left_alone(node: AgentNode) -> None:
    uuid = node.simulator.gpu(0)["uuid"]
    node.around = Surroundings(damaged={uuid: "its record is damaged"})
    node.want_all(*INFER)
    await node.until(lambda: node.are_applied([1]))
    assert node.layout(0) == []
    assert (node.card(0).reason, node.card(0).message) == ("LedgerCorrupt", "its record is damaged")


async def test_instances_whose_record_is_damaged_are_kept_and_not_called_foreign(node: AgentNode) -> None:
    """The remedy of a conflict is to delete them, and pods may be using them."""
    node.want_all(*INFER)
    await node.until_applied(0, 1)
    uuid, before = node.simulator.gpu(0)["uuid"], node.layout(0)
    node.state.gpus.pop(uuid)
    node.around = Surroundings(damaged={uuid: "its record is damaged"})
    node.want_all(*SEVEN, revision="r2")
    await node.until_applied(1, revision="r2")
    await node.until(lambda: node.card(0).reason == "LedgerCorrupt")
    assert "its record is damaged" in (node.card(0).message or "")
    assert node.layout(0) == before


async def test_a_ledger_that_cannot_be_written_stops_changes_and_is_told(
    node: AgentNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gpupolicy.adapters import files

    async def full(*_: object, **__: object) -> None:
        raise files.FileError("write", node.directory, OSError(28, "No space left on device"))

    monkeypatch.setattr(node.ledger, "write", full)
    node.want(0, *INFER)
    await node.until(lambda: node.wish.status is not None and node.card(0).reason == "LedgerCorrupt")
    assert node.simulator.writes() == 0, "nothing is done that could not be recorded first"
    monkeypatch.undo()
    await node.until_applied(0)


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


async def report(node: AgentNode, index: int, number: int) -> None:
    """Report XIDs of a card until the agent says that it is sick."""

    def sick() -> bool:
        if node.card(index).health != "Healthy":
            return True
        node.simulator.xid(index, number)
        return False

    await node.until(lambda: node.wish.status is not None and sick())


async def test_an_xid_stays_over_restarts_until_a_reset(node: AgentNode) -> None:
    """The next agent does not hear it again, and must not change or offer the card as if nothing was."""
    node.want(0, *INFER)
    await node.until_applied(0)
    await report(node, 0, 79)
    told = node.card(0).health_message
    assert "XID 79" in (told or "")
    for _ in range(2):
        await node.restart()
        await node.until(lambda: node.wish.status is not None and node.card(0).health == "Unhealthy")
        assert node.card(0).health_message == told
        uuid = node.card(0).uuid
        assert {
            node.state.health[name][0] for name, d in node.state.devices.items() if d.gpu_uuid == uuid
        } == {Health.UNHEALTHY}
    writes = node.simulator.writes()
    node.want(0, ("7g.80gb", 1), revision="r2")
    await node.loop.reconcile_once()
    assert node.simulator.writes() == writes, "a sick card is not cut anew"
    node.want(0, *INFER)
    node.simulator.reset(0)
    await node.until(lambda: node.card(0).health == "Healthy" and node.are_applied([0]))
    await node.restart()
    await node.until(lambda: node.wish.status is not None and node.are_applied([0]))
    assert node.card(0).health == "Healthy"


async def test_a_reboot_ends_an_xid(node: AgentNode) -> None:
    node.want(0)
    await node.until_applied(0)
    await report(node, 0, 79)
    await node.stop()
    node.simulator.reboot()
    node.boot_id_path.write_text("boot-2\n")
    await node.start()
    await node.until(lambda: node.wish.status is not None and node.are_applied([0]))
    assert node.card(0).health == "Healthy"


async def test_an_xid_of_a_card_that_nobody_wants_is_remembered_too(node: AgentNode) -> None:
    await node.loop.reconcile_once()
    await report(node, 1, 79)
    await node.restart()
    await node.until(lambda: node.wish.status is not None and node.card(1).health == "Unhealthy")
    assert node.card(0).health == "Healthy"


async def test_at_rest_no_record_is_written(node: AgentNode) -> None:
    """Also while a card is sick: the ledger is on a disk that wears out."""
    node.want(0)
    await node.until_applied(0)
    await report(node, 0, 79)
    await node.loop.reconcile_once()
    files = {p: p.stat().st_mtime_ns for p in (node.directory / "ledger").rglob("*") if p.is_file()}
    for _ in range(3):
        await node.loop.reconcile_once()
    assert {p: p.stat().st_mtime_ns for p in (node.directory / "ledger").rglob("*") if p.is_file()} == files


async def test_a_change_that_hangs_is_told_although_a_claim_is_waited_for(tmp_path: Path) -> None:
    """One instance is in use, of the others one does not let itself be destroyed: that is what keeps the card."""
    async with AgentNode(tmp_path / "node", nvml_seconds=30.0) as node:
        node.simulator.create(gpus=1)
        node.want(0, *INFER)
        await node.until_applied(0)
        await prepare(node, "busy", held(node, 0, "3g.40gb"))
        node.simulator.add_fault("nvmlGpuInstanceDestroy", mode="hang", hang_ms=9000, count=1)
        node.want(0, ("1g.10gb", 7), revision="r2")
        await node.until(lambda: "has not returned since" in (node.card(0).message or ""))
        told = node.card(0)
        assert told.reason == "RolloutPending"
        assert "nvmlGpuInstanceDestroy has not returned since" in (told.message or "")
        assert "busy" in (told.message or "")
        await node.until(lambda: node.card(0).reason == "WaitingForClaims")
