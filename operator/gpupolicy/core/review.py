"""What in a policy deserves a second look although it is served: the condition `Reviewed`.

Nothing is refused for a finding and nothing waits for one; it names what will surprise somebody later.

Too broad. A policy's own expression is evaluated on cards as if they were published whole. One that reads nothing by
which two cards can differ takes all cards or none: then only the other selectors keep the policy off the cards that
others have in another shape, and the next node that they select brings such cards in.

No preemption. A higher priority takes cards from another policy, but only free ones: Kubernetes preempts no pod for
the sake of a DRA device, whatever the PriorityClass of the pods is, neither for claims nor for extended resources.
So pods of the lower policy keep cards of the higher one until they end. What keeps cards free is a quota on the
lower policy, of the devices that stay its own; once it has one for each of its classes, there is nothing left to say.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from gpupolicy.api.conditions import ConditionType, Reason
from gpupolicy.api.policy import GpuPolicy
from gpupolicy.core.classes import DesiredClass
from gpupolicy.core.refusals import Refusal, cards_text, listing
from gpupolicy.core.rollout import NodeFacts
from gpupolicy.core.selection import Reads
from gpupolicy.core.status import Verdict, shortened

_SAME_ON_EVERY_CARD: Final = frozenset({"type"})
"""Attributes of a whole card that tell it from no other card."""


def verdict(findings: Sequence[Refusal], refusal: Refusal | None) -> Verdict:
    """Return what the condition is to say.

    Args:
        findings: what deserves a second look, the most important first.
        refusal: why the policy is not accepted; then nothing is said of it.
    """
    if refusal is not None:
        return Verdict(ConditionType.REVIEWED, "Unknown", refusal.reason, "the policy is not accepted")
    if not findings:
        return Verdict(ConditionType.REVIEWED, "True", Reason.REVIEWED, "")
    text = ". ".join(finding.message for finding in findings)
    return Verdict(ConditionType.REVIEWED, "False", findings[0].reason, shortened(text))


@dataclass(frozen=True, slots=True)
class CardShape:
    """A card as the review looks at it: whose it is and whether it is whole."""

    uuid: str
    policy: str | None
    is_whole: bool


def broad_selector(
    policy: GpuPolicy, reads: Reads, shapes: Iterable[CardShape], matching: Collection[str]
) -> Refusal | None:
    """Say that a policy's own expression also matches cards of a shape that the policy does not mean.

    Args:
        policy: the policy.
        reads: what its own expression reads of a card.
        shapes: every card of the cluster.
        matching: UUIDs of the cards that the expression by itself matches.
    """
    told_apart = reads.everything or any(read.name not in _SAME_ON_EVERY_CARD for read in reads.names)
    if policy.spec.gpu_selector.cel is None or told_apart:
        return None
    means_whole = policy.spec.sharing.mig is None
    matched = [shape for shape in shapes if shape.uuid in matching]
    unmeant = [s for s in matched if s.policy != policy.metadata.name and s.is_whole != means_whole]
    if not unmeant:
        return None
    owners = Counter(f"policy {s.policy}" if s.policy else "no policy" for s in unmeant)
    what = "card with a MIG layout" if means_whole else "whole card"
    many = what.replace("card", "cards", 1) if len(unmeant) > 1 else what
    return Refusal(
        Reason.SELECTOR_TOO_BROAD,
        f"spec.gpuSelector.cel reads nothing that tells one card from another: of {len(matched)} cards that it matches, "
        f"it also matches {len(unmeant)} {many} ({listing(f'{n} of {who}' for who, n in sorted(owners.items()))}); only "
        "the other selectors keep the policy off them. Select by what the cards are, such as productName, or remove cel",
    )


def lower_policy(
    policy: GpuPolicy, facts: Sequence[NodeFacts], wishes: Sequence[DesiredClass]
) -> tuple[Refusal, ...]:
    """Say of a policy that higher ones take cards from it while its pods keep running there, and how to keep them free.

    Args:
        policy: the policy that loses cards.
        facts: of every node.
        wishes: its classes.
    """
    places: dict[tuple[str, int], list[str]] = {}
    for fact in facts:
        for loss in (loss for loss in fact.share.lost if loss.by_priority):
            where = f"{cards_text(loss.indexes)} on {fact.node.name}"
            places.setdefault((loss.rival, loss.rival_priority), []).append(where)
    name = policy.metadata.name
    limits = fitting_quotas(policy, cards=cards_of(name, facts), wishes=wishes)
    if not places or has_fitting_quotas(policy, limits):
        return ()
    rivals = listing(
        f"policy {rival} (priority {priority}) takes {listing(texts)}"
        for (rival, priority), texts in sorted(places.items())
    )
    return (
        Refusal(
            Reason.NO_PREEMPTION,
            f"{rivals}. Pods of {name} that hold devices there keep them until they end: no PriorityClass preempts a pod for "
            f"a DRA device. {_remedy(name, limits)}",
        ),
    )


def _remedy(policy: str, limits: Mapping[str, int]) -> str:
    if not any(limits.values()):
        return f"No card stays for {policy}: set gpusPerNode or narrower selectors in one of them"
    wanted = ", ".join(
        f"{{namespace: NAMESPACE, deviceClassName: {name}, devices: {devices}}}"
        for name, devices in limits.items()
    )
    return f"To keep cards free, limit the namespaces that use {policy}: spec.access.quotas: [{wanted}]"


def higher_policy(
    policy: str, facts: Sequence[NodeFacts], lower: Mapping[str, tuple[GpuPolicy, Sequence[DesiredClass]]]
) -> tuple[Refusal, ...]:
    """Say of a policy that takes cards from lower ones that it must wait for their pods.

    Args:
        policy: name of the policy that takes cards.
        facts: of every node.
        lower: the other policies and their classes, by name; one that is not known is not told of.
    """
    places: dict[str, list[str]] = {}
    for fact in facts:
        for win in (win for win in fact.share.won if win.by_priority and win.policy in lower):
            places.setdefault(win.policy, []).append(f"{cards_text(win.indexes)} on {fact.node.name}")
    texts = []
    for name, where in sorted(places.items()):
        body, wishes = lower[name]
        limits = fitting_quotas(body, cards=cards_of(name, facts), wishes=wishes)
        if not has_fitting_quotas(body, limits):
            texts.append(f"{listing(where)} from policy {name}")
    if not texts:
        return ()
    return (
        Refusal(
            Reason.NO_PREEMPTION,
            f"takes {listing(texts)}. Pods that hold devices there keep them until they end: no PriorityClass preempts a pod "
            f"for a DRA device, so pods of {policy} may wait. Limit the lower policy with spec.access.quotas; its own "
            "condition Reviewed suggests numbers",
        ),
    )


def cards_of(policy: str, facts: Iterable[NodeFacts]) -> int:
    """Return how many cards planning gives a policy."""
    return sum(fact.granted.get(policy, 0) for fact in facts)


def fitting_quotas(policy: GpuPolicy, *, cards: int, wishes: Sequence[DesiredClass]) -> dict[str, int]:
    """Return, by class, the devices that a policy has on so many cards of its own."""
    mig = policy.spec.sharing.mig
    per_card = {entry.profile: entry.count for entry in mig.layout} if mig is not None else {}
    return {w.name: cards * (per_card.get(w.profile, 0) if w.profile else 1) for w in wishes}


def has_fitting_quotas(policy: GpuPolicy, limits: Mapping[str, int]) -> bool:
    """Return whether the quotas of a policy keep each of its classes within a number of devices."""
    access = policy.spec.access
    totals: dict[str, int] = {}
    for entry in access.quotas if access is not None else ():
        totals[entry.device_class_name] = totals.get(entry.device_class_name, 0) + entry.devices
    return all(name in totals and totals[name] <= limit for name, limit in limits.items())
