"""From a node's plan to its spec, its report and its words; what frozen policies keep."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpupolicy.api.conditions import Reason
from gpupolicy.api.node import GpuAssignment
from gpupolicy.api.policy import GpuPolicy
from gpupolicy.core import policies, rollout, status
from gpupolicy.core.inventory import Gpu
from gpupolicy.core.nodes import NodePlan, NodeView, plan_node
from gpupolicy.core.observation import ObservedCard, ObservedNode
from gpupolicy.core.policies import PolicyView
from gpupolicy.core.refusals import Refusal
from gpupolicy.core.status import CardReport, NodeReport
from gpupolicy.core.tally import DeviceGroup, GroupCount, PoolTally
from tests.unit.core.builders import H100, card, instance
from tests.unit.core.wire import MIG, policy

SEVEN = {"strategy": "MIG", "mig": {"layout": [{"profile": "1g.10gb", "count": 7}]}}


def cards(count: int = 4, **fields: Any) -> tuple[Gpu, ...]:
    return tuple(card(index=i, enabled=False, **fields) for i in range(count))


def node(gpus: Sequence[Gpu] = (), assignments: Sequence[GpuAssignment] = (), **fields: Any) -> ObservedNode:
    return ObservedNode(
        **{
            "name": "n",
            "uid": "u",
            "sees_all": True,
            "last_observed_time": "2026-01-01T00:00:00Z",
            "assignments": {a.uuid: a for a in assignments},
            "cards": {g.uuid: ObservedCard(g) for g in gpus},
            **fields,
        }
    )


def plan(observed: ObservedNode, *views: PolicyView) -> NodePlan:
    owners = {uuid: a.policy for uuid, a in observed.assignments.items()}
    return plan_node(NodeView("n", {}, observed.inventory.gpus, owners), views)


def spec(
    observed: ObservedNode, acting: Sequence[GpuPolicy], frozen: Sequence[GpuPolicy] = ()
) -> dict[str, GpuAssignment]:
    views = [*map(policies.view, acting), *(rollout.frozen(policies.view(p)) for p in frozen)]
    by_name = {p.metadata.name: p for p in acting}
    existing = [p.metadata.name for p in (*acting, *frozen)]
    return {a.uuid: a for a in rollout.node_spec(observed, plan(observed, *views), by_name, existing)}


def owners(found: Mapping[str, GpuAssignment]) -> dict[str, str]:
    return {uuid: a.policy for uuid, a in found.items()}


# Assignments and their revision.


def test_an_assignment_says_what_the_policy_says() -> None:
    made = rollout.assignment(policy("p", sharing=MIG), "GPU-0")

    assert (made.uuid, made.policy, made.strategy) == ("GPU-0", "p", "MIG")
    assert made.mig is not None
    assert [(e.profile, e.count) for e in made.mig.layout] == [("1g.10gb", 2), ("2g.20gb", 1), ("3g.40gb", 1)]


@pytest.mark.parametrize(
    ("name", "spec", "same"),
    [
        pytest.param("p", {"sharing": MIG}, True, id="same"),
        pytest.param(
            "p",
            {"sharing": {"strategy": "MIG", "mig": {"layout": MIG["mig"]["layout"][::-1]}}},
            True,
            id="other-order",
        ),
        pytest.param("p", {"sharing": MIG, "priority": 9, "gpusPerNode": 1}, True, id="not-about-the-card"),
        pytest.param("p", {"sharing": SEVEN}, False, id="other-layout"),
        pytest.param("p", {}, False, id="whole"),
        pytest.param("q", {"sharing": MIG}, False, id="other-policy"),
    ],
)
def test_a_revision_is_what_is_wanted_of_a_card(name: str, spec: dict[str, Any], same: bool) -> None:
    first = rollout.assignment(policy("p", sharing=MIG), "GPU-0")
    second = rollout.assignment(policy(name, **spec), "GPU-1")

    assert (first.revision == second.revision) is same


# The spec of a node.


def test_an_acting_policy_gets_its_cards() -> None:
    assert owners(spec(node(cards()), [policy("p", gpusPerNode=3)])) == {f"GPU-{i}": "p" for i in range(3)}


def test_a_frozen_policy_keeps_what_it_has_with_the_layout_that_stands() -> None:
    """It was edited to something that is refused: the edit touches nothing."""
    stands = rollout.assignment(policy("p", sharing=SEVEN), "GPU-1")

    found = spec(
        node(cards(), [stands]), [policy("q", created="2026-02-01T00:00:00Z")], [policy("p", sharing=MIG)]
    )

    assert found["GPU-1"] == stands
    assert owners(found) == {"GPU-0": "q", "GPU-1": "p", "GPU-2": "q", "GPU-3": "q"}


def test_a_frozen_policy_takes_nothing() -> None:
    assert spec(node(cards()), [], [policy("p")]) == {}


def test_a_frozen_policy_loses_to_a_higher_one_only() -> None:
    stands = rollout.assignment(policy("p", sharing=SEVEN), "GPU-0")

    younger = spec(node(cards(1), [stands]), [policy("q", created="2026-02-01T00:00:00Z")], [policy("p")])
    higher = spec(node(cards(1), [stands]), [policy("q", priority=1)], [policy("p")])

    assert owners(younger) == {"GPU-0": "p"}
    assert owners(higher) == {"GPU-0": "q"}


def test_the_cards_of_a_policy_that_is_gone_are_let_go() -> None:
    stands = rollout.assignment(policy("gone"), "GPU-0")

    assert spec(node(cards(1), [stands]), []) == {}


@pytest.mark.parametrize(
    ("sees_all", "exists", "kept"),
    [
        pytest.param(True, True, False, id="agent-sees-all"),
        pytest.param(False, True, True, id="agent-is-blind"),
        pytest.param(False, False, False, id="blind-and-policy-gone"),
    ],
)
def test_a_card_that_is_not_shown_is_kept_while_the_agent_is_blind(
    sees_all: bool, exists: bool, kept: bool
) -> None:
    stands = rollout.assignment(policy("p"), "GPU-lost")

    found = spec(node((), [stands], sees_all=sees_all), [policy("p")] if exists else [])

    assert ("GPU-lost" in found) is kept


@given(
    st.lists(st.tuples(st.sampled_from(["p", "q", "r"]), st.booleans()), unique_by=lambda x: x[0]),
    st.dictionaries(st.integers(0, 3), st.sampled_from(["p", "q", "gone"])),
)
def test_the_spec_is_a_fixed_point(players: list[tuple[str, bool]], had: dict[int, str]) -> None:
    """Deciding on the result of a decision changes nothing, whoever is frozen; nobody gets what nobody may have."""
    standing = [rollout.assignment(policy(name), f"GPU-{i}") for i, name in had.items()]
    acting = [policy(name) for name, acts in players if acts]
    frozen = [policy(name, sharing=SEVEN) for name, acts in players if not acts]

    once = spec(node(cards(), standing), acting, frozen)
    twice = spec(node(cards(), list(once.values())), acting, frozen)

    assert twice == once
    assert set(owners(once).values()) <= {name for name, _ in players}
    before = {f"GPU-{i}": name for i, name in had.items()}
    for name, acts in players:
        if not acts:
            assert {u for u, o in owners(once).items() if o == name} <= {
                u for u, o in before.items() if o == name
            }


# In words.


def test_changes_of_hands_are_told_by_pair() -> None:
    gpus = cards(4)
    before = [rollout.assignment(policy("p"), f"GPU-{i}") for i in (0, 1)]
    before.append(rollout.assignment(policy("p"), "GPU-lost"))
    after = [rollout.assignment(policy("q"), "GPU-0"), rollout.assignment(policy("q"), "GPU-3")]

    lines = rollout.changes_of_hands(node(gpus, before), after)

    assert lines == (
        "card 0: p -> q",
        "card 1: p -> no policy",
        "card 3: no policy -> q",
        "GPU-lost of policy p: no longer there",
    )


def test_no_change_of_hands_is_no_line() -> None:
    stands = rollout.assignment(policy("p", sharing=SEVEN), "GPU-0")

    assert (
        rollout.changes_of_hands(node(cards(1), [stands]), [rollout.assignment(policy("p"), "GPU-0")]) == ()
    )


def test_the_actions_of_a_plan_name_what_stays_goes_and_comes() -> None:
    gpus = (
        card(instance("3g.40gb@0"), instance("1g.10gb@6", used_by="job"), index=0),
        card(index=1, enabled=False),
        card(instance("1g.10gb@0", used_by="job"), instance("7g.80gb@0", profiles=H100), index=2),
    )
    wanted = policy("p", sharing={"strategy": "MIG", "mig": {"layout": [{"profile": "1g.10gb", "count": 7}]}})

    lines = rollout.actions(plan(node(gpus), policies.view(wanted)), "p")

    assert lines[0].startswith(
        "card 0: becomes 7x1g.10gb; keep 1g.10gb@6:1; destroy 3g.40gb@0:4; create 1g.10gb@0:1"
    )
    assert "MIG mode on" in lines[1]


def test_an_applied_card_says_so() -> None:
    lines = rollout.actions(plan(node(cards(1)), policies.view(policy("p"))), "p")

    assert lines == ("card 0: is whole already",)


# Devices to expect.


def test_a_whole_card_shows_one_device() -> None:
    assert rollout.expected_devices(rollout.assignment(policy("p"), "GPU-0"), card()) == {
        DeviceGroup("p", "gpu"): 1
    }


def test_instances_are_expected_under_the_names_of_the_driver() -> None:
    drifted = tuple(replace(p, name={"1g.10gb": "1g.23gb"}.get(p.name, p.name)) for p in H100)
    layout = [{"profile": "1g.24gb", "count": 3}, {"profile": "3g.40gb", "count": 1}]
    wanted = rollout.assignment(policy("p", sharing={"strategy": "MIG", "mig": {"layout": layout}}), "GPU-0")

    found = rollout.expected_devices(wanted, card(profiles=drifted))

    assert found == {DeviceGroup("p", "mig", "1g.23gb"): 3, DeviceGroup("p", "mig", "3g.40gb"): 1}


def test_spellings_collect_the_names_of_all_cards() -> None:
    drifted = tuple(replace(p, name={"1g.10gb": "1g.23gb"}.get(p.name, p.name)) for p in H100)
    again = tuple(replace(p, name={"1g.10gb": "1g.24gb"}.get(p.name, p.name)) for p in H100)
    wanted = policy("p", sharing={"strategy": "MIG", "mig": {"layout": [{"profile": "1g.24gb", "count": 1}]}})

    found = rollout.spellings(wanted, [card(profiles=drifted), card(profiles=again), card(profiles=H100)])

    assert found == {"1g.24gb": {"1g.23gb", "1g.24gb"}}
    assert rollout.spellings(policy("p"), [card()]) == {}


# Reports and conflicts.

OLD, YOUNG = "2026-01-01T00:00:00Z", "2026-02-01T00:00:00Z"


def facts(observed: ObservedNode, me: GpuPolicy, *others: GpuPolicy, **fields: Any) -> rollout.NodeFacts:
    planned = plan(observed, *map(policies.view, (me, *others)))
    acting = {p.metadata.name: p for p in (me, *others)}
    found = rollout.node_spec(observed, planned, acting, list(acting))
    mine = tuple(a for a in found if a.policy == me.metadata.name)
    return rollout.NodeFacts(
        **{
            "node": observed,
            "wanted": mine,
            "share": planned.assignment.share(me.metadata.name),
            "pool": PoolTally(),
            **fields,
        }
    )


def test_a_report_has_the_cards_that_a_policy_has_and_those_that_it_misses() -> None:
    sick = replace(card(index=2, enabled=False), health="Unhealthy", health_message="XID 79")
    gpus = (*cards(2), sick)

    report = rollout.node_report("p", facts(node(gpus), policy("p")))

    assert [(c.index, c.reason) for c in report.cards] == [
        (0, Reason.ROLLOUT_PENDING),
        (1, Reason.ROLLOUT_PENDING),
        (2, Reason.GPU_UNHEALTHY),
    ]


@pytest.mark.parametrize(
    ("limit", "taken", "selected"),
    [
        pytest.param(None, 4, 4, id="every-card-is-meant"),
        pytest.param(1, 4, 1, id="any-of-four-would-do"),
        pytest.param(3, 3, 3, id="one-is-had-and-two-of-three-are-missed"),
        pytest.param(3, 2, 3, id="exactly-the-missed-one"),
        pytest.param(2, 2, 2, id="nothing-is-missed"),
    ],
)
def test_a_report_counts_no_more_cards_than_the_policy_asks_for(
    limit: int | None, taken: int, selected: int
) -> None:
    """R44: with gpusPerNode it misses any one of the cards that an older policy has, not all of them."""
    per_node = {} if limit is None else {"gpusPerNode": limit}
    old = policy("old", created=OLD, gpusPerNode=taken)
    young = policy("young", created=YOUNG, **per_node)

    report = rollout.node_report("young", facts(node(cards(4)), young, old))

    assert report.selected == selected
    assert status.node_plan(report).selected == selected
    assert status.fractions([report]) == ("0/1", f"0/{selected}")


def test_a_card_is_applied_once_the_agent_says_so_and_the_slices_show_it() -> None:
    me = policy("p", sharing=SEVEN)
    gpu = card(index=0)
    revision = rollout.assignment(me, gpu.uuid).revision
    observed = node(cards={gpu.uuid: ObservedCard(gpu, "p", revision, "Applied")})
    shown = PoolTally(cards={gpu.uuid: {DeviceGroup("p", "mig", "1g.10gb"): 7}})

    done = rollout.node_report("p", facts(observed, me, pool=shown))
    unseen = rollout.node_report("p", facts(observed, me))

    assert [c.is_ready for c in done.cards] == [True]
    assert [c.reason for c in unseen.cards] == [Reason.WAITING_FOR_SLICES]
    assert done.trouble is None


def test_a_node_without_cards_of_a_policy_may_be_silent() -> None:
    report = rollout.node_report("p", facts(node(), policy("p"), is_stale=True))

    assert report.trouble is None


def test_a_node_whose_agent_spoke_after_the_policy_was_judged_is_reported_once() -> None:
    """The API server refuses a status with two lines of one node, and with it everything else that it says."""
    here = CardReport(0, "GPU-0", is_applied=True, reason=Reason.APPLIED)
    reports = [NodeReport("spoke", (here,)), NodeReport("known", (here,), counts=GroupCount(1, 0, 1))]

    found = rollout.with_silent(reports, ["spoke", "waits"])

    assert [(r.node, r.is_silent, len(r.cards)) for r in found] == [
        ("known", False, 1),
        ("spoke", False, 1),
        ("waits", True, 0),
    ]


def test_an_agent_that_is_silent_is_a_trouble_of_its_node() -> None:
    report = rollout.node_report("p", facts(node(cards(1)), policy("p"), is_stale=True))

    assert report.trouble is not None
    assert report.trouble.reason is Reason.STALE
    assert "2026-01-01T00:00:00Z" in report.trouble.message


@pytest.mark.parametrize(
    ("card_says", "stale", "told"),
    [
        pytest.param("Applied", False, Reason.OWNERSHIP_CONFLICT, id="devices-withdrawn"),
        pytest.param("WaitingForClaims", False, None, id="the-card-has-a-reason-of-its-own"),
        pytest.param("Applied", True, Reason.STALE, id="an-old-word-explains-nothing"),
    ],
)
def test_a_trouble_of_the_node_explains_what_its_cards_cannot(
    card_says: str, stale: bool, told: Reason | None
) -> None:
    me = policy("p")
    gpu = card(index=0, enabled=False)
    revision = rollout.assignment(me, gpu.uuid).revision if card_says == "Applied" else "r0"
    plugin = Refusal(Reason.OWNERSHIP_CONFLICT, "a device plugin advertises nvidia.com/gpu: 8 on this node")
    observed = node(cards={gpu.uuid: ObservedCard(gpu, "p", revision, card_says)}, trouble=plugin)

    report = rollout.node_report("p", facts(observed, me, is_stale=stale))

    assert (report.trouble and report.trouble.reason) == told
    if told is Reason.OWNERSHIP_CONFLICT:
        assert report.problem == plugin


def test_a_trouble_of_the_node_takes_nothing_from_cards_that_can_be_claimed() -> None:
    """An agent that starts says for a moment that it is not registered; what stands can be claimed all the same."""
    me = policy("p")
    gpu = card(index=0, enabled=False)
    revision = rollout.assignment(me, gpu.uuid).revision
    observed = node(
        cards={gpu.uuid: ObservedCard(gpu, "p", revision, "Applied")},
        trouble=Refusal(Reason.PLUGIN_NOT_REGISTERED, "not registered yet"),
    )
    shown = PoolTally(cards={gpu.uuid: {DeviceGroup("p", "gpu"): 1}})

    assert rollout.node_report("p", facts(observed, me, pool=shown)).problem is None


def test_nodes_of_which_the_same_is_to_be_said_share_a_line() -> None:
    low, high = policy("low"), policy("high", priority=5)
    seen = [
        replace(node(cards(2)), name="a"),
        replace(node(cards(2)), name="b"),
        replace(node(cards(1)), name="c"),
    ]

    refusal, _ = rollout.conflict([facts(n, low, high) for n in seen])
    _, notes = rollout.conflict([facts(n, high, low) for n in seen])

    assert refusal is not None
    assert refusal.message.startswith("on a, b, cards 0-1 belong to policy high")
    assert ". on c, card 0 belongs to policy high" in refusal.message
    assert [n.split(", takes")[0] for n in notes] == ["on a, b", "on c"]


def test_of_equal_priority_the_younger_is_in_conflict_and_the_older_is_told() -> None:
    old, young = policy("old", created=OLD), policy("young", created=YOUNG)
    observed = node(cards(2))

    refusal, _ = rollout.conflict([facts(observed, young, old)])
    none, notes = rollout.conflict([facts(observed, old, young)])

    assert refusal is not None
    assert refusal.reason is Reason.DEVICE_CONFLICT
    assert "on n, cards 0-1 belong to policy old, older" in refusal.message
    assert none is None
    assert notes == ("on n, keeps cards 0-1, which the younger policy young also selects",)
    report = rollout.node_report("young", facts(observed, young, old))
    assert [(c.index, c.reason) for c in report.cards] == [
        (0, Reason.DEVICE_CONFLICT),
        (1, Reason.DEVICE_CONFLICT),
    ]


def test_a_conflict_over_some_cards_is_one_although_others_are_had() -> None:
    old, young = policy("old", created=OLD, gpusPerNode=1), policy("young", created=YOUNG)

    refusal, _ = rollout.conflict([facts(node(cards(2)), young, old)])

    assert refusal is not None
    assert "card 0 belongs to policy old" in refusal.message


def test_a_higher_priority_takes_some_cards_with_a_note_and_all_with_a_conflict() -> None:
    low = policy("low")
    some, everything = policy("high", priority=5, gpusPerNode=1), policy("high", priority=5)
    observed = node(cards(2))

    none, notes = rollout.conflict([facts(observed, low, some)])
    refusal, _ = rollout.conflict([facts(observed, low, everything)])
    _, winner_notes = rollout.conflict([facts(observed, some, low)])

    assert none is None
    assert "card 0 belongs to policy high, with the higher priority 5" in notes[0]
    assert refusal is not None
    assert "policy high" in refusal.message
    assert "takes card 0 from policy low of lower priority 0" in winner_notes[0]
    assert rollout.node_report("low", facts(observed, low, everything)).cards == ()
