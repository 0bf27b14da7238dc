"""What one benchmark found: a figure against its bar.

The bar is a fixed limit, or so many times a floor that was measured in the same run, interleaved with the samples. The
ratio of value to floor is what compares between machines.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

__all__ = ["Result", "against_floor", "against_limit"]


@dataclass(frozen=True, slots=True)
class Result:
    """One figure against its bar; less is better."""

    value: float
    unit: str
    floor: float
    """What the bar names: a limit, or the least that is possible."""
    samples: int
    name: str = ""
    """What a benchmark with several figures calls this one."""
    details: Mapping[str, Any] = field(default_factory=dict)
    """What else is worth knowing."""
    bar: float = 1.0
    """How many times `floor` the value may be."""

    @property
    def is_met(self) -> bool:
        """Whether the bar is met."""
        return self.value <= self.bar * self.floor

    def to_line(self, bench: str) -> dict[str, Any]:
        """Return the object that is printed. `ratio` is value to floor, None where the floor is nought."""
        return {
            "bench": f"{bench}-{self.name}" if self.name else bench,
            "value": _short(self.value),
            "unit": self.unit,
            "floor": _short(self.floor),
            "ratio": _short(self.value / self.floor) if self.floor else None,
            "bar": self.bar,
            "met": self.is_met,
            "samples": self.samples,
            **self.details,
        }


def against_limit(
    samples: Sequence[float],
    unit: str,
    limit: float,
    *,
    name: str = "",
    details: Mapping[str, Any] | None = None,
) -> Result:
    """Return the figure of samples whose median may be at most `limit`."""
    return Result(median(samples), unit, limit, len(samples), name=name, details=details or {})


def against_floor(samples: Sequence[float], floors: Sequence[float], *, bar: float) -> Result:
    """Return the figure of samples in seconds whose median may be at most `bar` times that of the floors."""
    return Result(median(samples) * 1e3, "ms", median(floors) * 1e3, len(samples), bar=bar)


def _short(value: float) -> float:
    return float(f"{value:.4g}")
