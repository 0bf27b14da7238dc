"""What one benchmark found."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Result"]


@dataclass(frozen=True, slots=True)
class Result:
    """One figure against its bar; less is better."""

    value: float
    unit: str
    floor: float
    """The bar: the value must not be greater."""
    samples: int
    name: str = ""
    """What a benchmark with several figures calls this one."""
    details: Mapping[str, Any] = field(default_factory=dict)
    """What else is worth knowing."""

    @property
    def is_met(self) -> bool:
        """Whether the bar is met."""
        return self.value <= self.floor

    def to_line(self, bench: str) -> dict[str, Any]:
        """Return the object that is printed. `ratio` is value to bar, None where the bar is nought."""
        return {
            "bench": f"{bench}-{self.name}" if self.name else bench,
            "value": round(self.value, 6),
            "unit": self.unit,
            "floor": self.floor,
            "ratio": round(self.value / self.floor, 4) if self.floor else None,
            "samples": self.samples,
            **self.details,
        }
