"""Composes the status of a policy from its case, the facts of its nodes, and the counts."""

import datetime as dt
from collections.abc import Iterator, Mapping, Sequence

from gpupolicy.api.conditions import Reason
from gpupolicy.api.policy import Example, GpuPolicyStatus
from gpupolicy.controller.judging import Case
from gpupolicy.controller.world import World
from gpupolicy.core import classes, examples, kueue, render, review, rollout, status
from gpupolicy.core.refusals import Refusal

EXAMPLE_LIMIT = 8

Dropped = Mapping[str, tuple[str, tuple[str, ...]]]
"""Class to its revision and those of its fields that the API server does not keep."""


def policy_status(
    case: Case,
    facts: Sequence[rollout.NodeFacts],
    world: World,
    *,
    cases: Mapping[str, Case],
    dropped: Dropped,
    now: dt.datetime,
) -> GpuPolicyStatus:
    """Return the status that a policy is to have.

    Args:
        case: the policy and the verdict on it.
        facts: of every node.
        world: the copies, for the counts and the live classes.
        cases: every policy that was judged, by name.
        dropped: what the API server does not keep of classes.
        now: the moment for conditions that change.
    """
    policy = case.entry.policy
    found = [rollout.node_report(case.entry.name, fact) for fact in facts]
    told = (r for r in found if r.cards or r.counts.devices or r.actions)
    reports = rollout.with_silent(told, case.selection.waiting)
    pools = list(world.all_pools())
    counts = status.policy_counts(case.entry.name, pools)
    rivals, notes = rollout.conflict(facts)
    has_cards = any(report.cards for report in reports)
    verdicts = status.verdicts(
        reports,
        status.Standing(
            refusal=case.verdict.refusal,
            lacking=case.lacking,
            conflict=rivals,
            empty=case.selection.empty if not has_cards else None,
            dropped=_dropped(case.wishes, dropped),
            plans=case.only_plans,
            notes=(*case.verdict.notes, *notes),
        ),
    )
    reviewed = review.verdict(_findings(case, facts, world, cases), case.verdict.refusal or case.lacking)
    nodes, gpus = status.fractions(reports)
    return GpuPolicyStatus(
        observed_generation=policy.metadata.generation,
        conditions=status.conditions(
            policy.status.conditions,
            (*verdicts, reviewed),
            generation=policy.metadata.generation,
            now=render.timestamp(now),
        ),
        nodes=nodes,
        gpus=gpus,
        devices=counts.devices,
        allocated=counts.allocated,
        free=counts.free,
        device_classes=[
            status.class_status(w, world.classes.get(w.name), pools) for w in _standing(case, world)
        ],
        plan=status.node_plans(reports),
        preview=status.preview(
            len(case.selection.matched), len(case.selection.candidates), case.selection.clauses
        ),
        examples=_examples(case, reports, facts),
    )


def _standing(case: Case, world: World) -> list[classes.DesiredClass]:
    """Return the classes that were made for a policy: what it only wishes for, or somebody else has, is none of them.

    One that was told of and is gone is about to be made again; that it is told of is how its loss is known for one.
    """
    told = {c.name for c in case.entry.policy.status.device_classes} if case.acts else set()
    stands = (
        (wish, live is not None and live.belongs_to(case.entry.name, case.entry.uid))
        for wish in case.wishes
        for live in [world.classes.get(wish.name)]
    )
    return [wish for wish, is_there in stands if is_there or wish.name in told]


def _findings(
    case: Case, facts: Sequence[rollout.NodeFacts], world: World, cases: Mapping[str, Case]
) -> list[Refusal]:
    """Return what in a policy deserves a second look."""
    policy = case.entry.policy
    matching = {uuid for uuid, judgement in case.judgements.items() if judgement.matches}
    broad = review.broad_selector(policy, case.reads, _shapes(world), matching)
    others = {name: (c.entry.policy, c.wishes) for name, c in cases.items()}
    return [
        *([broad] if broad else []),
        *review.lower_policy(policy, facts, case.wishes),
        *review.higher_policy(case.entry.name, facts, others),
        *kueue.findings(case.wishes),
    ]


def _shapes(world: World) -> Iterator[review.CardShape]:
    """Yield every card with whose it is and in which shape."""
    for node in world.nodes.values():
        for uuid, card in node.cards.items():
            wanted = node.assignments.get(uuid)
            is_whole = not card.gpu.mig.enabled if wanted is None else wanted.mig is None
            yield review.CardShape(uuid, wanted.policy if wanted else None, is_whole)


def _examples(
    case: Case, reports: Sequence[status.NodeReport], facts: Sequence[rollout.NodeFacts]
) -> list[Example]:
    """Return the manifests to start from; those for Kueue are last, and are not crowded out by many classes."""
    policy = case.entry.policy
    devices = review.fitting_quotas(policy, cards=review.cards_of(case.entry.name, facts), wishes=case.wishes)
    queues = kueue.examples(case.entry.name, policy.spec.access, case.wishes, devices)
    cards = max((report.selected for report in reports), default=0)
    shown = examples.examples(case.wishes, cards_per_node=cards)
    if case.only_plans:
        bodies = ((w.name, classes.manifest(w, policy_uid=case.entry.uid)) for w in case.wishes)
        shown = [*(Example(name=f"DeviceClass {n}", manifest=render.yaml(b)) for n, b in bodies), *shown]
    return [*shown[: EXAMPLE_LIMIT - len(queues)], *queues]


def _dropped(wishes: Sequence[classes.DesiredClass], dropped: Dropped) -> Refusal | None:
    lost = [f"{w.name}: {', '.join(dropped[w.name][1])}" for w in wishes if w.name in dropped]
    if not lost:
        return None
    return Refusal(
        Reason.FIELDS_DROPPED,
        f"the API server dropped fields of DeviceClass {'; '.join(lost)}. extendedResourceName needs the feature gate "
        "DRAExtendedResource (on by default from Kubernetes 1.36)",
    )
