"""The queue of what is to be reconciled: keyed, each key at most once, never two workers on one key.

Theory of operation.

    add ──> waiting ──(due)──> ready ──get──> running ──done──> (idle, or ready again if added meanwhile)
                                                     └─retry──> waiting, with a growing pause

A key that is added while it runs is run again afterwards: what the worker has read may be older than what the add
was about. A key is due at the earliest of the times that were asked for, but never sooner after its last start than
`spacing_seconds`: a burst of events becomes one run at once and one after it.
"""

import asyncio
import time
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from gpupolicy.adapters.kube import backoff

K = TypeVar("K", bound=Hashable)

FIRST_RETRY_SECONDS = 0.5
RETRY_CAP_SECONDS = 60.0


class WorkQueue(Generic[K]):
    """Keys that wait for a worker. To be used from one event loop."""

    def __init__(self, *, spacing_seconds: float = 0.0, clock: Callable[[], float] = time.monotonic) -> None:
        """Make an empty queue.

        Args:
            spacing_seconds: least time between two starts of one key.
            clock: monotonic seconds, the clock of the event loop.
        """
        self._spacing_seconds = spacing_seconds
        self._clock = clock
        self._due: dict[K, float] = {}
        self._running: set[K] = set()
        self._again: dict[K, float] = {}
        self._started: dict[K, float] = {}
        self._backoffs: dict[K, backoff.Backoff] = {}
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        """Return how many keys wait or run."""
        return len(self._due.keys() | self._running)

    def add(self, key: K, *, after_seconds: float = 0.0) -> None:
        """Ask for a run of a key, `after_seconds` from now at the latest."""
        at = self._clock() + after_seconds
        if key in self._running:
            self._again[key] = min(at, self._again.get(key, at))
            return
        # Spacing is relative to the start of the last run, so the first event after a quiet time is served at once.
        at = max(at, self._started.get(key, -self._spacing_seconds) + self._spacing_seconds)
        if at < self._due.get(key, float("inf")):
            self._due[key] = at
            self._changed.set()

    async def get(self) -> K:
        """Wait for the key that is due first, and take it; `done` or `retry` must follow."""
        while True:
            self._changed.clear()
            key = min(self._due, key=lambda k: self._due[k], default=None)
            wait = None if key is None else self._due[key] - self._clock()
            if key is not None and wait is not None and wait <= 0:
                del self._due[key]
                self._running.add(key)
                self._started[key] = self._clock()
                # Another worker may wait for a key that became due meanwhile.
                self._changed.set()
                return key
            try:
                async with asyncio.timeout(wait):
                    await self._changed.wait()
            except TimeoutError:
                continue

    def done(self, key: K) -> None:
        """Say that a run succeeded."""
        self._backoffs.pop(key, None)
        self._finish(key)

    def retry(self, key: K, *, at_least_seconds: float = 0.0) -> float:
        """Say that a run failed; return after how many seconds the next one comes."""
        pause = self._backoffs.setdefault(key, backoff.Backoff(FIRST_RETRY_SECONDS, RETRY_CAP_SECONDS))
        seconds = max(at_least_seconds, pause.next_seconds())
        self._finish(key)
        self.add(key, after_seconds=seconds)
        return seconds

    def oldest_seconds(self) -> float:
        """Return for how long the key that is most overdue has been waiting; 0 where none is."""
        return max(0.0, self._clock() - min(self._due.values(), default=float("inf")))

    def forget(self, key: K) -> None:
        """Drop what is remembered of a key whose object is gone."""
        for memory in (self._backoffs, self._started):
            memory.pop(key, None)

    def _finish(self, key: K) -> None:
        self._running.discard(key)
        again = self._again.pop(key, None)
        if again is not None:
            self.add(key, after_seconds=max(0.0, again - self._clock()))
