"""Judges one policy: reads the copies, asks the API server about its CEL expression, and lets the core decide."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from gpupolicy.api.conditions import Reason
from gpupolicy.api.policy import RolloutMode
from gpupolicy.controller.expressions import Expressions
from gpupolicy.controller.world import PolicyEntry, World
from gpupolicy.core import acceptance, classes, policies, rollout
from gpupolicy.core.matching import Judgement
from gpupolicy.core.refusals import Refusal
from gpupolicy.core.selection import Reads


@dataclass(frozen=True, slots=True)
class Case:
    """A policy with the verdict on it.

    Attributes:
        entry: the policy.
        verdict: whether it is accepted.
        view: as whom planning is to see it; frozen unless it is accepted and acts.
        selection: what its selectors mean; empty where they cannot be read.
        wishes: the classes it wants; none where they cannot be told.
        judgements: what its own expression says of the cards.
        reads: what that expression reads of a card.
        lacking: what of it cannot stand in the cluster, found when it was written; its cards are planned all the same.
    """

    entry: PolicyEntry
    verdict: acceptance.Acceptance
    view: policies.PolicyView
    selection: acceptance.Selection = field(default_factory=acceptance.Selection)
    wishes: tuple[classes.DesiredClass, ...] = ()
    judgements: Mapping[str, Judgement] = field(default_factory=dict)
    reads: Reads = field(default_factory=lambda: Reads(()))
    lacking: Refusal | None = None

    @property
    def is_accepted(self) -> bool:
        """Whether nothing was found against it."""
        return self.verdict.refusal is None

    @property
    def only_plans(self) -> bool:
        """Whether it shows what it would do and touches nothing."""
        return self.entry.policy.spec.rollout.mode is RolloutMode.PLAN

    @property
    def acts(self) -> bool:
        """Whether its classes are made and its cards assigned."""
        return self.is_accepted and not self.only_plans

    @property
    def weight(self) -> tuple[Any, ...]:
        """What of it the plans of nodes depend on."""
        return (
            self.entry.uid,
            self.entry.policy.spec,
            self.acts,
            self.view,
            self.judgements,
            self.verdict.losers,
        )


async def judge(entry: PolicyEntry, world: World, expressions: Expressions) -> Case:
    """Judge a policy against the copies.

    Raises:
        ApiError: the API server could not be asked about its expression.
    """
    policy = entry.policy
    refusal = acceptance.readable(policy, entry.problem)
    if refusal is not None:
        return unreadable(entry, refusal)
    judgements: Mapping[str, Judgement] = {}
    reads = Reads(())
    expression = policy.spec.gpu_selector.cel
    if expression is not None:
        problem = await expressions.problem(expression)
        if problem is not None:
            return unreadable(entry, Refusal(Reason.INVALID_SELECTOR, f"spec.gpuSelector.cel: {problem}"))
        reads = expressions.reads(expression)
        judgements = await expressions.judge(
            expression, reads, lambda: (node.inventory for node in world.nodes.values())
        )
    selection = acceptance.select(policy, _node_cards(world), judgements)
    wishes = classes.desired(policy, rollout.spellings(policy, selection.matched))
    case = Case(
        entry=entry,
        verdict=acceptance.judge(policy, selection, wishes, world.classes),
        view=policies.view(policy),
        selection=selection,
        wishes=wishes,
        judgements=judgements,
        reads=reads,
    )
    return case if case.acts else replace(case, view=rollout.frozen(case.view))


def unreadable(entry: PolicyEntry, refusal: Refusal) -> Case:
    """Return the case of a policy whose selectors cannot be read, or not be judged now."""
    meta = entry.policy.metadata
    view = policies.PolicyView(meta.name, meta.creation_timestamp, entry.policy.spec.priority)
    return Case(entry, acceptance.Acceptance(refusal), rollout.frozen(view))


def with_refusal(case: Case, refusal: Refusal) -> Case:
    """Return the case as it is to be reported when something was refused that the verdict could not know."""
    return replace(case, lacking=refusal)


def _node_cards(world: World) -> list[acceptance.NodeCards]:
    return [
        acceptance.NodeCards(name, world.labels[name], node.inventory.gpus, node.has_reported)
        for name, node in world.nodes.items()
        if name in world.labels
    ]
