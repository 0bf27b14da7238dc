"""A second opinion on layouts, by brute force over plain sets.

It shares nothing with the planner but the tables: a layout is a set of (profile id, start), its rules are checked from
the definition, and the best one is found by trying all.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import combinations, product
from typing import NamedTuple

from gpupolicy.core.inventory import MigProfile

Spot = tuple[int, int]
"""Profile id and start."""
Spots = frozenset[Spot]


class Cost(NamedTuple):
    """What a layout costs, most important first."""

    in_use_lost: int
    idle_lost: int
    created: int


class Oracle:
    """What is possible on one card."""

    def __init__(self, profiles: Iterable[MigProfile]) -> None:
        self.profiles = {p.id: p for p in profiles}
        whole = max(self.profiles.values(), key=lambda p: p.slices * 1000 + p.placements[0].size)
        self.engines = {
            kind: getattr(whole, kind) for kind in ("decoders", "encoders", "jpeg_engines", "ofa_engines")
        }
        self.spots = [(p.id, q.start) for p in self.profiles.values() for q in p.placements]

    def cells(self, spot: Spot) -> set[int]:
        profile_id, start = spot
        size = next(q.size for q in self.profiles[profile_id].placements if q.start == start)
        return set(range(start, start + size))

    def is_valid(self, spots: Iterable[Spot]) -> bool:
        """Whether the card can hold these instances at the same time."""
        spots = list(spots)
        covered = [cell for spot in spots for cell in self.cells(spot)]
        if len(covered) != len(set(covered)):
            return False
        counts = Counter(profile_id for profile_id, _ in spots)
        if any(n > self.profiles[i].max_instances for i, n in counts.items()):
            return False
        return all(
            sum(getattr(self.profiles[i], kind) * n for i, n in counts.items()) <= total
            for kind, total in self.engines.items()
        )

    def layouts(self, wanted: Counter[int]) -> Iterator[Spots]:
        """Yield every way to place the multiset."""
        choices = [
            [[(i, q.start) for q in chosen] for chosen in combinations(self.profiles[i].placements, n)]
            for i, n in wanted.items()
        ]
        for combination in product(*choices):
            spots = frozenset(spot for part in combination for spot in part)
            if self.is_valid(spots):
                yield spots

    def open_spots(self, spots: Spots) -> int:
        """Return how many (profile, start) pairs could be added to a layout, each alone."""
        return sum(self.is_valid([*spots, spot]) for spot in self.spots)

    def best(self, wanted: Counter[int], in_use: Spots, idle: Spots) -> tuple[Cost, set[Spots]] | None:
        """Return the least cost and the layouts that have it; None where nothing fits."""
        priced: dict[Cost, set[Spots]] = {}
        for spots in self.layouts(wanted):
            cost = Cost(len(in_use - spots), len(idle - spots), len(spots - in_use - idle))
            priced.setdefault(cost, set()).add(spots)
        return min(priced.items()) if priced else None

    def multisets(self) -> Iterator[Counter[int]]:
        """Yield every multiset that fits, built spot by spot."""
        seen: set[Spots] = {frozenset()}
        frontier = [frozenset()]
        known: set[tuple[tuple[int, int], ...]] = set()
        while frontier:
            spots = frontier.pop()
            for spot in self.spots:
                grown = spots | {spot}
                if spot in spots or grown in seen or not self.is_valid(grown):
                    continue
                seen.add(grown)
                frontier.append(grown)
                counts = Counter(i for i, _ in grown)
                key = tuple(sorted(counts.items()))
                if key not in known:
                    known.add(key)
                    yield counts
