"""What the cards can do, as documented and seen in public transcripts: an oracle apart from the simulator's tables.

`expectations.json` spells every profile out; the simulator's own data file holds geometries and derives the rest.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DATA: dict[str, Any] = json.loads((Path(__file__).parent / "expectations.json").read_text())
MODELS: dict[str, dict[str, Any]] = DATA["models"]


@dataclass(frozen=True, slots=True)
class ComputeProfile:
    """One compute instance profile inside a GPU instance."""

    id: int
    enum: int
    slices: int
    max_instances: int
    multiprocessors: int
    starts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Profile:
    """One GPU instance profile of a card."""

    id: int
    enum: int
    name: str
    memory_mib: int
    multiprocessors: int
    copy_engines: int
    decoders: int
    encoders: int
    jpeg: int
    ofa: int
    max_instances: int
    size: int
    starts: tuple[int, ...]
    compute: tuple[ComputeProfile, ...]

    @property
    def full(self) -> ComputeProfile:
        """The compute instance that fills the GPU instance."""
        return max(self.compute, key=lambda compute: (compute.slices, compute.multiprocessors))

    @property
    def slices(self) -> int:
        """Compute slices of the GPU instance."""
        return self.full.slices

    def units(self, start: int) -> frozenset[int]:
        """Return the memory units that an instance at `start` occupies."""
        return frozenset(range(start, start + self.size))


def profiles_of(model: str) -> list[Profile]:
    """Return the profiles of a model in the order of its listing."""
    return [
        Profile(
            *row[:12],
            starts=tuple(row[12]),
            compute=tuple(ComputeProfile(*c[:5], starts=tuple(c[5])) for c in row[13]),
        )
        for row in MODELS[model]["profiles"]
    ]


def compatible(wanted: Profile, live: list[Profile]) -> bool:
    """Tell whether media engines allow `wanted` beside `live`.

    As documented: a card has one OFA, so one instance with media extensions; `+me.all` takes every engine, and only
    `-me` instances, which have none, may stand beside it.
    """
    if wanted.ofa and any(other.ofa for other in live):
        return False
    if "+me.all" in wanted.name:
        return all("-me" in other.name for other in live)
    return "-me" in wanted.name or not any("+me.all" in other.name for other in live)


def driver_choice(profiles: list[Profile], wanted: Profile, occupied: frozenset[int]) -> int | None:
    """Return where the driver puts an instance: where it blocks the fewest free placements of any profile."""
    free = [(p, s) for p in profiles for s in p.starts if not p.units(s) & occupied]
    candidates = [s for p, s in free if p == wanted]
    return min(
        candidates,
        key=lambda start: (sum(bool(p.units(s) & wanted.units(start)) for p, s in free), start),
        default=None,
    )
