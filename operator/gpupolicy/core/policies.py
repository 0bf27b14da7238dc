"""What planning reads of a policy, and how the wire models become that.

Planning looks at a policy through `PolicyView`: who it is, what it outranks, which cards it means and what they are to
become. Names, access and rollout are other people's business.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from gpupolicy.api.node import MigLayout
from gpupolicy.api.policy import GpuPolicy, GpuSelector, MigMode, MigSpec
from gpupolicy.core import quantities
from gpupolicy.core.labels import LabelSelector
from gpupolicy.core.layouts import Layout, OnDemand, StaticLayout, WholeCard
from gpupolicy.core.matching import CardSelector


@dataclass(frozen=True, slots=True)
class PolicyView:
    """A policy, as far as planning reads it."""

    name: str
    created: str = ""
    """creationTimestamp as the API server writes it (RFC 3339, UTC, whole seconds), so that text order is time order."""
    priority: int = 0
    layout: Layout = field(default_factory=WholeCard)
    node_selector: LabelSelector = field(default_factory=LabelSelector)
    cards: CardSelector = field(default_factory=CardSelector)
    cel: str | None = None
    """A further expression that somebody else judges, card by card."""
    gpus_per_node: int | None = None
    """How many of the matching cards of a node it takes; None takes all."""
    adopt: bool = False

    @property
    def rank(self) -> tuple[int, str, str]:
        """Sort key of precedence: higher priority, then older, then by name."""
        return (-self.priority, self.created, self.name)


def by_precedence(policies: Iterable[PolicyView]) -> tuple[PolicyView, ...]:
    """Return the policies in the order in which they choose cards."""
    return tuple(sorted(policies, key=lambda policy: policy.rank))


def view(policy: GpuPolicy) -> PolicyView:
    """Return what planning reads of a policy.

    Raises:
        InvalidQuantityError: where `minMemory` is none, which validation refuses beforehand.
    """
    spec = policy.spec
    return PolicyView(
        name=policy.metadata.name,
        created=policy.metadata.creation_timestamp,
        priority=spec.priority,
        layout=layout_of(spec.sharing.mig),
        node_selector=LabelSelector.of(spec.node_selector),
        cards=card_selector(spec.gpu_selector),
        cel=spec.gpu_selector.cel,
        gpus_per_node=spec.gpus_per_node,
        adopt=spec.adopt,
    )


def layout_of(mig: MigSpec | MigLayout | None) -> Layout:
    """Return the layout that a policy, or the spec of a node, asks for. Without a MIG part a card stays whole."""
    if mig is None:
        return WholeCard()
    if mig.mode is MigMode.ON_DEMAND:
        return OnDemand()
    return StaticLayout.of((entry.profile, entry.count) for entry in mig.layout)


def card_selector(selector: GpuSelector) -> CardSelector:
    """Return the typed fields of a selector. A fraction of a byte asks for the whole byte."""
    memory = None if selector.min_memory is None else quantities.parse(selector.min_memory).value
    return CardSelector(
        products=tuple(selector.products),
        architectures=tuple(selector.architectures),
        min_memory_bytes=None if memory is None else -(-memory.numerator // memory.denominator),
        min_compute_capability=selector.min_compute_capability,
    )
