"""The loop when something is wrong: a trouble stays with its card, is told, is not made worse, and is over when it is over."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpupolicy.adapters import logs
from gpupolicy.agent import reconcile
from gpupolicy.agent.ports import Surroundings
from gpupolicy.core.inventory import Gpu, Health
from tests.integration.agent.agent_node import FAST, INFER, INFER_PLACED, SEVEN, AgentNode, held, prepare

pytestmark = pytest.mark.usefixtures("quick_listener")


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
