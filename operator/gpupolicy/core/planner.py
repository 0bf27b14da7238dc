"""The plan for one card: what stays, what goes, what is made, and what has to wait.

Theory. All arrangements of the wanted multiset on the empty card are listed (`core/placement.py`). An instance that
stands is kept by an arrangement exactly when its (profile, placement) pair is part of it, so each arrangement
prices itself, and the cheapest one, in this order, is the plan:

1. instances in use that are not kept. They are never destroyed: if even the cheapest arrangement leaves some out,
   these are the smallest set of instances in the way, and the card waits for them;
2. idle instances that are not kept (they are destroyed);
3. instances to be made. Their number follows from 1 and 2, so it needs no comparison of its own;
4. while waiting: instances that cannot be made yet;
5. places that claims name although nothing stands there (a reboot took it): the more of them are made, the more of
   those claims' pods can go on;
6. openness: of all (profile, placement) pairs that the rules would still allow beside the layout, the number that
   stays free; the more the better for what may come;
7. the order in which arrangements are listed (large profiles at low starts first).

A partial step is taken while waiting only where it makes something that is wanted. Planning on the result of a plan
gives the same arrangement and nothing to do.

No arrangement at all means that the layout can never fit on this card, whatever runs there.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from gpupolicy.api.conditions import Reason
from gpupolicy.core.inventory import Gpu, Health, Instance, Ownership, Placement
from gpupolicy.core.layouts import Layout, OnDemand, StaticLayout, WholeCard
from gpupolicy.core.placement import (
    Arrangement,
    Counts,
    Geometry,
    PlacedProfile,
    all_arrangements,
    counts_of,
    geometry,
    most,
)
from gpupolicy.core.profiles import find_profile
from gpupolicy.core.refusals import Refusal, instance_label, listing, users, waiting


@dataclass(frozen=True, slots=True)
class Change:
    """Writes to one card. Instances go before the mode changes to off, and come after it changes to on."""

    mig_mode: bool | None = None
    """The MIG mode to set; None leaves it."""
    destroy: tuple[Instance, ...] = ()
    """By start of their placement."""
    create: tuple[PlacedProfile, ...] = ()
    """Large profiles first, then by start."""

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to write."""
        return self.mig_mode is None and not self.destroy and not self.create


@dataclass(frozen=True, slots=True)
class CardPlan:
    """How a card gets its layout. Without `waiting` the layout stands once `now` is done."""

    uuid: str
    layout: Layout
    keep: tuple[Instance, ...] = ()
    """Instances that stand and are part of the layout. Only these, and what is made, are to be offered."""
    adopt: tuple[Instance, ...] = ()
    """Those of `keep` that somebody else made and that are ours from now on."""
    now: Change = field(default_factory=Change)
    """What can be done at once; touches nothing that is in use."""
    later: Change = field(default_factory=Change)
    """What is left once `waiting` has passed. It is for people; the next plan decides anew."""
    waiting: Refusal | None = None
    """Why the layout cannot be reached yet: WaitingForClaims or MigActivationPending, with what is in the way."""

    @property
    def is_applied(self) -> bool:
        """Whether the layout stands already."""
        return self.waiting is None and self.now.is_empty

    @property
    def in_the_way(self) -> tuple[Instance, ...]:
        """Instances in use that are not part of the layout: not to be claimed again, gone once they are free."""
        return self.waiting.instances if self.waiting else ()


Places = frozenset[tuple[int, Placement]]
"""Pairs of profile id and placement."""


def plan_card(
    gpu: Gpu, layout: Layout, *, adopt: bool = False, prefer: Places = frozenset()
) -> CardPlan | Refusal:
    """Plan one card.

    Args:
        gpu: The card as observed, with the claims and processes that use it.
        layout: What it is to be.
        adopt: Whether instances that we did not make may be kept as ours, and destroyed where idle.
        prefer: Places where claims expect an instance that does not stand.

    Returns:
        The plan; or a refusal where nothing can be done until somebody changes something: InvalidLayout (can
        never fit, or no such profile), MigUnsupported, OwnershipConflict, GpuUnhealthy, NotImplemented.
    """
    outcome = _plan_healthy(gpu, layout, adopt=adopt, prefer=prefer)
    if gpu.health == Health.HEALTHY or (isinstance(outcome, CardPlan) and outcome.is_applied):
        return outcome
    detail = f": {gpu.health_message}" if gpu.health_message else ""
    return Refusal(
        Reason.GPU_UNHEALTHY,
        f"the health of {_card(gpu)} is {gpu.health}{detail}. It is not changed until it is healthy again",
    )


def plan_release(gpu: Gpu, *, mode_is_ours: bool) -> CardPlan | Refusal:
    """Plan a card that no policy has any more and that is to be as it was found, where it is idle.

    Our instances go. MIG mode goes only where we switched it on: a mode that was on before is somebody else's.

    Args:
        gpu: The card as observed.
        mode_is_ours: Whether the ledger proves that we switched MIG mode on.

    Returns:
        As `plan_card` for a whole card.
    """
    plan = plan_card(gpu, WholeCard())
    if isinstance(plan, Refusal) or mode_is_ours:
        return plan
    now, later = replace(plan.now, mig_mode=None), replace(plan.later, mig_mode=None)
    waits = not later.is_empty
    return replace(plan, now=now, later=later, waiting=plan.waiting if waits else None)


def layout_refusal(gpu: Gpu, layout: Layout) -> Refusal | None:
    """Return why a layout can never stand on a card, whatever runs there; None where it can or nobody can tell.

    Of reason InvalidLayout, MigUnsupported or NotImplemented.
    """
    if gpu.health != Health.HEALTHY and not gpu.mig.profiles:
        return None  # A sick card may not even answer what it offers.
    counts = _counts(gpu, layout)
    return counts if isinstance(counts, Refusal) else None


def _plan_healthy(gpu: Gpu, layout: Layout, *, adopt: bool, prefer: Places) -> CardPlan | Refusal:
    counts = _counts(gpu, layout)
    if isinstance(counts, Refusal):
        return counts
    foreign = tuple(i for i in gpu.instances if i.ownership != Ownership.OWNED)
    if foreign and not adopt:
        return Refusal(
            Reason.OWNERSHIP_CONFLICT,
            f"{_card(gpu)} has MIG instances that GpuPolicy did not make: {listing(map(instance_label, foreign))}. "
            "Delete them (nvidia-smi mig -dci, then -dgi)",
            instances=foreign,
        )
    return _plan_cut(gpu, layout, counts, prefer) if counts else _plan_whole(gpu, layout)


def _card(gpu: Gpu) -> str:
    return gpu.product_name or gpu.uuid


def _counts(gpu: Gpu, layout: Layout) -> Counts | Refusal:
    """Turn names into ids, and refuse what can never fit on this card. A whole card has no instances: ()."""
    match layout:
        case WholeCard():
            return ()
        case OnDemand():
            return Refusal(
                Reason.NOT_IMPLEMENTED,
                "MIG instances on demand are not served yet; use mig.mode Static with a layout",
            )
        case StaticLayout():
            return _static_counts(gpu, layout)


def _static_counts(gpu: Gpu, layout: StaticLayout) -> Counts | Refusal:
    if not gpu.mig.capable:
        return Refusal(Reason.MIG_UNSUPPORTED, f"{_card(gpu)} cannot be partitioned (no MIG)")
    profiles = gpu.mig.profiles
    wanted: dict[int, int] = {}
    for entry in layout.instances:
        found = find_profile(entry.profile, profiles, _card(gpu))
        if isinstance(found, Refusal):
            return found
        if entry.count < 1:
            return Refusal(
                Reason.INVALID_LAYOUT, f"{entry.profile}: count is {entry.count} and must be at least 1"
            )
        wanted[found.id] = wanted.get(found.id, 0) + entry.count
    if not wanted:
        return Refusal(
            Reason.INVALID_LAYOUT, "the layout is empty; name a profile, or use a whole-card strategy"
        )
    counts = tuple(sorted(wanted.items()))
    if all_arrangements(profiles, counts):
        return counts
    return Refusal(Reason.INVALID_LAYOUT, _why_it_never_fits(gpu, counts))


def _why_it_never_fits(gpu: Gpu, counts: Counts) -> str:
    """Say which single reduction makes the layout fit, or what each profile allows alone."""
    profiles = gpu.mig.profiles
    by_id = geometry(profiles).profiles
    named = sorted(counts, key=lambda item: (-by_id[item[0]].slices, by_id[item[0]].name))
    wanted = " + ".join(f"{by_id[i].name} x{n}" for i, n in named)
    remedies = []
    for i, _ in named:
        count = most(profiles, counts, i)
        if count is not None:
            remedies.append(
                f"at most {count} of {by_id[i].name}" if len(counts) == 1 else f"{by_id[i].name} x{count}"
            )
    if len(counts) == 1:
        return f"{wanted} does not fit on {_card(gpu)}: {remedies[0]}"
    if remedies:
        return f"{wanted} does not fit on {_card(gpu)}; it would fit with {' or '.join(remedies)}"
    alone = ", ".join(f"{by_id[i].max_instances} of {by_id[i].name}" for i, _ in named)
    return f"{wanted} does not fit on {_card(gpu)}; each alone, at most {alone}"


def _plan_whole(gpu: Gpu, layout: Layout) -> CardPlan:
    """Plan a card without MIG."""
    mode = gpu.mig
    if not mode.enabled and not gpu.instances:
        cancel = mode.pending_enabled is True and not gpu.in_use
        return CardPlan(gpu.uuid, layout, now=Change(mig_mode=False) if cancel else Change())
    pending = mode.pending_enabled is False
    change = Change(mig_mode=None if pending else False, destroy=_by_start(gpu.instances))
    if gpu.in_use:
        in_the_way = _by_start(i for i in gpu.instances if i.in_use)
        return CardPlan(gpu.uuid, layout, later=change, waiting=waiting(gpu, in_the_way, whole_card=True))
    return CardPlan(gpu.uuid, layout, now=change, waiting=_activation(gpu, enable=False) if pending else None)


def _plan_cut(gpu: Gpu, layout: Layout, counts: Counts, prefer: Places) -> CardPlan:
    """Plan a card with a fixed set of instances that is known to fit on the empty card."""
    standing = _Standing.of(gpu)
    best = standing.cheapest(counts, prefer)
    keep = _by_start(i for bit, i in standing.usable if best.pairs & bit)
    drop = _by_start(i for i in gpu.instances if i not in keep)
    in_the_way = tuple(i for i in drop if i.in_use)
    create = standing.geometry.pairs_in(best.pairs & ~standing.bits)
    change = Change(mig_mode=_mode_to_enable(gpu), destroy=drop, create=create)
    plan = CardPlan(
        gpu.uuid, layout, keep=keep, adopt=tuple(i for i in keep if i.ownership != Ownership.OWNED)
    )
    if not gpu.mig.enabled and gpu.mig.pending_enabled:
        return replace(plan, later=replace(change, mig_mode=None), waiting=_activation(gpu, enable=True))
    if _waits_for_whole_card(gpu, change):
        return replace(plan, later=change, waiting=waiting(gpu, in_the_way, whole_card=True))
    if not in_the_way:
        return replace(plan, now=change)
    now = standing.creatable(create, (*keep, *in_the_way))
    if not now:
        return replace(plan, later=change, waiting=waiting(gpu, in_the_way))
    return replace(
        plan,
        now=Change(destroy=tuple(i for i in drop if not i.in_use), create=now),
        later=Change(destroy=in_the_way, create=tuple(pair for pair in create if pair not in now)),
        waiting=waiting(gpu, in_the_way),
    )


@dataclass(frozen=True, slots=True)
class _Standing:
    """What stands on a card, as pairs of its geometry."""

    gpu: Gpu
    geometry: Geometry
    usable: tuple[tuple[int, Instance], ...]
    """Instances that an arrangement can keep, with the bit of their pair. One without a compute instance is none:
    it is what a crash between two calls leaves, and is made again."""
    bits: int
    in_use_bits: int

    @classmethod
    def of(cls, gpu: Gpu) -> "_Standing":
        card = geometry(gpu.mig.profiles)
        usable = []
        for instance in gpu.instances:
            number = card.index_of(instance.profile_id, instance.placement)
            if number is not None and instance.compute_instance_id is not None:
                usable.append((1 << number, instance))
        return cls(
            gpu=gpu,
            geometry=card,
            usable=tuple(usable),
            bits=sum(bit for bit, _ in usable),
            in_use_bits=sum(bit for bit, instance in usable if instance.in_use),
        )

    def cheapest(self, counts: Counts, prefer: Places) -> Arrangement:
        """Return the arrangement of least cost, in the order that the module's header gives."""
        idle_bits = self.bits & ~self.in_use_bits

        def loss(candidate: Arrangement) -> tuple[int, int]:
            gone = ~candidate.pairs
            return (self.in_use_bits & gone).bit_count(), (idle_bits & gone).bit_count()

        candidates = all_arrangements(self.gpu.mig.profiles, counts)
        least = min(map(loss, candidates))
        equal = [candidate for candidate in candidates if loss(candidate) == least]
        if len(equal) == 1:
            return equal[0]
        open_masks = self.geometry.open_masks(counts)
        numbers = (self.geometry.index_of(*place) for place in prefer)
        preferred = sum(1 << number for number in numbers if number is not None)

        def preference(candidate: Arrangement) -> tuple[int, int, int]:
            free = sum(1 for mask in open_masks if not mask & candidate.slices)
            return self._delayed(candidate), -(candidate.pairs & preferred).bit_count(), -free

        return min(equal, key=preference)

    def _delayed(self, candidate: Arrangement) -> int:
        """Return how many instances of an arrangement cannot be made while everything in use stays."""
        stay = tuple(i for i in self.gpu.instances if i.in_use)
        kept = tuple(i for bit, i in self.usable if bit & candidate.pairs)
        if all(i in kept for i in stay):
            return 0
        create = self.geometry.pairs_in(candidate.pairs & ~self.bits)
        return len(create) - len(self.creatable(create, {*kept, *stay}))

    def creatable(
        self, create: Iterable[PlacedProfile], beside: Iterable[Instance]
    ) -> tuple[PlacedProfile, ...]:
        """Return what of `create` can be made while the instances `beside` it stand."""
        occupied = 0
        present: list[int] = []
        for instance in beside:
            occupied |= instance.placement.mask
            if instance.profile_id in self.geometry.profiles:
                present.append(instance.profile_id)
        made = []
        for pair in create:
            grown = [*present, pair.profile_id]
            if not pair.placement.mask & occupied and self.geometry.permits(counts_of(grown)):
                made.append(pair)
                occupied |= pair.placement.mask
                present = grown
        return tuple(made)


def _by_start(instances: Iterable[Instance]) -> tuple[Instance, ...]:
    return tuple(sorted(instances, key=lambda i: (i.placement, i.profile_id, i.gpu_instance_id)))


def _mode_to_enable(gpu: Gpu) -> bool | None:
    """Return True where MIG mode has to be set; also where it is on but would be off after the next reset."""
    if not gpu.mig.enabled:
        return True
    return True if gpu.mig.pending_enabled is False and not gpu.instances else None


def _waits_for_whole_card(gpu: Gpu, change: Change) -> bool:
    """Whether users of the whole card forbid a change.

    A claim on the whole card forbids any. A process on it forbids the first instance only, which is what really
    partitions the card (and what a change of mode is followed by); further ones do not disturb it.
    """
    return not change.is_empty and bool(gpu.claims or (gpu.processes and not gpu.instances))


def _activation(gpu: Gpu, *, enable: bool) -> Refusal:
    """Return the refusal for a mode that the driver has accepted and that takes effect at the next reset."""
    held = users(gpu.claims, gpu.processes)
    holders = f"it is held by {held}" if held else "something (a monitoring agent?) holds it"
    return Refusal(
        Reason.MIG_ACTIVATION_PENDING,
        f"MIG mode of {_card(gpu)} will be {'on' if enable else 'off'} after the next reset, and {holders}. Stop what "
        f"holds it and reset the card (nvidia-smi --gpu-reset -i {gpu.pci_bus_id or gpu.uuid}), or reboot the node",
        claims=gpu.claims,
        processes=gpu.processes,
    )
