"""What a status says of cards, nodes and policies; when conditions move."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from gpupolicy.api.conditions import Condition, ConditionType, Reason
from gpupolicy.api.node import GpuAssignment
from gpupolicy.core import status
from gpupolicy.core.classes import DesiredClass, LiveClass
from gpupolicy.core.inventory import Gpu
from gpupolicy.core.observation import ObservedCard
from gpupolicy.core.refusals import Refusal
from gpupolicy.core.status import CardReport, NodeReport, Standing
from gpupolicy.core.tally import DeviceGroup, GroupCount, PoolTally, PublishedSlice, count_pool, holdings
from tests.unit.core.wire import claim, mig, resource_slice

WANTED = GpuAssignment(uuid="GPU-0", policy="p", revision="r1")
WHOLE = DeviceGroup("p", "gpu")
EXPECTED = {WHOLE: 1}


def observed(**fields: Any) -> ObservedCard:
    return ObservedCard(**{"gpu": Gpu("GPU-0", 3), "applied_revision": "r1", "reason": "Applied", **fields})


def pool(devices: Mapping[DeviceGroup, int], *, is_complete: bool = True) -> PoolTally:
    return PoolTally(is_complete, {}, {"GPU-0": devices} if devices else {})


# One card.

CARDS: list[Any] = [
    pytest.param(observed(), pool(EXPECTED), (True, Reason.APPLIED), id="all-is-well"),
    pytest.param(None, pool({}), (False, Reason.WAITING_FOR_AGENT), id="not-seen"),
    pytest.param(
        observed(applied_revision=""), pool(EXPECTED), (False, Reason.ROLLOUT_PENDING), id="not-begun"
    ),
    pytest.param(
        observed(applied_revision="r0", reason="WaitingForClaims", message="waits for pod a/b"),
        pool(EXPECTED),
        (False, Reason.WAITING_FOR_CLAIMS),
        id="waits",
    ),
    pytest.param(observed(), pool({}), (False, Reason.WAITING_FOR_SLICES), id="not-published"),
    pytest.param(
        observed(),
        pool({DeviceGroup("p", "mig", "1g.10gb"): 7}),
        (False, Reason.WAITING_FOR_SLICES),
        id="stale-slices",
    ),
    pytest.param(
        observed(),
        pool({WHOLE: 1, DeviceGroup("q", "gpu"): 1}),
        (False, Reason.WAITING_FOR_SLICES),
        id="more-than-wanted",
    ),
    pytest.param(
        observed(),
        pool(EXPECTED, is_complete=False),
        (False, Reason.WAITING_FOR_SLICES),
        id="pool-incomplete",
    ),
    pytest.param(
        observed(reason="GpuUnhealthy", message="XID 79"),
        pool(EXPECTED),
        (True, Reason.GPU_UNHEALTHY),
        id="sick",
    ),
    pytest.param(
        observed(applied_revision="r0", reason="NewReason"),
        pool({}),
        (False, Reason.DEGRADED),
        id="agent-of-the-future",
    ),
]


@pytest.mark.parametrize(("card", "shown", "outcome"), CARDS)
def test_a_card(card: ObservedCard | None, shown: PoolTally, outcome: tuple[bool, Reason]) -> None:
    report = status.card_report(WANTED, card, shown, EXPECTED)

    assert (report.is_applied, report.reason) == outcome
    assert report.is_ready is (outcome == (True, Reason.APPLIED))


@pytest.mark.parametrize("reason", ["OwnershipConflict", "GpuUnhealthy", "RolloutPending"])
def test_devices_that_the_agent_withdrew_are_missing_for_its_reason(reason: str) -> None:
    """Somebody cut the card anew: its layout does not stand, whatever the revision says."""
    report = status.card_report(
        WANTED, observed(reason=reason, message="1g.20gb@6:2 is foreign"), pool({}), EXPECTED
    )

    assert (report.is_applied, report.reason, report.message) == (False, reason, "1g.20gb@6:2 is foreign")


def test_stale_slices_are_named() -> None:
    report = status.card_report(WANTED, observed(), pool({DeviceGroup("p", "mig", "1g.10gb"): 7}), EXPECTED)

    assert report.message == (
        "the layout stands, the API server shows 7 1g.10gb of 1 gpu; "
        "if it stays so, look at the pod of the node's agent"
    )


# Nodes.


def good(index: int = 0) -> CardReport:
    return CardReport(index, f"GPU-{index}", is_applied=True, reason=Reason.APPLIED)


def bad(
    index: int, reason: Reason = Reason.ROLLOUT_PENDING, message: str = "", *, is_applied: bool = False
) -> CardReport:
    return CardReport(index, f"GPU-{index}", is_applied=is_applied, reason=reason, message=message)


def test_a_node_without_trouble_has_none() -> None:
    assert NodeReport("n", (good(0), good(1))).problem is None


def test_the_most_urgent_trouble_of_a_node_comes_first() -> None:
    report = NodeReport("n", (bad(0), bad(1, Reason.WAITING_FOR_CLAIMS, "waits for pod a/b"), good(2)))

    assert report.problem == Refusal(Reason.WAITING_FOR_CLAIMS, "card 1: waits for pod a/b")
    assert (report.applied, report.is_applied) == (1, False)


def test_cards_that_say_the_same_share_a_line() -> None:
    report = NodeReport("n", (bad(0), bad(1), bad(3), bad(5, message="x")))

    assert report.problem == Refusal(Reason.ROLLOUT_PENDING, "cards 0-1, 3; card 5: x")


def test_a_node_of_talkative_cards_stays_short() -> None:
    report = NodeReport("n", tuple(bad(i, message=f"{i}" + "x" * 1000) for i in range(8)))

    assert report.problem is not None
    assert report.problem.message.endswith("; and 4 more like these")
    assert len(report.problem.message) < 1100


@pytest.mark.parametrize("reason", [r for r in Reason if r not in status._URGENCY], ids=str)
def test_an_unknown_trouble_is_not_hidden_behind_a_known_one(reason: Reason) -> None:
    report = NodeReport("n", (bad(0), bad(1, reason)))

    assert report.problem is not None
    assert report.problem.reason is reason


def test_the_line_of_a_node() -> None:
    report = NodeReport("n", (good(0), bad(1, message="m")), counts=GroupCount(3, 2, 1))

    line = status.node_plan(report)

    assert (line.node, line.selected, line.applied, line.devices, line.allocated) == ("n", 2, 1, 3, 2)
    assert (line.reason, line.message) == ("RolloutPending", "card 1: m")


def test_fractions_count_nodes_that_have_or_may_have_cards() -> None:
    silent = NodeReport("s", (), trouble=Refusal(Reason.WAITING_FOR_AGENT, ""))
    left_over = NodeReport("l", (), counts=GroupCount(1, 1, 0))
    reports = [NodeReport("a", (good(0), good(1))), NodeReport("b", (good(0), bad(1))), silent, left_over]

    assert status.fractions(reports) == ("1/3", "3/4")


# Conditions.


def said(reports: list[NodeReport], **standing: Any) -> dict[str, tuple[str, str]]:
    return {v.type: (v.status, v.reason) for v in status.verdicts(reports, Standing(**standing))}


REFUSED = Refusal(Reason.NOT_IMPLEMENTED, "spec.x: y is not served")
LACKING = Refusal(Reason.INVALID_POLICY, "there is no namespace x")
CONFLICT = Refusal(Reason.DEVICE_CONFLICT, "policy q has them")
EMPTY = Refusal(Reason.NO_MATCHING_DEVICES, "none")
WELL = [NodeReport("n", (good(),))]
SICK = [NodeReport("n", (bad(0, Reason.GPU_UNHEALTHY, is_applied=True),))]
PENDING = [NodeReport("n", (bad(0),))]
STALE = [NodeReport("n", (good(),), trouble=Refusal(Reason.STALE, "silent"))]
SILENT = [NodeReport("n", (), trouble=Refusal(Reason.WAITING_FOR_AGENT, "silent"))]

YES, NO = "True", "False"


@pytest.mark.parametrize(
    ("reports", "standing", "accepted", "applied", "ready"),
    [
        pytest.param(WELL, {}, (YES, "Accepted"), (YES, "Applied"), (YES, "Ready"), id="well"),
        pytest.param(
            PENDING, {}, (YES, "Accepted"), (NO, "RolloutPending"), (NO, "RolloutPending"), id="pending"
        ),
        pytest.param(
            SICK, {}, (YES, "Accepted"), (YES, "Applied"), (NO, "GpuUnhealthy"), id="applied-but-sick"
        ),
        pytest.param(STALE, {}, (YES, "Accepted"), (YES, "Applied"), ("Unknown", "Stale"), id="stale"),
        pytest.param(
            [*STALE, *PENDING],
            {},
            (YES, "Accepted"),
            (NO, "RolloutPending"),
            (NO, "Stale"),
            id="stale-and-pending",
        ),
        pytest.param(
            [*WELL, *SILENT],
            {},
            (YES, "Accepted"),
            (NO, "WaitingForAgent"),
            (NO, "WaitingForAgent"),
            id="one-agent-missing",
        ),
        pytest.param(
            [], {}, (YES, "Accepted"), (NO, "RolloutPending"), (NO, "RolloutPending"), id="nothing-yet"
        ),
        pytest.param(
            WELL,
            {"refusal": REFUSED},
            (NO, "NotImplemented"),
            (NO, "NotImplemented"),
            (NO, "NotImplemented"),
            id="refused",
        ),
        pytest.param(
            WELL,
            {"lacking": LACKING},
            (NO, "InvalidPolicy"),
            (NO, "InvalidPolicy"),
            (NO, "InvalidPolicy"),
            id="lacking-in-the-cluster",
        ),
        pytest.param(
            PENDING,
            {"lacking": LACKING, "conflict": CONFLICT},
            (NO, "InvalidPolicy"),
            (NO, "RolloutPending"),
            (NO, "InvalidPolicy"),
            id="lacking-while-cards-change",
        ),
        pytest.param(
            WELL,
            {"conflict": CONFLICT},
            (NO, "DeviceConflict"),
            (YES, "Applied"),
            (NO, "DeviceConflict"),
            id="conflict",
        ),
        pytest.param(
            [],
            {"empty": EMPTY},
            (YES, "Accepted"),
            (NO, "NoMatchingDevices"),
            (NO, "NoMatchingDevices"),
            id="no-card",
        ),
        pytest.param(
            PENDING, {"plans": True}, (YES, "Accepted"), (NO, "Planned"), (NO, "Planned"), id="plans"
        ),
        pytest.param(
            PENDING,
            {"plans": True, "conflict": CONFLICT},
            (NO, "DeviceConflict"),
            (NO, "Planned"),
            (NO, "DeviceConflict"),
            id="plans-a-conflict",
        ),
        pytest.param(
            WELL,
            {"dropped": Refusal(Reason.FIELDS_DROPPED, "x")},
            (YES, "Accepted"),
            (NO, "FieldsDropped"),
            (NO, "FieldsDropped"),
            id="fields-dropped",
        ),
    ],
)
def test_conditions(
    reports: list[NodeReport],
    standing: dict[str, Any],
    accepted: tuple[str, str],
    applied: tuple[str, str],
    ready: tuple[str, str],
) -> None:
    assert said(reports, **standing) == {"Accepted": accepted, "Applied": applied, "Ready": ready}


def test_the_message_names_nodes_by_reason() -> None:
    reports = [
        NodeReport("a", (bad(0, Reason.WAITING_FOR_CLAIMS, "waits for pod x/y"),)),
        NodeReport("b", (bad(0),)),
        NodeReport("c", (bad(0),)),
    ]

    ready = status.verdicts(reports, Standing())[2]

    assert ready.message == "WaitingForClaims on a: card 0: waits for pod x/y; RolloutPending on b, c: card 0"


def test_nothing_is_touched_is_said_only_where_it_is_true() -> None:
    """What is found when objects are written, say a namespace that is not there, stops no card."""
    refused = status.verdicts(WELL, Standing(refusal=REFUSED))[1]
    lacking = status.verdicts(WELL, Standing(lacking=LACKING))[1]

    assert "nothing is touched" in refused.message
    assert lacking.message == LACKING.message


def test_notes_go_with_accepted() -> None:
    accepted = status.verdicts(WELL, Standing(notes=("takes the name",)))[0]

    assert (accepted.status, accepted.message) == ("True", "takes the name")


def test_messages_stay_within_the_limit() -> None:
    long = [NodeReport(f"node-{i}", (bad(0, message="x" * 400),)) for i in range(9)]

    for verdict in status.verdicts(long, Standing(refusal=None)):
        assert len(verdict.message) <= status.MESSAGE_LIMIT
    refused = status.verdicts([], Standing(refusal=Refusal(Reason.INVALID_SELECTOR, "y" * 5000)))
    assert refused[2].message.endswith("…")


@pytest.mark.parametrize(
    ("verdict", "time"),
    [
        pytest.param(("True", Reason.READY, "8 cards"), "then", id="same"),
        pytest.param(("True", Reason.READY, "9 cards"), "then", id="other-message"),
        pytest.param(("False", Reason.ROLLOUT_PENDING, ""), "now", id="other-status"),
    ],
)
def test_the_time_of_transition_moves_with_the_status_only(
    verdict: tuple[Any, Reason, str], time: str
) -> None:
    before = [
        Condition(
            type="Ready",
            status="True",
            observed_generation=1,
            last_transition_time="then",
            reason="Ready",
            message="8 cards",
        )
    ]
    wanted = [status.Verdict(ConditionType.READY, *verdict)]

    (after,) = status.conditions(before, wanted, generation=2, now="now")

    assert (after.last_transition_time, after.observed_generation, after.message) == (time, 2, verdict[2])


def test_a_condition_that_is_new_begins_now() -> None:
    (made,) = status.conditions(
        [], [status.Verdict(ConditionType.READY, "True", Reason.READY, "")], generation=1, now="now"
    )

    assert made.last_transition_time == "now"


# Classes.


def test_a_class_counts_what_it_selects_and_who_is_on_an_older_revision() -> None:
    slices = [
        resource_slice(
            "n",
            mig("a", "p", "1g.10gb", "1"),
            mig("b", "p", "1g.10gb", "1"),
            mig("c", "p", "2g.20gb", "1"),
            mig("d", "p", "2g.20gb", "1"),
        )
    ]
    early = claim("early", ("n", "a"), class_name="small")
    late = claim("late", ("n", "b"), class_name="small")
    late["status"]["allocation"]["allocationTimestamp"] = "2026-03-01T00:00:00Z"
    others = [claim(f"other-{d}", ("n", d), class_name="big") for d in ("c", "d")]
    held = [h for c in (early, late, *others) for h in holdings(c)]
    counted = count_pool([s for b in slices if (s := PublishedSlice.of(b))], held)
    wish = DesiredClass(name="small", policy="p", profile="1g.10gb")

    found = status.class_status(wish, LiveClass(name="small", changed_at="2026-02-01T00:00:00Z"), [counted])

    assert (found.devices, found.allocated, found.free, found.claims_on_previous_revision) == (2, 2, 0, 1)
    assert status.class_status(wish, None, [counted]).claims_on_previous_revision == 0
    assert status.policy_counts("p", [counted]) == GroupCount(4, 4, 0)


def test_a_plan_of_many_nodes_stays_within_what_an_object_may_have() -> None:
    """The API server refuses a larger object as a whole, and then the policy would say nothing any more."""
    card = CardReport(0, "GPU-0", False, Reason.WAITING_FOR_CLAIMS, "ü" * 2000)
    reports = [NodeReport(f"n{i:04}", (card,), actions=("ü" * 600,) * 64) for i in range(600)]

    plans = status.node_plans(reports)

    assert len(plans) == 512
    size_bytes = sum(len(json.dumps(p.to_wire(), ensure_ascii=False).encode()) for p in plans)
    assert size_bytes < 1024 * 1024
    assert [len(p.actions or ()) for p in (plans[0], plans[-1])] == [64, 1]
    assert plans[-1].actions == [
        "64 cards not shown, because the status is full; select fewer nodes to see them"
    ]


def test_a_plan_that_fits_is_shown_whole() -> None:
    reports = [NodeReport(f"n{i}", (), actions=("card 0: becomes whole",) * 8) for i in range(3)]

    assert [len(p.actions or ()) for p in status.node_plans(reports)] == [8, 8, 8]
    assert status.node_plans([NodeReport("n", ())])[0].actions is None


@pytest.mark.parametrize(
    ("messages", "told"),
    [
        pytest.param(("x", "x"), "WaitingForClaims on a, b: card 0: x", id="the-same"),
        pytest.param(("x", "y"), "WaitingForClaims on a, b: a: card 0: x", id="whose-message-it-is"),
        pytest.param(("x",), "WaitingForClaims on a: card 0: x", id="one-node"),
        pytest.param(("", ""), "WaitingForClaims on a, b: card 0", id="nothing-but-cards"),
    ],
)
def test_the_message_of_one_node_is_not_taken_for_that_of_all(messages: tuple[str, ...], told: str) -> None:
    reports = [
        NodeReport(name, (bad(0, Reason.WAITING_FOR_CLAIMS, text),))
        for name, text in zip("ab", messages, strict=False)
    ]

    assert status.verdicts(reports, Standing())[2].message == told
