"""Spaces the repairs of one thing, against somebody who undoes each of them.

Two programs that put the same field right in turn would load the API server, and flood the events, for as long as both
run. So the first repair after a quiet time comes at once, and the pause before the next one doubles each time.
"""

import time
from collections.abc import Callable, Hashable
from typing import Final

FIRST_SECONDS: Final = 1.0
LONGEST_SECONDS: Final = 300.0


class Pacing:
    """When which thing may be repaired again.

    Args:
        longest_seconds: the longest pause.
        clock: monotonic seconds.
    """

    def __init__(
        self, *, longest_seconds: float = LONGEST_SECONDS, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._longest = longest_seconds
        self._clock = clock
        self._repairs: dict[Hashable, tuple[float, float]] = {}
        """When a thing was repaired last, and the pause after that."""

    def due_seconds(self, thing: Hashable) -> float:
        """Return how long the next repair of a thing has to wait; 0 where it may come now."""
        repaired_at, pause = self._repairs.get(thing, (0.0, 0.0))
        return max(0.0, repaired_at + pause - self._clock())

    def note(self, thing: Hashable) -> None:
        """Note that a thing is being repaired."""
        now = self._clock()
        # A quiet time of twice the pause ends the fight; so what is remembered stays as little as there are fights.
        self._repairs = {key: (at, p) for key, (at, p) in self._repairs.items() if now - at <= 3 * p}
        _, pause = self._repairs.get(thing, (0.0, 0.0))
        self._repairs[thing] = (now, min(max(2 * pause, FIRST_SECONDS), self._longest))
