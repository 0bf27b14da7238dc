"""What a benchmark is, what the benchmarks of one run share, and the list of all.

A module of this package lists its own in `BENCHES`.
"""

import contextlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Final, Self

from bench.result import Result

if TYPE_CHECKING:
    from bench.installed import Installed
    from bench.world import World

_MODULES: Final = (
    "plan",
    "cel",
    "policy_to_class",
    "policy_to_slices",
    "claims",
    "agent_idle",
    "installation",
    "images",
)


@dataclass(slots=True)
class Session:
    """What the benchmarks of one run share. Use it as a context manager.

    Attributes:
        samples: how many samples to take; None: as many as each benchmark thinks right.
        idle_seconds: how long idle programs are watched.
    """

    samples: int | None = None
    idle_seconds: float = 60.0
    _world: "World | None" = None
    _installed: "Installed | None" = None
    _stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def world(self) -> "World":
        """Return the control plane with one node, its agent and a controller; started when first asked for."""
        if self._world is None:
            # The planner's figures need neither a cluster nor the modules that start one.
            from bench.world import World

            self._world = self._stack.enter_context(World.start())
        return self._world

    def installed(self) -> "Installed":
        """Return the control plane with eight nodes and our images on them; started when first asked for."""
        if self._installed is None:
            from bench.installed import Installed

            self._installed = self._stack.enter_context(Installed.start())
        return self._installed

    def count(self, default: int) -> int:
        """Return how many samples to take."""
        return self.samples or default


@dataclass(frozen=True, slots=True)
class Bench:
    """One benchmark: what it tells in one sentence, and how it is measured."""

    name: str
    description: str
    measure: Callable[[Session], Iterable[Result]]


def benches() -> dict[str, Bench]:
    """Return all benchmarks by name, in the order in which they run."""
    found = [bench for module in _MODULES for bench in import_module(f"bench.{module}").BENCHES]
    return {bench.name: bench for bench in found}
