"""What a card is to be: whole, cut into a fixed set of MIG instances, or cut on demand.

A layout is a wish, without ids and placements. It is one value whoever wrote it: two layouts that mean the same
compare equal once `StaticLayout.of` has brought them into order.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class ProfileCount:
    """So many instances of a profile."""

    profile: str
    """Name as somebody wrote it; the card's own name may differ between drivers."""
    count: int


@dataclass(frozen=True, slots=True)
class WholeCard:
    """No MIG: one device, whether one claim holds it or several share it."""

    def __str__(self) -> str:
        return "whole"


@dataclass(frozen=True, slots=True)
class StaticLayout:
    """These MIG instances, on every card the same."""

    instances: tuple[ProfileCount, ...]

    @classmethod
    def of(cls, instances: Iterable[tuple[str, int]]) -> "StaticLayout":
        """Make a layout from (profile name, count) pairs: repeated names are added up, names are sorted."""
        counts: Counter[str] = Counter()
        for profile, count in instances:
            counts[profile] += count
        return cls(tuple(ProfileCount(profile, count) for profile, count in sorted(counts.items())))

    def __str__(self) -> str:
        return " ".join(f"{entry.count}x{entry.profile}" for entry in self.instances)


@dataclass(frozen=True, slots=True)
class OnDemand:
    """MIG mode on, and instances are cut when a claim is prepared."""

    def __str__(self) -> str:
        return "on-demand"


Layout = WholeCard | StaticLayout | OnDemand
