"""Blocking calls in threads: one at a time per lane, each with a deadline, and a hung one in nobody's way.

A lane is one card (or the driver as a whole). Work on different lanes runs side by side on a few daemon threads.
A call that is overdue cannot be ended; its thread is written off and its lane is closed until the call returns, so
there are never more lost threads than lanes. Daemon threads, because a hung call must not hold up the exit of the
process either; that is why this is no ThreadPoolExecutor.
"""

import asyncio
import contextlib
import queue
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeVar

from gpupolicy.adapters.nvml.errors import NO_CODE, Fault, NvmlError

_T = TypeVar("_T")

THREADS: Final = 4
"""How many calls may be under way at once; hung ones do not count."""

_running = threading.local()


class HangError(NvmlError):
    """A call has not returned within its deadline.

    Attributes:
        since: when the call was made.
    """

    def __init__(self, call: str, since: datetime) -> None:
        self.since = since
        super().__init__(
            call,
            NO_CODE,
            f"hangs since {since:%Y-%m-%dT%H:%M:%SZ}; the card is left alone until the call returns. A driver that "
            "does not answer usually needs a reboot of the node",
            fault=Fault.HANGS,
        )


class _Job:
    """One piece of work: some calls in a row. Written by its thread, read by the loop."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self.function = function
        self.call = "NVML"
        self.called_at = time.monotonic()
        self.done = asyncio.get_running_loop().create_future()

    def enter(self, call: str) -> None:
        self.call = call
        self.called_at = time.monotonic()


def entering(call: str) -> None:
    """Say which call this thread is about to make; the deadline counts from here."""
    job = getattr(_running, "job", None)
    if job is not None:
        job.enter(call)


class _Lane:
    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.job: _Job | None = None


class Lanes:
    """The threads and the lanes.

    Args:
        call_seconds: how long a single call may take.
    """

    def __init__(self, *, call_seconds: float) -> None:
        self._call_seconds = call_seconds
        self._lanes: dict[str, _Lane] = {}
        self._jobs: queue.SimpleQueue[tuple[_Job, asyncio.AbstractEventLoop] | None] = queue.SimpleQueue()
        self._idle = 0
        self._threads = 0
        self._room = asyncio.Semaphore(THREADS)

    async def run(self, lane: str, function: Callable[[], _T]) -> _T:
        """Run a blocking function on a lane, after everything that is under way there.

        Raises:
            HangError: a call of it, or one before it on this lane, is overdue.
        """
        state = self._lanes.setdefault(lane, _Lane())
        async with state.lock:
            if state.job is not None:
                # The caller before was cancelled or gave up; what it started may still be under way.
                await self._wait(state.job)
            async with self._room:
                state.job = job = _Job(function)
                job.done.add_done_callback(lambda _: self._clear(state, job))
                self._start(job)
                await self._wait(job)
        result: _T = job.done.result()
        return result

    @property
    def busy(self) -> bool:
        """Whether any call is under way, hung ones included."""
        return any(lane.job is not None for lane in self._lanes.values())

    def slow(self, seconds: float) -> dict[str, tuple[str, datetime]]:
        """Return the calls that have not returned for so long: by lane, the call and when it was made."""
        now, clock = time.monotonic(), datetime.now(UTC)
        jobs = {name: lane.job for name, lane in self._lanes.items() if lane.job is not None}
        return {
            name: (job.call, clock - timedelta(seconds=now - job.called_at))
            for name, job in jobs.items()
            if now - job.called_at >= seconds
        }

    def close(self) -> None:
        """End the idle threads; hung ones end with the process."""
        for _ in range(self._threads):
            self._jobs.put(None)

    def _clear(self, state: _Lane, job: _Job) -> None:
        if state.job is job:
            state.job = None
        # Whoever gave up on the job no longer asks for its outcome; this keeps asyncio from complaining.
        if not job.done.cancelled():
            job.done.exception()

    async def _wait(self, job: _Job) -> None:
        """Wait until a job is done, or one of its calls is overdue."""
        while not job.done.done():
            called_at, call = job.called_at, job.call
            left = called_at + self._call_seconds - time.monotonic()
            if left <= 0:
                since = datetime.now(UTC).timestamp() - (time.monotonic() - called_at)
                raise HangError(call, datetime.fromtimestamp(since, UTC))
            await asyncio.wait([job.done], timeout=left)

    def _start(self, job: _Job) -> None:
        if self._idle:
            self._idle -= 1
        else:
            self._threads += 1
            threading.Thread(target=self._work, name=f"nvml-{self._threads}", daemon=True).start()
        self._jobs.put((job, asyncio.get_running_loop()))

    def _work(self) -> None:
        while (entry := self._jobs.get()) is not None:
            job, loop = entry
            _running.job = job
            job.enter(job.call)
            try:
                result, error = job.function(), None
            except BaseException as failure:  # noqa: BLE001 - whatever it is, it belongs to who asked.
                result, error = None, failure
            _running.job = None
            # The loop may be gone: then nobody waits for the outcome.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(self._finish, job, result, error)
            del entry, job, result, error

    def _finish(self, job: _Job, result: Any, error: BaseException | None) -> None:
        self._idle += 1
        if job.done.done():
            return
        if error is not None:
            job.done.set_exception(error)
        else:
            job.done.set_result(result)
