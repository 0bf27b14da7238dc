"""What deserves a second look (R32, R43): when it is said, in which words, and when there is nothing left to say."""

from typing import Any

import pytest

from gpupolicy.api.conditions import Reason
from gpupolicy.api.policy import GpuPolicy
from gpupolicy.core import classes, policies, review, rollout
from gpupolicy.core.nodes import NodeView, plan_node
from gpupolicy.core.observation import ObservedCard, ObservedNode
from gpupolicy.core.refusals import Refusal
from gpupolicy.core.review import CardShape
from gpupolicy.core.selection import Read, Reads
from gpupolicy.core.tally import PoolTally
from tests.unit.core.builders import card
from tests.unit.core.wire import MIG, policy

DRIVER_ONLY = 'device.driver == "gpu.gpupolicy.dev"'
NOTHING = Reads(())
TYPE = Reads((Read("attributes", "gpu.gpupolicy.dev", "type"),))
PRODUCT = Reads((Read("attributes", "gpu.gpupolicy.dev", "productName"),))
SHAPES = (
    CardShape("GPU-0", "infer", is_whole=False),
    CardShape("GPU-1", "train", is_whole=True),
    CardShape("GPU-2", "train", is_whole=True),
    CardShape("GPU-3", None, is_whole=True),
    CardShape("GPU-4", "other", is_whole=False),
)
EVERY = {shape.uuid for shape in SHAPES}


def broad(
    reads: Reads = NOTHING, matching: Any = EVERY, *, cel: str | None = DRIVER_ONLY, **spec: Any
) -> str:
    """What is said of policy `infer`."""
    selector = {"gpuSelector": {"cel": cel}} if cel else {}
    found = review.broad_selector(policy("infer", **selector, **spec), reads, SHAPES, matching)
    assert found is None or found.reason is Reason.SELECTOR_TOO_BROAD
    return found.message if found else ""


def test_a_mig_policy_with_the_driver_only_also_matches_whole_cards() -> None:
    text = broad(sharing=MIG)
    assert "of 5 cards that it matches" in text
    assert "also matches 3 whole cards (1 of no policy, 2 of policy train)" in text
    assert "productName" in text


def test_an_exclusive_policy_also_matches_cards_that_are_cut() -> None:
    shapes = (*SHAPES[1:], CardShape("GPU-0", "mine", is_whole=True))
    found = review.broad_selector(
        policy("mine", gpuSelector={"cel": DRIVER_ONLY}), TYPE, shapes, {s.uuid for s in shapes}
    )
    assert found is not None
    assert "also matches 1 card with a MIG layout (1 of policy other)" in found.message


@pytest.mark.parametrize(
    ("reads", "matching", "cel"),
    [
        pytest.param(PRODUCT, EVERY, DRIVER_ONLY, id="reads-what-cards-are"),
        pytest.param(Reads((), everything=True), EVERY, DRIVER_ONLY, id="reads-anything"),
        pytest.param(NOTHING, {"GPU-0", "GPU-4"}, DRIVER_ONLY, id="only-what-is-meant"),
        pytest.param(NOTHING, set(), DRIVER_ONLY, id="nothing"),
        pytest.param(NOTHING, EVERY, None, id="no-expression"),
    ],
)
def test_nothing_is_said_of_a_selector_that_tells_cards_apart(reads: Reads, matching: Any, cel: Any) -> None:
    assert broad(reads, matching, cel=cel, sharing=MIG) == ""


# Overlaps of priority: two policies on nodes of four cards.


def facts(me: GpuPolicy, *others: GpuPolicy, nodes: int = 1) -> list[rollout.NodeFacts]:
    made = []
    for number in range(nodes):
        gpus = tuple(card(index=i, enabled=False) for i in range(4))
        observed = ObservedNode(name=f"n{number}", cards={g.uuid: ObservedCard(g) for g in gpus})
        planned = plan_node(
            NodeView(observed.name, {}, observed.inventory.gpus, {}), map(policies.view, (me, *others))
        )
        made.append(
            rollout.NodeFacts(
                node=observed,
                wanted=(),
                share=planned.assignment.share(me.metadata.name),
                pool=PoolTally(),
                granted={s.policy: len(s.granted) for s in planned.assignment.shares},
            )
        )
    return made


def quotas(*entries: tuple[str, str, int]) -> dict[str, Any]:
    return {
        "quotas": [{"namespace": n, "deviceClassName": c, "devices": d} for n, c, d in entries],
    }


def lower(me: GpuPolicy, *others: GpuPolicy, nodes: int = 1) -> str:
    found = review.lower_policy(me, facts(me, *others, nodes=nodes), classes.desired(me))
    assert {f.reason for f in found} <= {Reason.NO_PREEMPTION}
    return ". ".join(f.message for f in found)


def higher(me: GpuPolicy, other: GpuPolicy, *, known: bool = True) -> str:
    bodies = {other.metadata.name: (other, classes.desired(other))} if known else {}
    found = review.higher_policy(me.metadata.name, facts(me, other), bodies)
    assert {f.reason for f in found} <= {Reason.NO_PREEMPTION}
    return ". ".join(f.message for f in found)


INFER = policy("infer", priority=100, gpusPerNode=3)


def test_both_are_told_and_the_lower_gets_a_number() -> None:
    burst = policy("burst")
    text = lower(burst, INFER, nodes=2)
    assert "policy infer (priority 100) takes cards 0-2 on n0, cards 0-2 on n1" in text
    assert "no PriorityClass preempts" in text
    assert text.endswith("spec.access.quotas: [{namespace: NAMESPACE, deviceClassName: burst, devices: 2}]")
    assert higher(INFER, burst).startswith("takes cards 0-2 on n0 from policy burst. Pods that hold")


def test_the_number_counts_the_devices_of_the_layout() -> None:
    text = lower(policy("burst", sharing=MIG), INFER)
    assert "deviceClassName: burst-3g-40gb, devices: 1}" in text
    assert "deviceClassName: burst-1g-10gb, devices: 2}" in text


def test_where_nothing_stays_no_quota_helps() -> None:
    text = lower(policy("burst"), policy("infer", priority=100))
    assert "No card stays for burst" in text
    assert "quotas" not in text


@pytest.mark.parametrize(
    ("spec", "settled"),
    [
        pytest.param({"access": quotas(("a", "burst", 1))}, True, id="fits"),
        pytest.param({"access": quotas(("a", "burst", 2))}, False, id="too-many"),
        pytest.param({"access": quotas(("a", "burst", 1), ("b", "burst", 1))}, False, id="too-many-together"),
        pytest.param({"access": quotas(("a", "burst", 1), ("b", "burst", 0))}, True, id="fit-together"),
        pytest.param({"access": {}}, False, id="none"),
    ],
)
def test_quotas_that_fit_settle_it_for_both(spec: Any, settled: bool) -> None:
    burst = policy("burst", **spec)
    assert (lower(burst, INFER) == "") is settled
    assert (higher(INFER, burst) == "") is settled


def test_every_class_needs_one() -> None:
    names = [w.name for w in classes.desired(policy("burst", sharing=MIG))]
    some = policy("burst", sharing=MIG, access=quotas(*(("a", n, 1) for n in names[:2])))
    every = policy("burst", sharing=MIG, access=quotas(*(("a", n, 1) for n in names)))
    assert lower(some, INFER) != ""
    assert lower(every, INFER) == ""


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(policy("infer", created="2025-01-01T00:00:00Z"), id="same-priority"),
        pytest.param(policy("infer", priority=100, gpuSelector={"products": ["no*"]}), id="no-overlap"),
    ],
)
def test_nothing_is_said_without_an_overlap_of_priorities(other: GpuPolicy) -> None:
    burst = policy("burst", gpusPerNode=1)
    assert lower(burst, other) == ""
    assert higher(other, burst) == ""


def test_a_lower_policy_that_has_enough_is_no_overlap() -> None:
    assert lower(policy("burst", gpusPerNode=1), INFER) == ""


def test_a_policy_that_is_not_known_is_not_told_of() -> None:
    assert higher(INFER, policy("burst"), known=False) == ""


# The condition.

FINDINGS = (Refusal(Reason.SELECTOR_TOO_BROAD, "one"), Refusal(Reason.NO_PREEMPTION, "two"))


@pytest.mark.parametrize(
    ("findings", "refusal", "said"),
    [
        pytest.param((), None, ("True", "Reviewed", ""), id="well"),
        pytest.param(FINDINGS, None, ("False", "SelectorTooBroad", "one. two"), id="findings"),
        pytest.param(
            FINDINGS,
            Refusal(Reason.INVALID_LAYOUT, "x"),
            ("Unknown", "InvalidLayout", "the policy is not accepted"),
            id="refused",
        ),
    ],
)
def test_what_the_condition_says(findings: Any, refusal: Any, said: Any) -> None:
    found = review.verdict(findings, refusal)
    assert (found.type, (found.status, found.reason, found.message)) == ("Reviewed", said)
