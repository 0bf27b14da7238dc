"""From the plan of a node to what is written and told: the node's spec, the devices to expect, the report.

Theory. A policy that is not accepted, or only plans, is *frozen*: it keeps the cards that it has with the layout that
stands in the node's spec, takes none, and loses none but to a policy of higher precedence. So an edit that is refused
touches nothing, and correcting it goes on from what stands.

A card that an agent no longer shows leaves the spec only while that agent says that it sees all cards; with NVML
away, the spec of a node stays as it is.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from gpupolicy.api.conditions import Reason
from gpupolicy.api.node import GpuAssignment, MigLayout
from gpupolicy.api.policy import GpuPolicy, Strategy
from gpupolicy.core import profiles
from gpupolicy.core.assignment import Share
from gpupolicy.core.inventory import Gpu
from gpupolicy.core.labels import LabelSelector
from gpupolicy.core.matching import CardSelector
from gpupolicy.core.nodes import NodePlan
from gpupolicy.core.observation import ObservedNode
from gpupolicy.core.planner import CardPlan, Change
from gpupolicy.core.policies import PolicyView
from gpupolicy.core.records import DeviceKind
from gpupolicy.core.refusals import Refusal, cards_text, instance_label, listing
from gpupolicy.core.status import CardReport, NodeReport, card_report
from gpupolicy.core.tally import DeviceGroup, GroupCount, PoolTally

_FROZEN = "frozen"

_UNEXPLAINED: Final = frozenset({Reason.WAITING_FOR_SLICES, Reason.WAITING_FOR_AGENT, Reason.ROLLOUT_PENDING})
"""What is said of a card while nobody knows more; a trouble of its whole node explains it."""


def frozen(view: PolicyView) -> PolicyView:
    """Return the policy as planning is to see it while it is frozen: it matches what it has and nothing else."""
    # An expression that nobody judges is a "cannot tell" on every card, and with that a policy keeps its cards.
    return replace(view, node_selector=LabelSelector(), cards=CardSelector(), cel=_FROZEN, gpus_per_node=None)


def assignment(policy: GpuPolicy, uuid: str) -> GpuAssignment:
    """Return what a card of this policy is to be."""
    sharing = policy.spec.sharing
    mig = None
    if sharing.mig is not None:
        entries = sorted(sharing.mig.layout, key=lambda e: e.profile)
        mig = MigLayout(mode=sharing.mig.mode, layout=entries)
    bare = GpuAssignment(
        uuid=uuid,
        policy=policy.metadata.name,
        strategy=sharing.strategy,
        mig=mig,
        time_slicing=sharing.time_slicing,
        mps=sharing.mps,
        adopt=policy.spec.adopt,
    )
    return bare.model_copy(update={"revision": revision(bare)})


def revision(wanted: GpuAssignment) -> str:
    """Return the hash of what is wanted of a card. The policy is part of it: devices carry its name."""
    body: dict[str, Any] = wanted.to_wire()
    body.pop("uuid", None)
    body.pop("revision", None)
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def node_spec(
    node: ObservedNode, plan: NodePlan, acting: Mapping[str, GpuPolicy], existing: Iterable[str]
) -> tuple[GpuAssignment, ...]:
    """Return the assignments that the node's spec is to have, in order of the cards.

    Args:
        node: the node as observed.
        plan: who gets which card.
        acting: policies that are accepted and act, by name; cards of all others keep their present assignment.
        existing: names of all policies that exist.
    """
    result = []
    for card in plan.cards:
        if card.policy is None:
            continue
        policy = acting.get(card.policy)
        if policy is not None:
            result.append(assignment(policy, card.uuid))
        elif card.uuid in node.assignments:
            result.append(node.assignments[card.uuid])
    if not node.sees_all:
        alive = set(existing)
        unseen = {
            uuid: a for uuid, a in node.assignments.items() if uuid not in node.cards and a.policy in alive
        }
        result += [unseen[uuid] for uuid in sorted(unseen)]
    return tuple(result)


def changes_of_hands(node: ObservedNode, wanted: Iterable[GpuAssignment]) -> tuple[str, ...]:
    """Return which cards go from one policy to another, in words; empty where none does."""
    before = {uuid: a.policy for uuid, a in node.assignments.items()}
    after = {a.uuid: a.policy for a in wanted}
    moves: dict[tuple[str | None, str | None], list[int]] = {}
    gone: dict[str, list[str]] = {}
    for uuid in before.keys() | after.keys():
        old, new = before.get(uuid), after.get(uuid)
        if old == new:
            continue
        card = node.cards.get(uuid)
        if card is None:
            gone.setdefault(old or new or "", []).append(uuid)
        else:
            moves.setdefault((old, new), []).append(card.gpu.index)
    lines = [
        f"{cards_text(indexes)}: {old or 'no policy'} -> {new or 'no policy'}"
        for (old, new), indexes in sorted(moves.items(), key=lambda item: min(item[1]))
    ]
    lines += [
        f"{', '.join(sorted(uuids))} of policy {policy}: no longer there"
        for policy, uuids in sorted(gone.items())
    ]
    return tuple(lines)


def expected_devices(wanted: GpuAssignment, gpu: Gpu) -> dict[DeviceGroup, int]:
    """Return the devices that a card shows once it is what is wanted, named as its driver names them."""
    if wanted.strategy is Strategy.EXCLUSIVE or wanted.mig is None:
        return {DeviceGroup(wanted.policy, DeviceKind.GPU): 1}
    result: dict[DeviceGroup, int] = {}
    for entry in wanted.mig.layout:
        found = profiles.find_profile(entry.profile, gpu.mig.profiles)
        name = entry.profile if isinstance(found, Refusal) else found.name
        group = DeviceGroup(wanted.policy, DeviceKind.MIG, name)
        result[group] = result.get(group, 0) + entry.count
    return result


def spellings(policy: GpuPolicy, gpus: Iterable[Gpu]) -> dict[str, frozenset[str]]:
    """Return, for each profile of a policy's layout, the names that these cards' drivers give it."""
    mig = policy.spec.sharing.mig
    if mig is None:
        return {}
    # By identity: of thousands of cards with the same profiles nearly all share one object.
    offers = {id(gpu.mig.profiles): gpu.mig.profiles for gpu in gpus}.values()
    result: dict[str, frozenset[str]] = {}
    for entry in mig.layout:
        found = (profiles.find_profile(entry.profile, offered) for offered in offers)
        names = frozenset(p.name for p in found if not isinstance(p, Refusal))
        result[entry.profile] = names
    return result


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What a report of one policy on one node is made from.

    Attributes:
        node: the node as observed.
        wanted: the assignments of this policy that the node's spec is to have.
        share: what planning gave the policy there.
        pool: what the API server shows of the node's devices.
        is_stale: whether the agent has not been heard of for too long.
        actions: what would be done, for a policy that only plans.
        granted: how many cards of the node each policy gets, by name.
    """

    node: ObservedNode
    wanted: tuple[GpuAssignment, ...]
    share: Share
    pool: PoolTally
    is_stale: bool = False
    actions: tuple[str, ...] | None = None
    granted: Mapping[str, int] = field(default_factory=dict)


def node_report(policy: str, facts: NodeFacts) -> NodeReport:
    """Report how far a policy is on one node."""
    node = facts.node
    cards = []
    for wanted in facts.wanted:
        card = node.cards.get(wanted.uuid)
        expected = {} if card is None else expected_devices(wanted, card.gpu)
        cards.append(card_report(wanted, card, facts.pool, expected))
    cards += [
        CardReport(m.index, m.uuid, is_applied=False, reason=m.refusal.reason, message=m.refusal.message)
        for m in facts.share.missed
    ]
    rivals = [c for c in facts.share.lost if not c.by_priority]
    missed = len(facts.share.missed) + sum(len(c.cards) for c in rivals)
    short = facts.share.wanted - len(facts.share.granted)
    for conflict in rivals:
        cards += [
            CardReport(
                index,
                uuid,
                is_applied=False,
                reason=Reason.DEVICE_CONFLICT,
                message=f"policy {conflict.rival} has it",
            )
            for index, uuid in zip(conflict.indexes, conflict.cards, strict=True)
        ]
    trouble = None
    if facts.is_stale and facts.wanted:
        trouble = Refusal(
            Reason.STALE,
            f"the agent has not reported since {node.last_observed_time or 'ever'}; look at its pod",
        )
    elif any(not c.is_ready and c.reason in _UNEXPLAINED for c in cards):
        trouble = node.trouble
    counts = sum((c for g, c in facts.pool.groups.items() if g.policy == policy), GroupCount())
    return NodeReport(
        node=node.name,
        cards=tuple(sorted(cards, key=lambda c: (c.index, c.uuid))),
        counts=counts,
        trouble=trouble,
        actions=facts.actions,
        spare=max(0, missed - short),
    )


def with_silent(reports: Iterable[NodeReport], waiting: Iterable[str]) -> list[NodeReport]:
    """Return the reports of all nodes by name, those among them whose agents have never reported.

    Args:
        reports: of nodes on which the policy has cards, devices or something to do.
        waiting: selected nodes whose agents had not reported when the policy was judged. That was before the reports
            were made, so an agent may have spoken since; then its report holds.
    """
    silence = Refusal(Reason.WAITING_FOR_AGENT, "its agent has not reported yet; look at its pod")
    found = {node: NodeReport(node, (), trouble=silence) for node in waiting}
    found |= {report.node: report for report in reports}
    return [found[node] for node in sorted(found)]


def conflict(facts: Iterable[NodeFacts]) -> tuple[Refusal | None, tuple[str, ...]]:
    """Return what policies say of each other: a conflict of equal priority, and what is merely worth a note.

    The cards that a policy does have are served all the same. Where a higher priority took every card that a
    policy matches, that is a conflict too: it serves nothing.
    """
    equal: list[tuple[str, str]] = []
    outranked: list[tuple[str, str]] = []
    won: list[tuple[str, str]] = []
    granted = 0
    for fact in facts:
        granted += len(fact.share.granted)
        for loss in fact.share.lost:
            (outranked if loss.by_priority else equal).append((fact.node.name, loss.told_to_loser()))
        won += [(fact.node.name, win.told_to_winner()) for win in fact.share.won]
    notes = _by_text(won)
    if equal or (outranked and not granted):
        return Refusal(Reason.DEVICE_CONFLICT, ". ".join([*_by_text(equal), *_by_text(outranked)])), notes
    return None, (*_by_text(outranked), *notes)


def _by_text(told: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """Return `on NODES, TEXT` for pairs of a node and a text; nodes of which the same is to be said share a line."""
    nodes: dict[str, list[str]] = {}
    for node, text in told:
        nodes.setdefault(text, []).append(node)
    return tuple(f"on {listing(found)}, {text}" for text, found in nodes.items())


def actions(plan: NodePlan, policy: str) -> tuple[str, ...]:
    """Return what would be done to each card of a policy, in words."""
    return tuple(f"card {c.index}: {_outcome(c.outcome)}" for c in plan.cards_of(policy))


def _outcome(outcome: CardPlan | Refusal | None) -> str:
    if outcome is None:
        return "left alone"
    if isinstance(outcome, Refusal):
        return f"{outcome.reason}: {outcome.message}"
    if outcome.is_applied:
        return f"is {outcome.layout} already"
    parts = [f"becomes {outcome.layout}"]
    if outcome.keep:
        parts.append("keep " + ", ".join(map(instance_label, outcome.keep)))
    parts += _change(outcome.now)
    if outcome.waiting is not None:
        parts.append(f"{outcome.waiting.reason}: {outcome.waiting.message}")
        later = _change(outcome.later)
        parts += ["later: " + ", ".join(later)] if later else []
    return "; ".join(parts)


def _change(change: Change) -> list[str]:
    parts = []
    if change.destroy:
        parts.append("destroy " + ", ".join(map(instance_label, change.destroy)))
    if change.mig_mode is not None:
        parts.append(f"MIG mode {'on' if change.mig_mode else 'off'}")
    if change.create:
        labels = (f"{c.profile}@{c.placement.start}:{c.placement.size}" for c in change.create)
        parts.append("create " + ", ".join(labels))
    return parts
