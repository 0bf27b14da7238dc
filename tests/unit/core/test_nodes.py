"""A node: cards to policies, and the plan of each card."""

from dataclasses import replace

import pytest

from gpupolicy.api.conditions import Reason
from gpupolicy.core.inventory import Health
from gpupolicy.core.labels import LabelRequirement, LabelSelector
from gpupolicy.core.layouts import StaticLayout, WholeCard
from gpupolicy.core.matching import Judgement
from gpupolicy.core.nodes import NodeView, plan_node
from gpupolicy.core.planner import CardPlan
from gpupolicy.core.policies import PolicyView
from gpupolicy.core.refusals import Refusal
from tests.unit.core.builders import after, card, instance

MIXED = StaticLayout.of([("3g.40gb", 1), ("2g.20gb", 1), ("1g.10gb", 2)])
INFER = PolicyView(
    name="infer", layout=MIXED, node_selector=LabelSelector((LabelRequirement("pool", "In", ("infer",)),))
)
TRAIN = PolicyView(
    name="train",
    layout=WholeCard(),
    node_selector=LabelSelector((LabelRequirement("pool", "In", ("train",)),)),
)


def node(*gpus, pool: str = "infer", **fields) -> NodeView:
    return NodeView(
        name="gpu-05", labels={"pool": pool}, gpus=gpus or tuple(card(index=n) for n in range(8)), **fields
    )


def test_the_stories_node() -> None:
    plan = plan_node(node(), [TRAIN, INFER])

    assert [(c.index, c.policy) for c in plan.cards] == [(n, "infer") for n in range(8)]
    created = [pair.profile for c in plan.cards_of("infer") for pair in c.outcome.now.create]
    assert {p: created.count(p) for p in created} == {"3g.40gb": 8, "2g.20gb": 8, "1g.10gb": 16}
    assert plan.cards_of("train") == ()


def test_one_card_does_not_hold_up_its_neighbours() -> None:
    gpus = (
        card(index=0, health=Health.UNHEALTHY),
        card(instance("7g.80gb@0", used_by="job"), index=1),
        card(index=2),
    )

    plan = plan_node(node(*gpus, owners={g.uuid: "infer" for g in gpus}), [INFER])

    assert [c.refusal.reason if c.refusal else None for c in plan.cards] == [
        Reason.GPU_UNHEALTHY,
        Reason.WAITING_FOR_CLAIMS,
        None,
    ]
    assert isinstance(plan.cards[2].outcome, CardPlan)
    assert len(plan.cards[2].outcome.now.create) == 4


def test_a_node_in_other_hands_is_not_written() -> None:
    blocked = Refusal(Reason.OWNERSHIP_CONFLICT, "the device plugin advertises 8 GPUs")
    gpu = card()
    done = after(gpu, plan_node(node(gpu), [INFER]).cards[0].outcome)

    plan = plan_node(node(gpu, replace(done, uuid="GPU-1", index=1), blocked=blocked), [INFER])

    assert plan.cards[0].outcome == blocked
    assert plan.cards[0].refusal == blocked
    assert plan.cards[1].is_applied


def test_cards_of_nobody_are_left_as_they_are() -> None:
    plan = plan_node(node(card(instance("1g.10gb@0")), pool="other"), [INFER, TRAIN])

    assert [(c.policy, c.layout, c.outcome, c.is_applied, c.refusal) for c in plan.cards] == [
        (None, None, None, False, None)
    ]


def test_the_plan_depends_on_what_is_given_only() -> None:
    gpus = tuple(card(instance("1g.10gb@0", used_by="job"), index=n) for n in range(3))

    forward = plan_node(node(*gpus), [INFER, TRAIN])

    assert repr(plan_node(node(*reversed(gpus)), [TRAIN, INFER])) == repr(forward)


def test_a_blocked_node_says_so_before_anything_else() -> None:
    blocked = Refusal(Reason.OWNERSHIP_CONFLICT, "the device plugin advertises 8 GPUs")
    impossible = replace(INFER, layout=StaticLayout.of([("3g.40gb", 3)]))

    plan = plan_node(node(card(), owners={"GPU-0": "infer"}, blocked=blocked), [impossible])

    assert plan.cards[0].outcome == blocked


@pytest.mark.parametrize(
    ("judgements", "policy"),
    [
        pytest.param({"infer": {"GPU-0": Judgement(matches=True)}}, "infer", id="yes"),
        pytest.param({"infer": {"GPU-0": Judgement(matches=False)}}, None, id="no"),
        pytest.param(None, None, id="not-judged"),
    ],
)
def test_expressions_decide_too(judgements, policy: str | None) -> None:
    assert plan_node(node(card()), [replace(INFER, cel="...")], judgements).cards[0].policy == policy


def test_applied_means_that_the_layout_stands() -> None:
    gpu = card()
    plan = plan_node(node(gpu), [replace(INFER, adopt=True)])

    assert not plan.cards[0].is_applied
    assert plan.cards[0].adopt
    assert plan_node(node(after(gpu, plan.cards[0].outcome)), [INFER]).cards[0].is_applied
    assert not plan_node(node(gpu), []).cards[0].adopt
