"""What is to become of one card: its wish, its plan, the devices that are published of it, and what is told.

Two plans are made of one card. The plan to act respects everything: foreign instances, sickness, use. The plan to
publish asks which of our instances belong to the wanted layout, whatever stands in the way of the rest: a sick card
or a foreign instance in a free corner is no reason to withdraw devices that pods are using.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace

from gpupolicy.api.conditions import Reason
from gpupolicy.api.node import GpuAssignment, GpuNodeSpec
from gpupolicy.api.policy import Strategy
from gpupolicy.core.devices import DriverFacts, Published, card_devices, places_named
from gpupolicy.core.inventory import Gpu, Health, Instance, Ownership
from gpupolicy.core.layouts import Layout, WholeCard
from gpupolicy.core.planner import CardPlan, plan_card, plan_release
from gpupolicy.core.policies import layout_of
from gpupolicy.core.refusals import Refusal
from gpupolicy.core.steps import DestroyInstance, Step, steps_of

_SERVED = frozenset({Strategy.EXCLUSIVE, Strategy.MIG})


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What holds for the whole node.

    Attributes:
        facts: attributes that all devices share.
        taints_served: whether the API server keeps taints.
        hands_off: why no card may be changed now, for reasons outside of the cards.
        offers_nothing: whether nothing may be published now, not even what is right.
    """

    facts: DriverFacts
    taints_served: bool = True
    hands_off: Refusal | None = None
    offers_nothing: bool = False


@dataclass(frozen=True, slots=True)
class CardDecision:
    """The decision on one card."""

    gpu: Gpu
    assignment: GpuAssignment | None
    plan: CardPlan | Refusal | None
    """What is to be done; None for a card that nobody wants anything of."""
    published: Published
    steps: tuple[Step, ...] = ()
    """Writes that may be done once no claim can be on its way to what they destroy."""
    adopted: tuple[Instance, ...] = ()
    """Instances that somebody else made and that are to be recorded as ours."""

    @property
    def doomed(self) -> frozenset[str]:
        """Names of standing devices that the steps make impossible."""
        gone = {(s.profile_id, s.placement) for s in self.steps if isinstance(s, DestroyInstance)}
        cut = bool(self.steps) and not (
            isinstance(self.plan, CardPlan) and isinstance(self.plan.layout, WholeCard)
        )
        return frozenset(
            d.name
            for d in self.published.standing
            if (d.record.placement is None and cut) or (d.record.profile_id, d.record.placement) in gone
        )

    @property
    def is_applied(self) -> bool:
        """Whether what is wanted stands on the card."""
        return isinstance(self.plan, CardPlan) and self.plan.is_applied and not self.plan.adopt

    @property
    def needs_change(self) -> bool:
        """Whether there is something to write: to the card, or to the ledger for what is adopted."""
        return bool(self.steps or self.adopted)

    @property
    def waiting(self) -> Refusal | None:
        """What the card waits for, or why nothing is done."""
        return self.plan if isinstance(self.plan, Refusal) else self.plan.waiting if self.plan else None


def decide_card(
    gpu: Gpu,
    spec: GpuNodeSpec,
    around: Circumstances,
    *,
    named: Collection[str] = (),
    unproven: Refusal | None = None,
    mode_is_ours: bool = False,
) -> CardDecision:
    """Decide on one card.

    Args:
        gpu: the card, with ownership and claims filled in.
        spec: what the node's cards are to be.
        around: what holds for the node.
        named: devices that claims name, whether they stand or not; where there is a choice those are made.
        unproven: why nothing proves what on this card is ours. It is left alone then, also where `adopt` allows to
            take over what is foreign.
        mode_is_ours: whether the ledger proves that we switched MIG mode on; a released card is then switched off.
    """
    assignment = next((a for a in spec.gpus if a.uuid == gpu.uuid), None)
    if assignment is None:
        release = next((r for r in spec.releases if r.uuid == gpu.uuid), None)
        if release is None or unproven is not None:
            return _decide_unassigned(gpu, None if release is None else unproven, around)
        return _decide_unassigned(gpu, plan_release(gpu, mode_is_ours=mode_is_ours), around)
    layout = wanted_layout(assignment)
    plan: CardPlan | Refusal
    if isinstance(layout, Refusal):
        plan = layout
    elif unproven is not None:
        plan = unproven
    else:
        plan = plan_card(gpu, layout, adopt=assignment.adopt, prefer=places_named(gpu, named))
    to_publish = plan
    if isinstance(plan, Refusal) and not isinstance(layout, Refusal):
        to_publish = plan_card(_at_its_best(gpu), layout)
    published = card_devices(
        gpu, assignment.policy, to_publish, around.facts, taints_served=around.taints_served
    )
    if around.offers_nothing:
        published = replace(published, offered=())
    if isinstance(plan, Refusal) and plan.reason is Reason.OWNERSHIP_CONFLICT:
        # Without a readable record nothing is ours, and to call it foreign would advise to delete what pods may use.
        plan = _ledger_damage(around) or plan
    if not isinstance(plan, CardPlan) or around.hands_off is not None:
        return CardDecision(gpu, assignment, plan, published)
    return CardDecision(gpu, assignment, plan, published, steps_of(plan), plan.adopt)


def _ledger_damage(around: Circumstances) -> Refusal | None:
    hands_off = around.hands_off
    return hands_off if hands_off is not None and hands_off.reason is Reason.LEDGER_CORRUPT else None


def wanted_layout(assignment: GpuAssignment) -> Layout | Refusal:
    """Return the layout that an assignment asks for, or why this release cannot make it."""
    if assignment.strategy not in _SERVED:
        return Refusal(
            Reason.NOT_IMPLEMENTED,
            f"strategy {assignment.strategy} is not served by this agent; update the agent",
        )
    return layout_of(assignment.mig if assignment.strategy is Strategy.MIG else None)


def _decide_unassigned(gpu: Gpu, plan: CardPlan | Refusal | None, around: Circumstances) -> CardDecision:
    """Publish nothing of the card; a card that is released has a plan, or a reason why there is none."""
    standing = Published(standing=card_devices(gpu, "", _no_wish(), around.facts).standing)
    steps = steps_of(plan) if isinstance(plan, CardPlan) and around.hands_off is None else ()
    return CardDecision(gpu, None, plan, standing, steps)


def _at_its_best(gpu: Gpu) -> Gpu:
    ours = tuple(i for i in gpu.instances if i.ownership is Ownership.OWNED)
    return replace(gpu, health=Health.HEALTHY, instances=ours)


def _no_wish() -> Refusal:
    return Refusal(Reason.IDLE, "")
