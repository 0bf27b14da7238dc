"""What a policy's status says: card by card, node by node, in sum; and conditions that move only when they must.

Theory. A card is *applied* when its agent reports the wanted revision, and the API server shows for it exactly the
devices of that layout, in a complete pool: what the hardware has and nobody can claim is not applied. It is *ready*
when moreover nothing is wrong with it. A node is what its cards are, a policy what its nodes are. Of several troubles
the one comes first that a person should look at first (`_URGENCY`), and the message tells the others after it.

Nobody acts on these conditions; they are observations.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from gpupolicy.api.conditions import Condition, ConditionType, Reason, Status
from gpupolicy.api.node import GpuAssignment
from gpupolicy.api.policy import ClassStatus, NodePlan, Preview
from gpupolicy.core import access
from gpupolicy.core.classes import DesiredClass, LiveClass
from gpupolicy.core.observation import ObservedCard
from gpupolicy.core.refusals import Refusal, cards_text, listing
from gpupolicy.core.tally import NOTHING, DeviceGroup, GroupCount, PoolTally

MESSAGE_LIMIT: Final = 1024
"""Characters of a condition's message; it is a column of `kubectl get -o wide`."""

NODE_LIMIT: Final = 512
"""Nodes that a status shows."""

ACTIONS_LIMIT_BYTES: Final = 384 * 1024
"""What all actions of a plan may have. An object has 1.5 MiB at most, of which messages may take a third; a status that is
too large is refused as a whole, and nobody would be told anything."""

_CARD_MESSAGE_LIMIT: Final = 240
_CARD_MESSAGES: Final = 4
"""How many different messages of cards a node shows before it only counts the rest."""

_URGENCY: Final = (
    Reason.DEVICE_CONFLICT,
    Reason.INVALID_LAYOUT,
    Reason.MIG_UNSUPPORTED,
    Reason.OWNERSHIP_CONFLICT,
    Reason.LEDGER_CORRUPT,
    Reason.DEGRADED,
    Reason.NVML_UNAVAILABLE,
    Reason.PLUGIN_NOT_REGISTERED,
    Reason.CDI_UNAVAILABLE,
    Reason.FIELDS_DROPPED,
    Reason.GPU_UNHEALTHY,
    Reason.MIG_ACTIVATION_PENDING,
    Reason.WAITING_FOR_CLAIMS,
    Reason.WAITING_FOR_AGENT,
    Reason.STALE,
    Reason.WAITING_FOR_SLICES,
    Reason.ROLLOUT_PENDING,
)
"""Troubles, the one to look at first in front. A reason that is not here comes before all of them."""

_NO_TROUBLE: Final = frozenset({Reason.APPLIED, Reason.READY, Reason.IDLE})
_KNOWN: Final = frozenset(Reason)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one condition is to say."""

    type: ConditionType
    status: Status
    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class CardReport:
    """How far one card of a policy is."""

    index: int
    uuid: str
    is_applied: bool
    reason: Reason
    """`Applied` when nothing is wrong."""
    message: str = ""

    @property
    def is_ready(self) -> bool:
        """Whether all of its devices can be claimed now."""
        return self.is_applied and self.reason is Reason.APPLIED


@dataclass(frozen=True, slots=True)
class NodeReport:
    """How far one node of a policy is."""

    node: str
    cards: tuple[CardReport, ...]
    counts: GroupCount = NOTHING
    trouble: Refusal | None = None
    """What concerns the node as a whole; its cards may be fine."""
    actions: tuple[str, ...] | None = None
    spare: int = 0
    """How many of the cards that the policy misses are more than it asks for (`gpusPerNode`): any of them would do."""

    @property
    def selected(self) -> int:
        """Cards that the policy is to have there."""
        return len(self.cards) - self.spare

    @property
    def applied(self) -> int:
        """Cards on which the layout stands."""
        return sum(card.is_applied for card in self.cards)

    @property
    def is_silent(self) -> bool:
        """Whether it is selected and its agent never reported, so that its cards are not known."""
        return self.trouble is not None and self.trouble.reason is Reason.WAITING_FOR_AGENT

    @property
    def is_applied(self) -> bool:
        """Whether all of its cards are applied."""
        return self.applied == len(self.cards) and not self.is_silent

    @property
    def problem(self) -> Refusal | None:
        """The node's most urgent trouble; None where all is well."""
        cards = [c for c in self.cards if not c.is_ready]
        found = {c.reason for c in cards} | ({self.trouble.reason} if self.trouble else set())
        if not found:
            return None
        first = min(found, key=lambda reason: (_urgency(reason), reason))
        texts = _card_texts([c for c in cards if c.reason is first])
        if self.trouble is not None and self.trouble.reason is first:
            texts.append(self.trouble.message)
        return Refusal(first, "; ".join(texts))


def card_report(
    wanted: GpuAssignment, observed: ObservedCard | None, pool: PoolTally, expected: Mapping[DeviceGroup, int]
) -> CardReport:
    """Judge one card.

    Args:
        wanted: what the card is to be.
        observed: what its agent says of it; None where the agent does not see it.
        pool: what the API server shows of the node's devices.
        expected: the devices that the layout makes on this card.
    """
    if observed is None:
        return CardReport(
            -1, wanted.uuid, False, Reason.WAITING_FOR_AGENT, "the agent does not see this card"
        )
    trouble = _reported(observed)
    message = observed.message
    if observed.applied_revision != wanted.revision:
        pending = Reason.ROLLOUT_PENDING if trouble in _NO_TROUBLE else trouble
        return CardReport(observed.gpu.index, wanted.uuid, False, pending, message)
    shown = pool.cards.get(wanted.uuid, {})
    if not pool.is_complete or dict(shown) != dict(expected):
        if trouble not in _NO_TROUBLE and trouble is not Reason.WAITING_FOR_SLICES:
            # The agent has withdrawn them and says why: what stood was changed by somebody, or the card is sick.
            return CardReport(observed.gpu.index, wanted.uuid, False, trouble, message)
        text = (
            f"the layout stands, the API server shows {_groups(shown)} of {_groups(expected)}; "
            "if it stays so, look at the pod of the node's agent"
        )
        return CardReport(observed.gpu.index, wanted.uuid, False, Reason.WAITING_FOR_SLICES, text)
    if trouble in _NO_TROUBLE:
        return CardReport(observed.gpu.index, wanted.uuid, True, Reason.APPLIED)
    return CardReport(observed.gpu.index, wanted.uuid, True, trouble, message)


def _reported(observed: ObservedCard) -> Reason:
    """Return the reason that an agent gave; an agent of another release may know reasons that we do not."""
    return Reason(observed.reason) if observed.reason in _KNOWN else Reason.DEGRADED


def _groups(groups: Mapping[DeviceGroup, int]) -> str:
    """Return devices in words: `2 1g.10gb, 1 3g.40gb`."""
    return ", ".join(f"{n} {g.profile or g.kind}" for g, n in sorted(groups.items())) or "no device"


def _card_texts(cards: Sequence[CardReport]) -> list[str]:
    """Return what to say of cards that have one trouble; those that say the same share a line.

    A card's own message may name every device of it; the whole of that stands in its GpuNode.
    """
    by_message: dict[str, list[int]] = {}
    texts = []
    for card in cards:
        if card.index < 0:
            texts.append(f"{card.uuid}: {card.message}")
        else:
            by_message.setdefault(shortened(card.message, _CARD_MESSAGE_LIMIT), []).append(card.index)
    for message, indexes in by_message.items():
        texts.append(f"{cards_text(indexes)}: {message}" if message else cards_text(indexes))
    more = len(texts) - _CARD_MESSAGES
    return [*texts[:_CARD_MESSAGES], *([f"and {more} more like these"] if more > 0 else [])]


def _urgency(reason: Reason) -> int:
    return _URGENCY.index(reason) if reason in _URGENCY else -1


def node_plan(report: NodeReport) -> NodePlan:
    """Return the node's line in the status."""
    problem = report.problem
    return NodePlan(
        node=report.node,
        selected=report.selected,
        applied=report.applied,
        devices=report.counts.devices,
        allocated=report.counts.allocated,
        reason=problem.reason if problem else None,
        message=shortened(problem.message, MESSAGE_LIMIT) if problem else None,
        actions=[shortened(a, 512) for a in report.actions[:64]] if report.actions is not None else None,
    )


def node_plans(reports: Sequence[NodeReport]) -> list[NodePlan]:
    """Return the lines of all nodes, as many as the schema allows, and no more text than an object may have."""
    left_bytes = ACTIONS_LIMIT_BYTES
    plans = []
    for report in reports[:NODE_LIMIT]:
        plan = node_plan(report)
        size_bytes = sum(len(action.encode()) for action in plan.actions or ())
        if size_bytes > left_bytes:
            text = f"{_count(len(plan.actions or ()), 'card')} not shown, because the status is full; select fewer nodes to see them"
            plan = plan.model_copy(update={"actions": [text]})
        else:
            left_bytes -= size_bytes
        plans.append(plan)
    return plans


def fractions(reports: Sequence[NodeReport]) -> tuple[str, str]:
    """Return the columns NODES and GPUS, applied / selected; nodes that cannot have a card do not count."""
    nodes = [r for r in reports if r.cards or r.is_silent]
    applied = sum(r.is_applied for r in nodes)
    cards = sum(r.selected for r in nodes)
    return f"{applied}/{len(nodes)}", f"{sum(r.applied for r in nodes)}/{cards}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What is known of a policy as a whole.

    Attributes:
        refusal: why it is not accepted.
        lacking: what of an accepted policy cannot stand in the cluster; its cards are shaped and served all the same.
        conflict: which other policies have its cards; the cards that it has are served all the same.
        empty: why it has no card, where it has none.
        dropped: what the API server did not keep of its classes.
        plans: whether it only plans.
        notes: what Accepted adds although all is well.
    """

    refusal: Refusal | None = None
    lacking: Refusal | None = None
    conflict: Refusal | None = None
    empty: Refusal | None = None
    dropped: Refusal | None = None
    plans: bool = False
    notes: tuple[str, ...] = ()


def verdicts(reports: Sequence[NodeReport], standing: Standing) -> tuple[Verdict, Verdict, Verdict]:
    """Return what Accepted, Applied and Ready are to say.

    Args:
        reports: every node with a card of the policy.
        standing: what is known of the policy as a whole.
    """
    refusal = standing.refusal or standing.lacking or standing.conflict
    if refusal is not None:
        accepted = _no(ConditionType.ACCEPTED, refusal)
    else:
        text = shortened(". ".join(standing.notes))
        accepted = Verdict(ConditionType.ACCEPTED, "True", Reason.ACCEPTED, text)
    if standing.refusal is not None:
        untouched = Refusal(standing.refusal.reason, "the policy is not accepted; nothing is touched")
        return accepted, _no(ConditionType.APPLIED, untouched), _no(ConditionType.READY, standing.refusal)
    if standing.plans:
        shown = Refusal(
            Reason.PLANNED, "rollout.mode is Plan: status.plan shows what would be done; nothing was touched"
        )
        return accepted, _no(ConditionType.APPLIED, shown), _no(ConditionType.READY, refusal or shown)
    applied = _applied(reports, standing)
    if standing.lacking is not None and applied.status == "True":
        applied = _no(ConditionType.APPLIED, standing.lacking)
    if refusal is not None:
        ready = _no(ConditionType.READY, refusal)
    else:
        ready = _summary(ConditionType.READY, Reason.READY, [r for r in reports if r.problem], reports)
        if ready.status == "True" and applied.status != "True":
            # No card is in trouble: it is the policy as a whole that is not applied.
            ready = Verdict(ConditionType.READY, applied.status, applied.reason, applied.message)
    return accepted, applied, ready


def _applied(reports: Sequence[NodeReport], standing: Standing) -> Verdict:
    troubled = [r for r in reports if not r.is_applied]
    nothing = Refusal(Reason.ROLLOUT_PENDING, "no card is assigned yet") if not reports else None
    overall = standing.empty or (standing.dropped if not troubled else None) or nothing
    if overall is not None:
        return _no(ConditionType.APPLIED, overall)
    return _summary(ConditionType.APPLIED, Reason.APPLIED, troubled, reports)


def _no(type_: ConditionType, refusal: Refusal) -> Verdict:
    return Verdict(type_, "False", refusal.reason, shortened(refusal.message))


def _summary(
    type_: ConditionType, good: Reason, troubled: Sequence[NodeReport], reports: Sequence[NodeReport]
) -> Verdict:
    """Sum up nodes: the most urgent reason, and for each reason the nodes and the first of their messages.

    Where they do not all say the same, it stands there whose message it is.
    """
    if not troubled:
        cards = sum(len(r.cards) for r in reports)
        return Verdict(type_, "True", good, f"{_count(cards, 'card')} on {_count(len(reports), 'node')}")
    problems = [(r.node, r.problem) for r in troubled]
    known = sorted(
        ((p.reason, node, p.message) for node, p in problems if p is not None),
        key=lambda item: (_urgency(item[0]), item[0], item[1]),
    )
    parts = []
    for reason, group in groupby(known, key=lambda item: item[0]):
        members = list(group)
        nodes = listing(node for _, node, _ in members)
        node, text = next(((node, message) for _, node, message in members if message), ("", ""))
        whose = f"{node}: " if any(message != text for _, _, message in members) else ""
        parts.append(f"{reason} on {nodes}" + (f": {whose}{text}" if text else ""))
    status: Status = "Unknown" if {reason for reason, _, _ in known} == {Reason.STALE} else "False"
    return Verdict(type_, status, known[0][0], shortened("; ".join(parts)))


def conditions(
    previous: Iterable[Condition], wanted: Iterable[Verdict], *, generation: int, now: str
) -> list[Condition]:
    """Return the conditions to write; the time of the last transition moves only with the status.

    Args:
        previous: the conditions as they stand.
        wanted: what they are to say.
        generation: generation of the object that this was computed from.
        now: RFC 3339 time for those that change.
    """
    before = {c.type: c for c in previous}
    result = []
    for verdict in wanted:
        old = before.get(verdict.type)
        result.append(
            Condition(
                type=verdict.type,
                status=verdict.status,
                observed_generation=generation,
                last_transition_time=old.last_transition_time
                if old and old.status == verdict.status
                else now,
                reason=verdict.reason,
                message=verdict.message,
            )
        )
    return result


def policy_counts(policy: str, pools: Iterable[PoolTally]) -> GroupCount:
    """Return the devices of a policy over pools; what a layout leaves behind while it is in use counts too."""
    counts = (count for pool in pools for group, count in pool.groups.items() if group.policy == policy)
    return sum(counts, GroupCount())


def class_status(wish: DesiredClass, live: LiveClass | None, pools: Sequence[PoolTally]) -> ClassStatus:
    """Return the line of one class: what it selects, and which claims are older than its last change."""
    counts = sum(
        (
            count
            for pool in pools
            for group, count in pool.groups.items()
            if wish.selects(group.policy, group.kind, group.profile)
        ),
        GroupCount(),
    )
    since = live.changed_at if live is not None else None
    older = {
        holding.claim.uid
        for pool in pools
        for holding in pool.holders.get(wish.policy, ())
        if since is not None and holding.class_name == wish.name and holding.since < since
    }
    return ClassStatus(
        name=wish.name,
        profile=wish.profile,
        extended_resource_name=wish.extended_resource_name,
        quota_keys=list(access.quota_keys(wish.name, wish.extended_resource_name)),
        devices=counts.devices,
        allocated=counts.allocated,
        free=counts.free,
        claims_on_previous_revision=len(older),
    )


def preview(matched: int, candidates: int, clauses: Sequence[str]) -> Preview:
    """Return what the selector matches, within the limits of the schema."""
    return Preview(matched=matched, candidates=candidates, clauses=[shortened(c, 512) for c in clauses[:32]])


def shortened(text: str, limit: int = MESSAGE_LIMIT) -> str:
    """Return the text within the limit, its end cut and marked."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")
