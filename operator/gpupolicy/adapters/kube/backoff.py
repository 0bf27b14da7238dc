"""Waiting times between attempts: exponential with jitter, so that a fleet does not return in step."""

import random
from typing import Final

_RANDOM: Final = random.SystemRandom()


class Backoff:
    """A growing waiting time.

    The n-th answer of `next_seconds` lies between half and all of `first_seconds * 2^n`, `cap_seconds` at most.
    """

    def __init__(self, first_seconds: float, cap_seconds: float) -> None:
        self._first_seconds = first_seconds
        self._cap_seconds = cap_seconds
        self._failures = 0

    def next_seconds(self) -> float:
        """Return how long to wait before the next attempt."""
        # The exponent is bounded because a float overflows after a thousand failures.
        full = min(self._cap_seconds, self._first_seconds * 2.0 ** min(self._failures, 32))
        self._failures += 1
        return full * _RANDOM.uniform(0.5, 1.0)

    def reset(self) -> None:
        """Begin again: something succeeded."""
        self._failures = 0


def between(low_seconds: float, high_seconds: float) -> float:
    """Return a random time, to spread what would otherwise happen at one moment."""
    return _RANDOM.uniform(low_seconds, high_seconds)
