"""Reads golden vectors: verdicts that a real evaluator gave, in the shape of `tests/golden/cel_vectors.json`."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpupolicy.adapters.cel import engine
from gpupolicy.adapters.cel.declarations import Environment
from gpupolicy.core.selection import Admission, Answer, Device, Outcome, Verdict
from tests.paths import ROOT

GOLDEN = ROOT / "tests/golden/cel_vectors.json"
MINOR = 36
"""Release that the golden vectors were made with."""

_UNKNOWN_COST = 2**64 - 1


@dataclass(frozen=True, slots=True)
class Vector:
    """One expression, where it was compiled, the device it met, and what came of it."""

    name: str
    expression: str
    environment: Environment
    device: Device
    expected: dict[str, Any]

    @property
    def is_refused(self) -> bool:
        """Whether it does not compile."""
        return "compileError" in self.expected

    @property
    def outcome(self) -> Outcome:
        """What evaluation gives."""
        if "match" in self.expected:
            return Outcome.MATCH if self.expected["match"] else Outcome.NO_MATCH
        return Outcome.ERROR

    @property
    def answer(self) -> Answer:
        """What creation of the expression gives: refused too when it is too expensive."""
        too_expensive = self.expected["maxCost"] > 1_000_000
        return Answer.REJECTED if self.is_refused or too_expensive else Answer.ACCEPTED

    @property
    def cost(self) -> int | None:
        """Estimated cost, None when it does not compile."""
        return None if self.is_refused else int(self.expected["maxCost"])

    def evaluated(self) -> Verdict:
        """Return our verdict."""
        return engine.evaluate(self.expression, [self.device], self.environment)[0]

    def judged(self) -> Admission:
        """Return our judgement."""
        return engine.judge(self.expression, self.environment)


def read(path: Path = GOLDEN, *, minor: int = MINOR) -> Iterator[Vector]:
    """Yield the vectors of a file."""
    document = json.loads(path.read_text())
    for vector in document["vectors"]:
        device = document["devices"][vector["device"]]
        yield Vector(
            vector["name"],
            vector["expression"],
            Environment(minor=minor, new=vector["newExpressionsEnv"], list_attributes=vector["listAttrs"]),
            Device(
                device["driver"],
                device.get("attributes", {}),
                device.get("capacity", {}),
                device.get("allowMultipleAllocations", False),
            ),
            vector,
        )
