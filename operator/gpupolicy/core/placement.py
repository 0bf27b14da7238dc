"""Where MIG instances can lie on a card: every arrangement of a multiset of profiles.

Theory. A card has a row of memory slices (4, 8 or 12). A profile may lie only at the placements that its driver lists,
so a layout is a set of (profile, placement) pairs whose bit masks are disjoint. Two more rules bind the multiset
and not the places: `max_instances` of each profile, and the media engines (an instance holds its decoders,
encoders, JPEG and OFA engines, and the card has only so many; this is why there is one `+me` instance at most).

The number of arrangements of one multiset is small: at most 150 on the 7-slice cards (2,318 over all 127 multisets)
and 24 on a 12-slice one. So nothing clever is needed: all of them are listed, large profiles first, equal
profiles in rising order of start so that no arrangement appears twice. An exact choice among them is a scan.
Pairs are numbered per card, and an arrangement is two integers: the set of its pairs and the set of its slices.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, islice

from gpupolicy.core.inventory import MigProfile, Placement

Counts = tuple[tuple[int, int], ...]
"""A multiset of profiles: (profile id, count) sorted by id, every count at least 1."""

ENGINES = ("decoders", "encoders", "jpeg_engines", "ofa_engines")
"""Engines that instances hold for themselves. Copy engines are shared when they run short, so they bind nothing."""


MOST_ARRANGEMENTS = 20_000
"""How many arrangements are looked at. No card comes near; a table gone mad must not eat the node. Beyond, the choice
is the best of the first ones: still legal, maybe not the cheapest."""


@dataclass(frozen=True, slots=True)
class PlacedProfile:
    """A profile at one of its placements: what an instance is before it has ids."""

    profile_id: int
    profile: str
    """The card's own name of the profile."""
    placement: Placement


@dataclass(frozen=True, slots=True)
class Arrangement:
    """One way to place a multiset: bit i of `pairs` is pair i of the geometry, `slices` are the memory slices."""

    pairs: int
    slices: int


class Geometry:
    """The pairs of a card, numbered: large profiles first, then by profile id and start.

    It is a value derived from the profiles alone; `geometry` keeps the few that a fleet has.
    """

    __slots__ = ("_index", "_ranges", "pairs", "profiles")

    def __init__(self, profiles: tuple[MigProfile, ...]) -> None:
        ordered = sorted(profiles, key=lambda p: (-max((q.size for q in p.placements), default=0), p.id))
        self.profiles = {p.id: p for p in ordered}
        self._ranges: dict[int, range] = {}
        pairs: list[PlacedProfile] = []
        for profile in self.profiles.values():
            first = len(pairs)
            pairs += [PlacedProfile(profile.id, profile.name, q) for q in sorted(set(profile.placements))]
            self._ranges[profile.id] = range(first, len(pairs))
        self.pairs = tuple(pairs)
        self._index = {(pair.profile_id, pair.placement): i for i, pair in enumerate(pairs)}

    def index_of(self, profile_id: int, placement: Placement) -> int | None:
        """Return the number of a pair; None where the card does not list it."""
        return self._index.get((profile_id, placement))

    def pairs_in(self, bits: int) -> tuple[PlacedProfile, ...]:
        """Return the pairs of a bit set in their order: large profiles first, then by start."""
        return tuple(pair for i, pair in enumerate(self.pairs) if bits >> i & 1)

    def permits(self, counts: Counts) -> bool:
        """Whether the rules that know no places allow the multiset: known profiles, `max_instances`, engines."""
        if any(i not in self.profiles or n > self.profiles[i].max_instances for i, n in counts):
            return False
        return all(
            sum(n * getattr(self.profiles[i], engine) for i, n in counts) <= total
            for engine, total in self._engine_totals()
        )

    def _engine_totals(self) -> Iterator[tuple[str, int]]:
        """Yield the engines that bind, with how many the card has: as many as its richest profile.

        An engine that one profile alone could over-book is evidently not held exclusively on this card (or
        the driver counts it in another way), so it binds nothing.
        """
        for engine in ENGINES:
            total = max((getattr(p, engine) for p in self.profiles.values()), default=0)
            if all(p.max_instances * getattr(p, engine) <= total for p in self.profiles.values()):
                yield engine, total

    def arrangements(self, counts: Counts) -> Iterator[Arrangement]:
        """Yield every arrangement of a multiset, each once, in a fixed order; none where it cannot fit."""
        if not self.permits(counts):
            return
        wanted = dict(counts)
        items = [i for i in self.profiles for _ in range(wanted.get(i, 0))]
        yield from self._place(items, 0, 0, 0, 0)

    def _place(
        self, items: list[int], at: int, lowest: int, pairs: int, slices: int
    ) -> Iterator[Arrangement]:
        """Place items[at:] beside what is placed; `lowest` is the first pair that an equal profile may take."""
        if at == len(items):
            yield Arrangement(pairs, slices)
            return
        for i in self._ranges[items[at]]:
            mask = self.pairs[i].placement.mask
            if i < lowest or mask & slices:
                continue
            following = i + 1 if items[at : at + 2] == items[at : at + 1] * 2 else 0
            yield from self._place(items, at + 1, following, pairs | 1 << i, slices | mask)

    def open_masks(self, counts: Counts) -> tuple[int, ...]:
        """Return the masks of all pairs that the rules without places would still allow beside the multiset."""
        present = dict(counts)
        return tuple(
            self.pairs[i].placement.mask
            for profile_id, numbers in self._ranges.items()
            if self.permits(tuple(sorted({**present, profile_id: present.get(profile_id, 0) + 1}.items())))
            for i in numbers
        )


@lru_cache(maxsize=64)
def geometry(profiles: tuple[MigProfile, ...]) -> Geometry:
    """Return the geometry of a card; equal cards share one."""
    return Geometry(profiles)


@lru_cache(maxsize=128)
def all_arrangements(profiles: tuple[MigProfile, ...], counts: Counts) -> tuple[Arrangement, ...]:
    """Return every arrangement of a multiset on a card with these profiles, up to `MOST_ARRANGEMENTS`."""
    return tuple(islice(geometry(profiles).arrangements(counts), MOST_ARRANGEMENTS))


def fits(profiles: tuple[MigProfile, ...], counts: Counts) -> bool:
    """Whether a multiset fits on the empty card."""
    return next(geometry(profiles).arrangements(counts), None) is not None


def most(profiles: tuple[MigProfile, ...], counts: Counts, profile_id: int) -> int | None:
    """Return the most instances of one profile that fit beside the rest of the multiset, at most as many as wanted.

    None where even without that profile the rest does not fit.
    """
    wanted = dict(counts)
    limit = min(wanted.pop(profile_id, 0), geometry(profiles).profiles[profile_id].max_instances)
    for count in range(limit, -1, -1):
        rest = wanted | ({profile_id: count} if count else {})
        if fits(profiles, tuple(sorted(rest.items()))):
            return count
    return None


def counts_of(profile_ids: Iterable[int]) -> Counts:
    """Return the multiset of the given profile ids."""
    ids = sorted(profile_ids)
    return tuple((i, ids.count(i)) for i in sorted(set(ids)))


def layouts(profiles: tuple[MigProfile, ...]) -> Iterator[Counts]:
    """Yield every multiset of profiles that fits on the card, the empty one left out, in a fixed order."""
    ids = tuple(geometry(profiles).profiles)

    def grow(at: int, chosen: tuple[tuple[int, int], ...]) -> Iterator[Counts]:
        if at == len(ids):
            if chosen:
                yield tuple(sorted(chosen))
            return
        yield from grow(at + 1, chosen)
        for count in range(1, geometry(profiles).profiles[ids[at]].max_instances + 1):
            grown = (*chosen, (ids[at], count))
            if not fits(profiles, tuple(sorted(grown))):
                return
            yield from grow(at + 1, grown)

    yield from chain(grow(0, ()))
