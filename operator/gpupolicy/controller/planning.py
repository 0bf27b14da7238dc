"""Plans nodes from the copies and the verdicts, and remembers each plan by what went into it.

A plan is asked for often (every status reads those of all its nodes) and changes rarely, so it is computed again only
when one of its inputs differs: the node, its labels, or the policies that select it. So is the preview of a policy that only plans.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from gpupolicy.api.node import GpuAssignment
from gpupolicy.controller.judging import Case
from gpupolicy.controller.world import World
from gpupolicy.core import nodes, policies, rollout
from gpupolicy.core.matching import Judgement
from gpupolicy.core.observation import ObservedNode
from gpupolicy.core.policies import PolicyView


@dataclass(frozen=True, slots=True)
class PlannedNode:
    """The plan of a node, and the assignments that its spec is to have."""

    plan: nodes.NodePlan
    spec: tuple[GpuAssignment, ...]


class Planning:
    """The cases of all policies, and the plans that follow from them."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._plans: dict[str, tuple[tuple[Any, ...], PlannedNode]] = {}
        self._previews: dict[str, dict[str, tuple[tuple[Any, ...], nodes.NodePlan]]] = {}
        """By policy and node."""
        self.cases: dict[str, Case] = {}
        """Every policy that was judged, by name."""

    @property
    def is_possible(self) -> bool:
        """Whether every policy was judged: one that is not among the players would lose its cards."""
        return self._world.policies.keys() <= self.cases.keys()

    def forget(self, name: str) -> None:
        """Forget the plan of a node that is gone."""
        self._plans.pop(name, None)
        for previews in self._previews.values():
            previews.pop(name, None)

    def drop(self, policy: str) -> Case | None:
        """Forget a policy that is gone; return its case, None where it was never judged."""
        self._previews.pop(policy, None)
        return self.cases.pop(policy, None)

    def plan(self, name: str) -> PlannedNode | None:
        """Return the plan of a node; None where there is nothing to plan with yet."""
        node = self._world.nodes.get(name)
        labels = self._world.labels.get(name)
        if node is None or labels is None or not node.has_reported or not self.is_possible:
            return None
        players = self._players(labels)
        acting = {v.name: c.entry.policy for v in players if (c := self.cases[v.name]).acts}
        existing = frozenset(self._world.policies)
        judgements = self._judgements(players)
        inputs = (
            node,
            labels,
            players,
            _of_cards(judgements, node),
            {policy: found.spec for policy, found in acting.items()},
            existing,
        )
        known = self._plans.get(name)
        if known is not None and known[0] == inputs:
            return known[1]
        plan = nodes.plan_node(self._view(node, labels, acting), players, judgements)
        planned = PlannedNode(plan, rollout.node_spec(node, plan, acting, existing))
        self._plans[name] = (inputs, planned)
        return planned

    def preview(self, name: str, case: Case) -> nodes.NodePlan:
        """Plan a node as if a policy that only plans would act."""
        node = self._world.nodes[name]
        labels = self._world.labels[name]
        mine = policies.view(case.entry.policy)
        players = [view for view in self._players(labels) if view.name != mine.name]
        judgements = self._judgements([*players, mine]) | {mine.name: case.judgements}
        acting = {v.name for v in players if self.cases[v.name].acts} | {mine.name}
        inputs = (node, labels, players, mine, acting, _of_cards(judgements, node))
        previews = self._previews.setdefault(mine.name, {})
        known = previews.get(name)
        if known is not None and known[0] == inputs:
            return known[1]
        plan = nodes.plan_node(self._view(node, labels, acting), [*players, mine], judgements)
        previews[name] = inputs, plan
        return plan

    def facts(self, name: str, case: Case, *, is_stale: bool) -> rollout.NodeFacts | None:
        """Return what is to be reported of a policy on one node; None where that cannot be told yet."""
        planned = self.plan(name)
        if planned is None:
            return None
        plan, policy = planned.plan, case.entry.policy
        wanted = tuple(a for a in planned.spec if a.policy == case.entry.name)
        actions = None
        if case.is_accepted and case.only_plans:
            plan = self.preview(name, case)
            actions = rollout.actions(plan, case.entry.name)
            # What a policy that only plans would have stands in no spec yet.
            wanted = tuple(
                rollout.assignment(policy, uuid) for uuid in plan.assignment.share(case.entry.name).granted
            )
        else:
            self._previews.pop(case.entry.name, None)
        return rollout.NodeFacts(
            node=self._world.nodes[name],
            wanted=wanted,
            share=plan.assignment.share(case.entry.name),
            pool=self._world.pool(name),
            is_stale=is_stale,
            actions=actions,
            granted={share.policy: len(share.granted) for share in plan.assignment.shares},
        )

    @staticmethod
    def _view(node: ObservedNode, labels: Mapping[str, str], acting: Iterable[str]) -> nodes.NodeView:
        """Return the node as planning reads it.

        Who has a card is what the spec says. Where it says nothing, the policy that shaped the card last has it
        before others, if it acts; a frozen one must not claim what it has no assignment for.
        """
        shaped = {uuid: card.policy for uuid, card in node.cards.items() if card.policy in set(acting)}
        owners = shaped | {uuid: a.policy for uuid, a in node.assignments.items()}
        return nodes.NodeView(node.name, labels, node.inventory.gpus, owners)

    def _players(self, labels: Mapping[str, str]) -> list[PolicyView]:
        views = (self.cases[name].view for name in sorted(self.cases) if name in self._world.policies)
        return [view for view in views if view.node_selector.selects(labels)]

    def _judgements(self, players: list[PolicyView]) -> dict[str, Mapping[str, Judgement]]:
        """Return what the players' expressions say. A frozen one is not judged: it keeps what it has."""
        return {v.name: self.cases[v.name].judgements for v in players if v.cel and self.cases[v.name].acts}


def _of_cards(
    judgements: Mapping[str, Mapping[str, Judgement]], node: ObservedNode
) -> dict[str, dict[str, Judgement | None]]:
    """Return the judgements, by policy, less those on cards of other nodes."""
    return {policy: {uuid: found.get(uuid) for uuid in node.cards} for policy, found in judgements.items()}
