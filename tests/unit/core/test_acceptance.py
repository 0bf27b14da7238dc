"""The chain of checks: the first refusal wins, and a policy that selects nothing is told what exists."""

from dataclasses import replace
from typing import Any

import pytest

from gpupolicy.api.conditions import Reason
from gpupolicy.core import acceptance, classes
from gpupolicy.core.acceptance import NodeCards
from gpupolicy.core.classes import LiveClass
from gpupolicy.core.inventory import Gpu, MigState
from gpupolicy.core.matching import MATCH, Judgement
from tests.unit.core.builders import card
from tests.unit.core.wire import MIG, policy


def h100(index: int = 0, **fields: Any) -> Gpu:
    known = {"memory_bytes": 81559 * 2**20, "compute_capability": "9.0", "architecture": "Hopper"}
    return card(index=index, enabled=False, **known | fields)


def t4(index: int = 0) -> Gpu:
    return replace(
        h100(index),
        product_name="Tesla T4",
        memory_bytes=15 * 2**30,
        compute_capability="7.5",
        mig=MigState(),
    )


NODES = [
    NodeCards("train-1", {"pool": "train"}, (h100(0), h100(1))),
    NodeCards("infer-1", {"pool": "infer"}, (h100(2), t4(3))),
    NodeCards("new", {"pool": "new"}, (), has_agent=False),
]


def select(
    nodes: list[NodeCards] | None = None, judgements: dict[str, Judgement] | None = None, **spec: Any
) -> acceptance.Selection:
    return acceptance.select(policy(**spec), NODES if nodes is None else nodes, judgements or {})


# Before the cluster is looked at.


@pytest.mark.parametrize(
    ("spec", "problem", "reason"),
    [
        pytest.param({}, None, None, id="fine"),
        pytest.param({}, "spec.x: no such value", Reason.INVALID_POLICY, id="unreadable"),
        pytest.param({"onDelete": "Restore"}, None, Reason.NOT_IMPLEMENTED, id="not-served"),
        pytest.param(
            {"gpuSelector": {"cel": "a)"}},
            None,
            Reason.INVALID_SELECTOR,
            id="expression-that-closes-brackets",
        ),
        pytest.param(
            {"nodeSelector": {"matchExpressions": [{"key": "a", "operator": "In"}]}},
            None,
            Reason.INVALID_POLICY,
            id="malformed-node-selector",
        ),
    ],
)
def test_what_needs_no_cluster(spec: dict[str, Any], problem: str | None, reason: Reason | None) -> None:
    refusal = acceptance.readable(policy(**spec), problem)

    assert (refusal.reason if refusal else None) == reason


# Selection.


def test_an_empty_selector_selects_every_card() -> None:
    found = select()

    assert len(found.matched) == 4
    assert found.empty is None
    assert found.waiting == ("new",)


def test_typed_fields_are_anded_and_each_says_how_many_cards_it_drops() -> None:
    found = select(
        gpuSelector={"products": ["NVIDIA H100*"], "minMemory": "79Gi", "minComputeCapability": "9.0"}
    )

    assert [g.index for g in found.matched] == [0, 1, 2]
    assert found.clauses == ("products: drops 1", "minMemory: drops 1", "minComputeCapability: drops 1")


def test_a_card_that_lacks_the_fact_is_no_match_and_no_error() -> None:
    found = select(
        [NodeCards("n", {}, (h100(0, memory_bytes=None), h100(1)))], gpuSelector={"minMemory": "79Gi"}
    )

    assert [g.index for g in found.matched] == [1]


def test_an_own_expression_is_anded_and_what_was_not_judged_does_not_match() -> None:
    judgements = {"GPU-0": MATCH, "GPU-1": Judgement(matches=False)}

    found = select([NODES[0]], gpuSelector={"cel": "x"}, judgements=judgements)

    assert [g.index for g in found.matched] == [0]
    assert found.clauses == ("cel: drops 1",)


FAILS = Judgement(None, "the CEL expression fails: no such key: x")


def test_an_expression_that_fails_on_some_cards_is_a_note_and_takes_the_others() -> None:
    made = policy(gpuSelector={"cel": "x"})
    selection = acceptance.select(
        made, NODES, {"GPU-0": MATCH, "GPU-1": FAILS, "GPU-2": FAILS, "GPU-3": MATCH}
    )

    accepted = acceptance.judge(made, selection, classes.desired(made), {})

    assert [g.index for g in selection.matched] == [0, 3]
    assert accepted.refusal is None
    assert accepted.notes == (
        (
            "spec.gpuSelector.cel: on 2 cards, the CEL expression fails: no such key: x. None of them is taken; those "
            "that the policy has already are kept. Guard what may be missing: has(...) && ..., or .?name.orValue(...)"
        ),
    )


def test_an_expression_that_fails_on_every_card_is_told_as_such() -> None:
    empty = select(gpuSelector={"cel": "x"}, judgements={f"GPU-{i}": FAILS for i in range(4)}).empty

    assert empty is not None
    assert empty.reason is Reason.INVALID_SELECTOR
    assert "on 4 cards" in empty.message


def test_only_cards_that_the_typed_fields_mean_can_fail() -> None:
    found = select(
        gpuSelector={"cel": "x", "products": ["Tesla T4"]}, judgements={"GPU-0": FAILS, "GPU-3": MATCH}
    )

    assert (found.failure, [g.index for g in found.matched]) == ("", [3])


EMPTY: list[Any] = [
    pytest.param([], {}, Reason.NO_MATCHING_NODES, ["no node has an agent"], id="no-agents-at-all"),
    pytest.param(
        None,
        {"nodeSelector": {"matchLabels": {"pool": "typo"}}},
        Reason.NO_MATCHING_NODES,
        ["none of the 3 nodes", "pool: infer, new, train"],
        id="label-value-that-does-not-exist",
    ),
    pytest.param(
        None,
        {"nodeSelector": {"matchLabels": {"rack": "1"}}},
        Reason.NO_MATCHING_NODES,
        ["rack: no node has it"],
        id="label-that-does-not-exist",
    ),
    pytest.param(
        None,
        {"nodeSelector": {"matchLabels": {"pool": "new"}}},
        Reason.WAITING_FOR_AGENT,
        ["the agents of new have not reported"],
        id="agent-has-not-reported",
    ),
    pytest.param(
        None,
        {"gpuSelector": {"products": ["NVIDIA B300"]}},
        Reason.NO_MATCHING_DEVICES,
        [
            "none of the 4 cards on 2 nodes (products: drops 4). ",
            "NVIDIA H100 80GB HBM3",
            "Tesla T4",
            "81559Mi",
            "7.5, 9.0",
        ],
        id="product-that-does-not-exist",
    ),
    pytest.param(
        None,
        {
            "gpuSelector": {"minMemory": "1Gi", "products": ["A*"]},
            "nodeSelector": {"matchLabels": {"pool": "infer"}},
        },
        Reason.NO_MATCHING_DEVICES,
        ["on 1 node (", "products: drops ", "minMemory: drops 0"],
        id="which-field-drops-them",
    ),
]


def test_without_any_agent_there_are_no_values_to_list() -> None:
    empty = select([], nodeSelector={"matchLabels": {"pool": "a"}}).empty

    assert empty is not None
    assert empty.message == "no node has an agent yet; agents run on nodes with an NVIDIA GPU"


@pytest.mark.parametrize(("nodes", "spec", "reason", "texts"), EMPTY)
def test_a_selector_that_selects_nothing_says_what_exists(
    nodes: list[NodeCards] | None, spec: dict[str, Any], reason: Reason, texts: list[str]
) -> None:
    empty = select(nodes, **spec).empty

    assert empty is not None
    assert empty.reason is reason
    assert [t for t in texts if t not in empty.message] == []


# Names and layouts.


def judge(
    nodes: list[NodeCards], live: dict[str, LiveClass] | None = None, **spec: Any
) -> acceptance.Acceptance:
    made = policy(**spec)
    return acceptance.judge(made, acceptance.select(made, nodes, {}), classes.desired(made), live or {})


IMPOSSIBLE = {
    "strategy": "MIG",
    "mig": {"layout": [{"profile": "3g.40gb", "count": 2}, {"profile": "1g.10gb", "count": 1}]},
}
FOREIGN = {"strategy": "MIG", "mig": {"layout": [{"profile": "1g.5gb", "count": 7}]}}


@pytest.mark.parametrize(
    ("sharing", "gpus", "reason", "texts"),
    [
        pytest.param(MIG, (h100(),), None, [], id="fits"),
        pytest.param(
            IMPOSSIBLE,
            (h100(),),
            Reason.INVALID_LAYOUT,
            ["spec.sharing.mig.layout", "would fit with"],
            id="never-fits",
        ),
        pytest.param(
            FOREIGN,
            (h100(),),
            Reason.INVALID_LAYOUT,
            ['no profile "1g.5gb"', "1g.10gb (up to 7)"],
            id="profile-of-another-card",
        ),
        pytest.param(MIG, (t4(),), Reason.MIG_UNSUPPORTED, ["Tesla T4", "no MIG"], id="card-without-mig"),
        pytest.param(MIG, (t4(0), h100(1)), None, [], id="fits-on-one-of-two"),
        pytest.param(MIG, (), None, [], id="no-card-to-judge"),
    ],
)
def test_a_layout_is_refused_where_no_selected_card_allows_it(
    sharing: dict[str, Any], gpus: tuple[Gpu, ...], reason: Reason | None, texts: list[str]
) -> None:
    refusal = judge([NodeCards("n", {}, gpus)], sharing=sharing).refusal

    assert (refusal.reason if refusal else None) == reason
    assert [t for t in texts if refusal is None or t not in refusal.message] == []


def test_a_taken_name_comes_before_an_impossible_layout() -> None:
    live = {"p-3g-40gb": LiveClass(name="p-3g-40gb")}

    refusal = judge([NodeCards("n", {}, (h100(),))], live, sharing=IMPOSSIBLE).refusal

    assert refusal is not None
    assert refusal.reason is Reason.RESOURCE_NAME_CONFLICT


def test_a_name_that_is_taken_over_is_a_note_and_a_loser() -> None:
    offers = [{"deviceClassName": "c", "extendedResourceName": "nvidia.com/gpu", "takeOver": True}]
    live = {"other": LiveClass(name="other", extended_resource_name="nvidia.com/gpu")}

    accepted = judge([NodeCards("n", {}, (h100(),))], live, offers=offers)

    assert accepted.refusal is None
    assert accepted.losers == {"other": "c"}
    assert "other" in accepted.notes[0]
