"""Plans of nodes follow from the copies and the verdicts, and are computed again only when those change."""

from typing import Any

import pytest

from gpupolicy.api.conditions import Reason
from gpupolicy.controller import judging
from gpupolicy.controller.judging import Case
from gpupolicy.controller.planning import Planning
from gpupolicy.controller.world import World
from gpupolicy.core import acceptance, policies, rollout
from gpupolicy.core.matching import MATCH, Judgement
from gpupolicy.core.refusals import Refusal

CARDS = [{"uuid": f"GPU-{i}", "index": i, "productName": "NVIDIA H100"} for i in range(2)]
REFUSED = Refusal(Reason.NOT_IMPLEMENTED, "no")


class Desk:
    """One node of two cards, and policies with verdicts."""

    def __init__(self) -> None:
        self.world = World()
        self.planning = Planning(self.world)
        self.version = 0
        self.world.labels["n"] = {}
        self.node()

    def node(self, assignments: Any = (), **status: Any) -> None:
        """Put the node as its agent reports it."""
        self.version += 1
        known = {
            "lastObservedTime": "2026-01-01T00:00:00Z",
            "conditions": [{"type": "Observed", "status": "True", "reason": "R", "lastTransitionTime": "t"}],
            "gpus": CARDS,
        }
        body = {
            "metadata": {"name": "n", "uid": "u", "resourceVersion": str(self.version)},
            "spec": {"gpus": [a.to_wire() for a in assignments]},
            "status": known | status,
        }
        self.world.put_node(self.world.read_node(body))

    def policy(self, name: str, refusal: Refusal | None = None, **spec: Any) -> Case:
        """Put a policy with the verdict on it."""
        self.version += 1
        meta = {
            "name": name,
            "uid": f"uid-{name}",
            "resourceVersion": str(self.version),
            "creationTimestamp": name,
        }
        self.world.put_policy({"metadata": meta, "spec": spec})
        entry = self.world.policies[name]
        view = policies.view(entry.policy)
        case = Case(entry, acceptance.Acceptance(refusal), view)
        if not case.acts:
            case = Case(entry, case.verdict, rollout.frozen(view))
        self.planning.cases[name] = case
        return case

    def owners(self) -> dict[str, str] | None:
        """Return who gets which card; None where nothing can be planned."""
        planned = self.planning.plan("n")
        return None if planned is None else {a.uuid: a.policy for a in planned.spec}


@pytest.fixture
def desk() -> Desk:
    """One node, no policy."""
    return Desk()


def test_nothing_is_planned_before_every_policy_was_judged(desk: Desk) -> None:
    """A policy that is not among the players would lose its cards."""
    desk.policy("a")
    desk.world.put_policy({"metadata": {"name": "b", "uid": "b", "resourceVersion": "1"}, "spec": {}})
    assert desk.owners() is None

    desk.policy("b")
    assert desk.owners() == {"GPU-0": "a", "GPU-1": "a"}


@pytest.mark.parametrize("missing", ["node", "labels", "report"])
def test_a_node_of_which_something_is_missing_has_no_plan(desk: Desk, missing: str) -> None:
    desk.policy("a")
    if missing == "node":
        desk.world.nodes.clear()
    elif missing == "labels":
        desk.world.labels.clear()
    else:
        desk.node(lastObservedTime=None)

    assert desk.planning.plan("n") is None


def test_a_plan_is_kept_until_something_that_goes_into_it_changes(desk: Desk) -> None:
    desk.policy("a")
    first = desk.planning.plan("n")
    assert desk.planning.plan("n") is first
    desk.policy("far", nodeSelector={"matchLabels": {"no": "where"}})
    assert desk.planning.plan("n").spec == first.spec

    desk.policy("a", priority=3)
    second = desk.planning.plan("n")
    assert second is not first
    desk.node(gpus=CARDS[:1])
    assert len(desk.planning.plan("n").spec) == 1
    desk.world.labels["n"] = {"x": "y"}
    assert desk.planning.plan("n") is not second


def test_the_cases_of_policies_that_are_gone_do_not_play(desk: Desk) -> None:
    desk.policy("a")
    desk.policy("b")
    assert desk.owners() == {"GPU-0": "a", "GPU-1": "a"}

    desk.world.drop_policy("a", "uid-a")

    assert desk.owners() == {"GPU-0": "b", "GPU-1": "b"}


def test_a_refused_policy_keeps_what_the_spec_says_and_no_more(desk: Desk) -> None:
    stands = rollout.assignment(desk.policy("a").entry.policy, "GPU-1")
    desk.policy("a", REFUSED)
    desk.policy("b")
    # The agent says that `a` shaped the other card once; without an assignment that is no claim.
    desk.node([stands], gpus=[CARDS[0] | {"policy": "a"}, CARDS[1]])

    assert desk.owners() == {"GPU-0": "b", "GPU-1": "a"}


def test_the_policy_that_shaped_a_card_has_it_before_others(desk: Desk) -> None:
    """The spec of the node got lost; nothing moves."""
    desk.policy("a", gpusPerNode=1)
    desk.policy("b", gpusPerNode=1)
    desk.node(gpus=[CARDS[0] | {"policy": "b"}, CARDS[1] | {"policy": "a"}])

    assert desk.owners() == {"GPU-0": "b", "GPU-1": "a"}


def test_a_policy_with_an_expression_takes_what_was_judged_a_match(desk: Desk) -> None:
    case = desk.policy("a", gpuSelector={"cel": "x"})
    desk.planning.cases["a"] = Case(case.entry, case.verdict, case.view, judgements={"GPU-1": MATCH})

    assert desk.owners() == {"GPU-1": "a"}


def test_a_policy_that_only_plans_is_previewed_beside_the_others(desk: Desk) -> None:
    desk.policy("b", gpusPerNode=1, priority=5)
    case = desk.policy("a", rollout={"mode": "Plan"})

    facts = desk.planning.facts("n", case, is_stale=False)

    assert facts is not None
    assert [a.uuid for a in facts.wanted] == ["GPU-1"]
    assert facts.actions == ("card 1: is whole already",)
    assert desk.owners() == {"GPU-0": "b"}


def test_a_policy_that_only_plans_takes_nothing_whatever_its_expression_says(desk: Desk) -> None:
    case = desk.policy("a", gpuSelector={"cel": "x"}, rollout={"mode": "Plan"})
    case = Case(case.entry, case.verdict, case.view, judgements={"GPU-0": MATCH, "GPU-1": MATCH})
    desk.planning.cases["a"] = case

    assert desk.owners() == {}
    facts = desk.planning.facts("n", case, is_stale=False)
    assert facts is not None
    assert [a.uuid for a in facts.wanted] == ["GPU-0", "GPU-1"]


def test_a_preview_is_kept_until_something_that_goes_into_it_changes(desk: Desk) -> None:
    """A policy that only plans is reported as often as one that acts, and a plan takes milliseconds."""
    desk.policy("b", gpusPerNode=1, priority=5)
    case = desk.policy("a", rollout={"mode": "Plan"})
    first = desk.planning.preview("n", case)
    assert desk.planning.preview("n", case) is first

    desk.policy("b", gpusPerNode=2, priority=5)
    second = desk.planning.preview("n", case)
    assert [len(p.assignment.share("a").granted) for p in (first, second)] == [1, 0]
    desk.planning.cases["a"] = case = desk.policy("a", priority=9, rollout={"mode": "Plan"})
    third = desk.planning.preview("n", case)
    assert len(third.assignment.share("a").granted) == 2
    desk.node(gpus=CARDS[:1])
    assert len(desk.planning.preview("n", case).assignment.share("a").granted) == 1


def test_a_preview_follows_what_the_expression_says(desk: Desk) -> None:
    case = desk.policy("a", gpuSelector={"cel": "x"}, rollout={"mode": "Plan"})

    def granted(**judgements: Judgement) -> tuple[str, ...]:
        found = {uuid.replace("_", "-"): judgement for uuid, judgement in judgements.items()}
        judged = Case(case.entry, case.verdict, case.view, judgements=found)
        return desk.planning.preview("n", judged).assignment.share("a").granted

    assert granted(GPU_0=MATCH) == ("GPU-0",)
    assert granted(GPU_1=MATCH) == ("GPU-1",)


def test_a_policy_that_is_gone_is_forgotten(desk: Desk) -> None:
    case = desk.policy("a", rollout={"mode": "Plan"})
    first = desk.planning.preview("n", case)

    assert desk.planning.drop("a") is case
    assert desk.planning.drop("a") is None
    assert desk.planning.cases == {}
    desk.planning.cases["a"] = case
    assert desk.planning.preview("n", case) is not first


def test_the_facts_of_a_policy_are_its_own(desk: Desk) -> None:
    desk.policy("a", gpusPerNode=1)
    case = desk.policy("b")

    facts = desk.planning.facts("n", case, is_stale=True)

    assert facts is not None
    assert [a.uuid for a in facts.wanted] == ["GPU-1"]
    assert facts.share.policy == "b"
    assert (facts.is_stale, facts.actions) == (True, None)


def test_an_unreadable_policy_is_frozen(desk: Desk) -> None:
    desk.policy("a")
    case = judging.unreadable(desk.world.policies["a"], REFUSED)

    assert not case.acts
    assert case.view == rollout.frozen(case.view)
