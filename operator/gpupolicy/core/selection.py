"""What a selector means for the devices there are: verdicts, and a preview that says what matches where.

Pure: the verdicts come from an evaluator that is passed in (`adapters.cel.engine`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

__all__ = ["Admission", "Answer", "Device", "Outcome", "Verdict"]


class Answer(StrEnum):
    """What the API server would do with a new expression."""

    ACCEPTED = "accepted"
    REJECTED = "rejected"
    CANNOT_TELL = "cannot-tell"
    """Not known here; ask a server."""


class Outcome(StrEnum):
    """What an expression says about a device."""

    MATCH = "match"
    NO_MATCH = "no-match"
    ERROR = "error"
    """Evaluation fails. On a real cluster that aborts the scheduling of every pod whose class says this."""
    CANNOT_TELL = "cannot-tell"
    """The outcome on a real server is not known here."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What an expression says about one device; `reason` is empty unless something went wrong."""

    outcome: Outcome
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Admission:
    """What the API server would say to a new expression."""

    answer: Answer
    reason: str
    line: int = 0
    column: int = 0
    """Place of the first fault, counted from 1; 0 when there is none."""
    estimated_cost: int | None = None
    """Most that the expression can cost; None when that is not known."""


@dataclass(frozen=True, slots=True)
class Device:
    """A device as a selector sees it, with where it was found."""

    driver: str
    attributes: Mapping[str, Any] = field(default_factory=dict)
    capacity: Mapping[str, Any] = field(default_factory=dict)
    allow_multiple_allocations: bool = False
    name: str = ""
    node: str = ""
    pool: str = ""
