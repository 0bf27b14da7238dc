"""What an agent says of its node: one reason a card, four conditions, and silence where nothing changed."""

from dataclasses import replace
from typing import Any

import pytest

from gpupolicy.api.conditions import ConditionType, Reason
from gpupolicy.api.node import Allocator, GpuNodeSpec, GpuNodeStatus, GpuRelease
from gpupolicy.core import node_status
from gpupolicy.core.convergence import Circumstances, decide_card
from gpupolicy.core.devices import DriverFacts
from gpupolicy.core.inventory import Gpu, Health, Inventory, Ownership, Process
from gpupolicy.core.node_status import NodeFacts
from gpupolicy.core.records import GpuRecord
from gpupolicy.core.refusals import Refusal
from tests.unit.core.builders import card, claim, instance
from tests.unit.core.test_convergence import PAIR, spec

NOW, LATER = "2026-01-01T00:00:00Z", "2026-01-01T00:05:00Z"
AROUND = Circumstances(DriverFacts())
APPLIED = card(instance("3g.40gb@4"), instance("1g.10gb@2"), instance("1g.10gb@3"))
ALL = frozenset({"mig-0-9-4", "mig-0-19-2", "mig-0-19-3"})


def facts(gpu: Gpu, wanted: GpuNodeSpec, around: Circumstances = AROUND, **fields: Any) -> NodeFacts:
    decisions = {gpu.uuid: decide_card(gpu, wanted, around)}
    inventory = fields.pop("inventory", Inventory("n", (gpu,), "550.54.15", "12.4", "boot"))
    return NodeFacts(inventory=inventory, decisions=decisions, generation=3, **fields)


def status(found: NodeFacts, previous: GpuNodeStatus | None = None, now: str = NOW) -> GpuNodeStatus:
    return node_status.node_status(found, previous, now=now)


def conditions(found: GpuNodeStatus) -> dict[str, tuple[str, str]]:
    return {c.type: (c.status, c.reason) for c in found.conditions}


def test_an_applied_node_is_ready() -> None:
    found = status(facts(APPLIED, spec(*PAIR), shown=ALL, allocator=Allocator.DRA, agent_version="1"))
    assert conditions(found) == {
        "Observed": ("True", "Observed"),
        "Applied": ("True", "Applied"),
        "Healthy": ("True", "Healthy"),
        "Ready": ("True", "Ready"),
    }
    assert {c.observed_generation for c in found.conditions} == {3}
    (gpu,) = found.gpus
    assert (gpu.reason, gpu.message, gpu.applied_revision) == ("Applied", None, "r1")
    assert (gpu.policy, gpu.layout, gpu.devices) == ("infer", "2x1g.10gb 1x3g.40gb", 3)
    assert (found.gpu_count, found.mig_gpus, found.devices, found.allocated) == (1, 1, 3, 0)
    assert (found.driver_version, found.cuda_version, found.boot_id) == ("550.54.15", "12.4", "boot")


@pytest.mark.parametrize(
    ("gpu", "fields", "reason", "text"),
    [
        pytest.param(APPLIED, {"shown": ALL}, Reason.APPLIED, None, id="applied"),
        pytest.param(
            APPLIED,
            {"shown": ALL - {"mig-0-9-4"}},
            Reason.WAITING_FOR_SLICES,
            "does not show 1 of its 3 devices yet",
            id="not shown yet",
        ),
        pytest.param(card(), {}, Reason.ROLLOUT_PENDING, "create 3g.40gb@4:4", id="under way"),
        pytest.param(
            card(),
            {"failures": {"GPU-0": Refusal(Reason.DEGRADED, "create failed")}},
            Reason.DEGRADED,
            "create failed",
            id="failed",
        ),
        pytest.param(
            card(instance("7g.80gb@0", used_by="c")),
            {},
            Reason.WAITING_FOR_CLAIMS,
            "team-a/c-pod",
            id="in use",
        ),
        pytest.param(
            replace(
                card(instance("7g.80gb@0", used_by="c")), health=Health.UNHEALTHY, health_message="XID 79"
            ),
            {},
            Reason.GPU_UNHEALTHY,
            "XID 79",
            id="sick",
        ),
        pytest.param(
            card(instance("1g.10gb@0", ownership=Ownership.FOREIGN)),
            {},
            Reason.OWNERSHIP_CONFLICT,
            "nvidia-smi mig -dci",
            id="foreign",
        ),
    ],
)
def test_a_card_tells_the_first_reason_that_applies(
    gpu: Gpu, fields: dict[str, Any], reason: Reason, text: str | None
) -> None:
    (told,) = status(facts(gpu, spec(*PAIR), **fields)).gpus
    assert told.reason == reason
    assert text is None or text in (told.message or "")


def test_a_failure_of_a_partial_step_is_told_before_the_waiting() -> None:
    """While an instance in use is waited for, the others go on; that one of those failed must not be hidden."""
    gpu = card(instance("1g.10gb@0", used_by="c"), instance("1g.10gb@1"))
    found = facts(
        gpu, spec(("4g.40gb", 1), ("2g.20gb", 1)), failures={"GPU-0": Refusal(Reason.DEGRADED, "failed")}
    )
    assert found.decisions["GPU-0"].needs_change
    assert status(found).gpus[0].reason == "Degraded"


def test_a_call_that_hangs_is_told_before_the_waiting() -> None:
    """Who reads that pods are waited for would end pods, and the card would still hang."""
    gpu = card(instance("1g.10gb@0", used_by="c"), instance("1g.10gb@1"))
    slow = {"GPU-0": "nvmlGpuInstanceDestroy has not returned since 12:00"}
    found = facts(gpu, spec(("4g.40gb", 1), ("2g.20gb", 1)), slow=slow)
    (told,) = status(found).gpus
    assert told.reason == "RolloutPending"
    for part in ("under way: destroy", "nvmlGpuInstanceDestroy has not returned", "team-a/c-pod"):
        assert part in (told.message or "")
    (applied,) = status(facts(APPLIED, spec(*PAIR), slow=slow, shown=ALL)).gpus
    assert applied.reason == "Applied", "reading it is slow, and its deadline is told as its health"


def test_a_trouble_of_the_node_is_told_by_cards_that_it_keeps_from_changing() -> None:
    trouble = Refusal(Reason.OWNERSHIP_CONFLICT, "a device plugin advertises nvidia.com/gpu: 8")
    around = replace(AROUND, hands_off=trouble, offers_nothing=True)
    found = status(facts(card(), spec(*PAIR), around, troubles=(trouble,)))
    assert (found.gpus[0].reason, found.gpus[0].message) == (trouble.reason, trouble.message)
    assert conditions(found)["Ready"] == ("False", "OwnershipConflict")


def test_the_old_revision_is_told_until_the_new_one_stands() -> None:
    record = GpuRecord("GPU-0", policy="infer", revision="r0")
    (gpu,) = status(facts(card(), spec(*PAIR), records={"GPU-0": record})).gpus
    assert gpu.applied_revision == "r0"


def test_a_card_of_no_policy_is_idle() -> None:
    found = status(facts(card(enabled=False), GpuNodeSpec()))
    assert (found.gpus[0].reason, found.gpus[0].policy, found.gpus[0].layout) == ("Idle", None, "whole")
    assert conditions(found)["Applied"] == ("True", "Idle")
    assert conditions(found)["Ready"] == ("True", "Ready")


@pytest.mark.parametrize(
    ("was_seen", "expected"), [(False, "False"), (True, "Unknown")], ids=["never seen", "seen before"]
)
def test_cards_that_cannot_be_seen(was_seen: bool, expected: str) -> None:
    found = status(facts(APPLIED, spec(*PAIR), blind="library missing", was_seen=was_seen, shown=ALL))
    assert conditions(found)["Observed"] == (expected, "NvmlUnavailable")
    assert conditions(found)["Ready"] == ("False", "NvmlUnavailable")


def test_a_card_that_does_not_say_who_it_is_keeps_the_node_from_being_observed() -> None:
    inventory = Inventory("n", (APPLIED,), message="card 3: GPU is lost")
    found = status(facts(APPLIED, spec(*PAIR), inventory=inventory, shown=ALL))
    assert conditions(found)["Observed"] == ("False", "GpuUnhealthy")


@pytest.mark.parametrize(("health", "expected"), [(Health.UNHEALTHY, "False"), (Health.UNKNOWN, "Unknown")])
def test_health_is_the_worst_of_the_cards(health: Health, expected: str) -> None:
    gpu = replace(APPLIED, health=health, health_message="because")
    found = status(facts(gpu, spec(*PAIR), shown=ALL))
    assert conditions(found)["Healthy"] == (expected, "GpuUnhealthy")
    assert conditions(found)["Applied"] == ("True", "Applied"), "a sick card's layout still stands"
    assert conditions(found)["Ready"][0] == "False"


def test_a_trouble_keeps_the_node_from_being_ready_and_nothing_else() -> None:
    trouble = Refusal(Reason.PLUGIN_NOT_REGISTERED, "no registration")
    found = status(facts(APPLIED, spec(*PAIR), shown=ALL, troubles=(trouble,)))
    assert conditions(found)["Applied"][0] == "True"
    assert conditions(found)["Ready"] == ("False", "PluginNotRegistered")


def test_transition_times_move_with_the_status_only() -> None:
    first = status(facts(card(), spec(*PAIR)))
    second = status(facts(APPLIED, spec(*PAIR), shown=ALL), first, LATER)
    times = {c.type: c.last_transition_time for c in second.conditions}
    assert times == {"Observed": NOW, "Applied": LATER, "Healthy": NOW, "Ready": LATER}
    third = status(facts(APPLIED, spec(*PAIR), shown=ALL), second, "2026-01-01T00:09:00Z")
    assert third == second


def test_who_uses_what_is_told() -> None:
    gpu = card(
        replace(instance("3g.40gb@4", used_by="c"), processes=(Process(4711, "python"),)),
        claims=(claim("whole"),),
    )
    found = status(facts(gpu, spec(*PAIR), shown=ALL))
    (told,) = found.gpus
    assert told.instances[0].claims[0].pods == ["c-pod"]
    assert told.instances[0].processes[0].name == "python"
    assert told.claims[0].name == "whole"
    assert found.allocated == 1


def test_a_long_list_of_processes_is_cut() -> None:
    gpu = replace(card(enabled=False), processes=tuple(Process(pid) for pid in range(1, 100)))
    assert len(status(facts(gpu, GpuNodeSpec())).gpus[0].processes) == 16


def test_messages_fit_the_schema() -> None:
    gpu = replace(APPLIED, health=Health.UNHEALTHY, health_message="x" * 10_000)
    found = status(facts(gpu, spec(*PAIR)))
    assert len(found.gpus[0].health_message or "") <= 2048
    assert all(len(c.message) <= 4096 for c in found.conditions)
    assert {c.type for c in found.conditions} <= {t.value for t in ConditionType}


@pytest.mark.parametrize(
    ("plugin", "ours", "expected"),
    [
        (False, False, Allocator.NONE),
        (False, True, Allocator.DRA),
        (True, False, Allocator.DEVICE_PLUGIN),
        (True, True, Allocator.BOTH),
    ],
)
def test_who_hands_out_the_cards(plugin: bool, ours: bool, expected: Allocator) -> None:
    assert node_status.allocator(device_plugin=plugin, ours=ours) is expected


@pytest.mark.parametrize(
    ("gpu", "reason", "text"),
    [
        pytest.param(card(enabled=False), Reason.IDLE, None, id="whole"),
        pytest.param(
            card(instance("1g.10gb@6")), Reason.ROLLOUT_PENDING, "destroy 1g.10gb@6", id="under-way"
        ),
        pytest.param(
            card(instance("1g.10gb@6", used_by="c")), Reason.WAITING_FOR_CLAIMS, "team-a/c-pod", id="in-use"
        ),
        pytest.param(
            card(instance("1g.10gb@6", ownership=Ownership.FOREIGN)),
            Reason.OWNERSHIP_CONFLICT,
            "did not make",
            id="foreign",
        ),
    ],
)
def test_a_released_card_tells_how_far_it_is(gpu: Gpu, reason: Reason, text: str | None) -> None:
    """The clean-up before an uninstallation goes by these; a card of no policy that is not released is Idle."""
    released = GpuNodeSpec(releases=[GpuRelease(uuid=gpu.uuid)])
    (told,) = status(facts(gpu, released)).gpus
    assert told.reason == reason
    assert told.message is None if text is None else text in (told.message or "")
    (unwanted,) = status(facts(gpu, GpuNodeSpec())).gpus
    assert unwanted.reason == Reason.IDLE


def test_cards_that_say_the_same_share_a_line() -> None:
    (one,) = spec(*PAIR).gpus
    gpus = tuple(replace(card(), uuid=f"GPU-{n}", index=n) for n in range(4))
    wanted = GpuNodeSpec(gpus=[one.model_copy(update={"uuid": gpu.uuid}) for gpu in gpus])
    found = NodeFacts(
        inventory=Inventory("n", gpus),
        decisions={gpu.uuid: decide_card(gpu, wanted, AROUND) for gpu in gpus},
        failures={"GPU-2": Refusal(Reason.DEGRADED, "create failed")},
    )

    told = {c.type: c.message for c in status(found).conditions}

    assert told["Applied"].startswith("cards 0-1, 3: under way: create 3g.40gb@4:4")
    assert told["Applied"].endswith("; card 2: create failed")
    assert told["Ready"] == told["Applied"]
