"""Which policy owns which card of a node.

Theory. Policies choose one after another: higher priority first, then the older (creation time, then name). Each takes
the cards that it matches and that are still there, all of them or the first `gpus_per_node` in this order:

1. cards that it has now, those in use before idle ones, so that nothing moves without need;
2. healthy cards before sick ones;
3. cards that no other policy has now;
4. idle cards before cards in use;
5. cards that fewer of the policies after it match, so that it does not take what only they can use;
6. by index and UUID.

Some cards are never newly taken: sick ones, cards with instances of somebody else (unless the policy adopts), and
cards on which the layout can never fit. A policy that has such a card already keeps it; then it is the card's plan
that is refused, and the hardware stays as it is.

The result depends on what is observed and on nothing remembered, and it is a fixed point: with the owners that it
names the same result follows, also after a restart.

A policy that gets fewer cards than it asks for is told why for each card that it misses. Where another policy has it,
that is a conflict: of equal priority the older keeps its cards; of different priority the higher one takes them,
and both are told.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from gpupolicy.api.conditions import Reason
from gpupolicy.core.inventory import Gpu, Health, Ownership
from gpupolicy.core.layouts import Layout
from gpupolicy.core.matching import Judgement, combine
from gpupolicy.core.policies import PolicyView, by_precedence
from gpupolicy.core.refusals import Refusal, cards_text, instance_label, listing

Judgements = Mapping[str, Mapping[str, Judgement]]
"""What the free expressions say: policy name -> card UUID -> judgement."""

LayoutCheck = Callable[[Gpu, Layout], Refusal | None]
"""Returns why a layout can never stand on a card, or None."""

NOT_JUDGED = Judgement(None, "the CEL expression was not judged on this card")


@dataclass(frozen=True, slots=True)
class Conflict:
    """Cards that a policy wanted and that another one has."""

    policy: str
    """The policy that does not get them."""
    rival: str
    """The policy that has them."""
    priority: int
    rival_priority: int
    cards: tuple[str, ...]
    """UUIDs, by index."""
    indexes: tuple[int, ...]
    is_same_age: bool = False
    """Whether both were made in one second, so that the name decides between them."""

    @property
    def by_priority(self) -> bool:
        """Whether the priority decided; else the age did."""
        return self.priority != self.rival_priority

    def told_to_loser(self) -> str:
        """Return the message for the policy that does not get the cards."""
        if self.by_priority:
            why = f"with the higher priority {self.rival_priority} (this one has {self.priority})"
            remedy = "raise the priority"
        else:
            order = "first by name, equally old" if self.is_same_age else "older"
            why = f"{order} and of the same priority {self.priority}"
            remedy = "give one of them a higher priority"
        return (
            f"{cards_text(self.indexes)} belong{'s' if len(self.indexes) == 1 else ''} to policy {self.rival}, {why}; "
            f"{remedy}, select other cards, or set gpusPerNode"
        )

    def told_to_winner(self) -> str:
        """Return the message for the policy that has the cards."""
        if self.by_priority:
            return f"takes {cards_text(self.indexes)} from policy {self.policy} of lower priority {self.priority}"
        other = f"equally old policy {self.policy}" if self.is_same_age else f"younger policy {self.policy}"
        return f"keeps {cards_text(self.indexes)}, which the {other} also selects"


@dataclass(frozen=True, slots=True)
class MissedCard:
    """A card that a policy matches, wants and does not get, for a reason other than a rival."""

    uuid: str
    index: int
    refusal: Refusal


@dataclass(frozen=True, slots=True)
class Share:
    """What one policy gets on one node."""

    policy: str
    matched: tuple[str, ...] = ()
    """UUIDs of the cards that it matches or keeps, by index."""
    wanted: int = 0
    """How many of them it asks for."""
    granted: tuple[str, ...] = ()
    """UUIDs of the cards that it owns, by index."""
    lost: tuple[Conflict, ...] = ()
    """Cards that it misses because another policy has them."""
    won: tuple[Conflict, ...] = ()
    """Cards that it has and that another policy misses."""
    missed: tuple[MissedCard, ...] = ()
    """Cards that it misses for any other reason."""


@dataclass(frozen=True, slots=True)
class CardOwner:
    """Who owns a card, or why nobody does."""

    uuid: str
    index: int
    policy: str | None
    reason: Reason
    message: str = ""


@dataclass(frozen=True, slots=True)
class Assignment:
    """The cards of one node among its policies."""

    cards: tuple[CardOwner, ...] = ()
    """Every card, by index."""
    shares: tuple[Share, ...] = ()
    """Every policy, by precedence."""

    def share(self, policy: str) -> Share:
        """Return what a policy gets; nothing where it was not among the policies."""
        return next((share for share in self.shares if share.policy == policy), Share(policy))


def assign(
    gpus: Sequence[Gpu],
    policies: Iterable[PolicyView],
    *,
    owners: Mapping[str, str],
    judgements: Judgements,
    layout_check: LayoutCheck,
) -> Assignment:
    """Divide the cards of a node among the policies that select it.

    Args:
        gpus: The cards as observed.
        policies: The policies whose node selector selects the node, in any order.
        owners: Card UUID -> policy that has it now, as the spec of the node and its agent say.
        judgements: What the free expressions say. A policy with one that was not judged takes no new card.
        layout_check: Whether a layout can stand on a card at all.
    """
    cards = sorted(gpus, key=lambda gpu: (gpu.index, gpu.uuid))
    ranked = by_precedence(policies)
    rounds = _Rounds(
        cards=cards,
        owners={uuid: name for uuid, name in owners.items() if any(p.name == name for p in ranked)},
        judgements=judgements,
        layout_check=layout_check,
    )
    matched = {policy.name: rounds.matching(policy) for policy in ranked}
    for position, policy in enumerate(ranked):
        later = [{gpu.uuid for gpu in matched[other.name]} for other in ranked[position + 1 :]]
        rounds.choose(policy, matched[policy.name], later)
        # A card of which it cannot be told whether it matches is kept or is none of this policy's business: once
        # it is gone nobody could tell that it was here, and the verdict must not depend on that.
        matched[policy.name] = rounds.certain(policy, matched[policy.name])
    conflicts = [c for policy in ranked for c in rounds.conflicts(policy, matched[policy.name], ranked)]
    shares = tuple(
        Share(
            policy=policy.name,
            matched=tuple(gpu.uuid for gpu in matched[policy.name]),
            wanted=_wanted(policy, matched[policy.name]),
            granted=tuple(gpu.uuid for gpu in cards if rounds.taken.get(gpu.uuid) == policy.name),
            lost=tuple(c for c in conflicts if c.policy == policy.name),
            won=tuple(c for c in conflicts if c.rival == policy.name),
            missed=rounds.missed(policy, matched[policy.name]),
        )
        for policy in ranked
    )
    return Assignment(cards=tuple(_owner(gpu, rounds.taken, ranked, shares) for gpu in cards), shares=shares)


@dataclass(slots=True)
class _Rounds:
    """One run of the choice; `taken` grows as the policies choose."""

    cards: Sequence[Gpu]
    owners: Mapping[str, str]
    judgements: Judgements
    layout_check: LayoutCheck
    taken: dict[str, str] = field(default_factory=dict)
    """Card UUID -> policy."""

    def has(self, policy: PolicyView, gpu: Gpu) -> bool:
        return self.owners.get(gpu.uuid) == policy.name

    def judge(self, policy: PolicyView, gpu: Gpu) -> Judgement:
        judgement = policy.cards.judge(gpu)
        if policy.cel is None:
            return judgement
        return combine(judgement, self.judgements.get(policy.name, {}).get(gpu.uuid, NOT_JUDGED))

    def matching(self, policy: PolicyView) -> list[Gpu]:
        """Return the cards that a policy matches, and those it has and of which that cannot be told."""
        verdicts = [(gpu, self.judge(policy, gpu).matches) for gpu in self.cards]
        return [gpu for gpu, verdict in verdicts if verdict or (verdict is None and self.has(policy, gpu))]

    def certain(self, policy: PolicyView, matched: list[Gpu]) -> list[Gpu]:
        """Return the cards that a policy matches for sure, and those that it has taken."""
        return [g for g in matched if self.taken.get(g.uuid) == policy.name or self.judge(policy, g).matches]

    def choose(self, policy: PolicyView, matched: list[Gpu], later: list[set[str]]) -> None:
        """Take the policy's cards in the order that the module's header gives."""

        def preference(gpu: Gpu) -> tuple[object, ...]:
            has = self.has(policy, gpu)
            return (
                not (has and gpu.in_use),
                not has,
                gpu.health != Health.HEALTHY,
                gpu.uuid in self.owners,
                gpu.in_use,
                sum(gpu.uuid in cards for cards in later),
                gpu.index,
                gpu.uuid,
            )

        free = [g for g in matched if g.uuid not in self.taken and self.barred(policy, g) is None]
        for gpu in sorted(free, key=preference)[: _wanted(policy, matched)]:
            self.taken[gpu.uuid] = policy.name

    def barred(self, policy: PolicyView, gpu: Gpu) -> Refusal | None:
        """Return why a policy may not newly take a card; None where it may or has it already."""
        if self.has(policy, gpu):
            return None
        if gpu.health != Health.HEALTHY:
            detail = f": {gpu.health_message}" if gpu.health_message else ""
            return Refusal(Reason.GPU_UNHEALTHY, f"card {gpu.index} is {gpu.health}{detail}")
        foreign = tuple(i for i in gpu.instances if i.ownership != Ownership.OWNED)
        if (foreign or gpu.ownership == Ownership.FOREIGN) and not policy.adopt:
            what = f" ({listing(map(instance_label, foreign))})" if foreign else ""
            return Refusal(
                Reason.OWNERSHIP_CONFLICT,
                f"card {gpu.index} has MIG instances that GpuPolicy did not make{what}; "
                "delete them (nvidia-smi mig -dci, then -dgi)",
                instances=foreign,
            )
        return self.layout_check(gpu, policy.layout)

    def missed(self, policy: PolicyView, matched: list[Gpu]) -> tuple[MissedCard, ...]:
        """Return the cards that nobody has although the policy still wants some, and why."""
        if not self._is_short(policy, matched):
            return ()
        refusals = ((g, self.barred(policy, g)) for g in matched if g.uuid not in self.taken)
        return tuple(MissedCard(g.uuid, g.index, r) for g, r in refusals if r is not None)

    def conflicts(
        self, policy: PolicyView, matched: list[Gpu], ranked: Sequence[PolicyView]
    ) -> list[Conflict]:
        """Return the cards that a policy misses because of others, rival by rival in order of precedence."""
        if not self._is_short(policy, matched):
            return []
        found = []
        for rival in ranked:
            cards = [g for g in matched if self.taken.get(g.uuid) == rival.name]
            if rival.name != policy.name and cards:
                found.append(
                    Conflict(
                        policy=policy.name,
                        rival=rival.name,
                        priority=policy.priority,
                        rival_priority=rival.priority,
                        cards=tuple(g.uuid for g in cards),
                        indexes=tuple(g.index for g in cards),
                        is_same_age=policy.created == rival.created,
                    )
                )
        return found

    def _is_short(self, policy: PolicyView, matched: list[Gpu]) -> bool:
        granted = sum(name == policy.name for name in self.taken.values())
        return granted < _wanted(policy, matched)


def _wanted(policy: PolicyView, matched: Sequence[Gpu]) -> int:
    limit = len(matched) if policy.gpus_per_node is None else policy.gpus_per_node
    return min(limit, len(matched))


def _owner(
    gpu: Gpu, taken: Mapping[str, str], ranked: Sequence[PolicyView], shares: Sequence[Share]
) -> CardOwner:
    """Say who owns a card, or the first reason in order of precedence why nobody does."""
    if gpu.uuid in taken:
        return CardOwner(gpu.uuid, gpu.index, taken[gpu.uuid], Reason.ACCEPTED)
    missed = [m.refusal for share in shares for m in share.missed if m.uuid == gpu.uuid]
    if missed:
        return CardOwner(gpu.uuid, gpu.index, None, missed[0].reason, missed[0].message)
    selecting = [share.policy for share in shares if gpu.uuid in share.matched]
    if selecting:
        message = f"not needed: {listing(selecting)} has enough cards of this node (gpusPerNode)"
    elif ranked:
        message = "no policy selects it"
    else:
        message = "no policy selects this node"
    return CardOwner(gpu.uuid, gpu.index, None, Reason.IDLE, message)
