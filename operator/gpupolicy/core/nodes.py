"""The plan for one node: who owns each card, what each card is to be, and how it gets there.

The controller shows it and writes its first half into the node's spec; the agent carries out the plans of the cards
in that spec; the CLI prints it. All of them call the same function, node by node, so that a change on one node
plans one node anew.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from gpupolicy.core.assignment import Assignment, Judgements, assign
from gpupolicy.core.inventory import Gpu
from gpupolicy.core.layouts import Layout
from gpupolicy.core.planner import CardPlan, layout_refusal, plan_card
from gpupolicy.core.policies import PolicyView
from gpupolicy.core.refusals import Refusal


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node, as far as planning reads it."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    gpus: tuple[Gpu, ...] = ()
    owners: Mapping[str, str] = field(default_factory=dict)
    """Card UUID -> policy that has it now: what the node's spec says, or else its agent."""
    blocked: Refusal | None = None
    """Why nothing on this node may be written, whatever a policy says: another driver or plugin runs it."""


@dataclass(frozen=True, slots=True)
class PlannedCard:
    """One card: its owner, its layout and how it gets there."""

    uuid: str
    index: int
    policy: str | None = None
    layout: Layout | None = None
    adopt: bool = False
    outcome: CardPlan | Refusal | None = None
    """None for a card that no policy owns: it is left as it is."""

    @property
    def is_applied(self) -> bool:
        """Whether the card has an owner and its layout stands."""
        return isinstance(self.outcome, CardPlan) and self.outcome.is_applied

    @property
    def refusal(self) -> Refusal | None:
        """Why the layout does not stand and will not by our next steps alone, or None."""
        return self.outcome.waiting if isinstance(self.outcome, CardPlan) else self.outcome


@dataclass(frozen=True, slots=True)
class NodePlan:
    """The plan for one node."""

    node: str
    assignment: Assignment
    cards: tuple[PlannedCard, ...] = ()
    """Every card, by index."""

    def cards_of(self, policy: str) -> tuple[PlannedCard, ...]:
        """Return the cards that a policy owns."""
        return tuple(card for card in self.cards if card.policy == policy)


def plan_node(
    node: NodeView, policies: Iterable[PolicyView], judgements: Judgements | None = None
) -> NodePlan:
    """Plan one node.

    Args:
        node: What is observed there.
        policies: All policies that act; those that do not select the node are ignored. To preview one that does not
            act yet, plan a second time with it among them.
        judgements: What the policies' CEL expressions say of the cards; needed for policies that have one.

    Returns:
        A plan that depends on the arguments only and not on their order.
    """
    selecting = {p.name: p for p in policies if p.node_selector.selects(node.labels)}
    assignment = assign(
        node.gpus,
        selecting.values(),
        owners=node.owners,
        judgements=judgements or {},
        layout_check=layout_refusal,
    )
    by_uuid = {gpu.uuid: gpu for gpu in node.gpus}
    cards = []
    for owner in assignment.cards:
        if owner.policy is None:
            cards.append(PlannedCard(owner.uuid, owner.index))
            continue
        policy = selecting[owner.policy]
        outcome = plan_card(by_uuid[owner.uuid], policy.layout, adopt=policy.adopt)
        cards.append(
            PlannedCard(
                uuid=owner.uuid,
                index=owner.index,
                policy=policy.name,
                layout=policy.layout,
                adopt=policy.adopt,
                outcome=_unless_blocked(outcome, node.blocked),
            )
        )
    return NodePlan(node.name, assignment, tuple(cards))


def _unless_blocked(outcome: CardPlan | Refusal, blocked: Refusal | None) -> CardPlan | Refusal:
    """Return the outcome, or why nothing is written here. A layout that stands needs no write."""
    if blocked is None or (isinstance(outcome, CardPlan) and outcome.is_applied):
        return outcome
    return blocked
