"""Blocking calls in threads: one at a time per lane, a hung one in nobody's way, threads few and never lost for good."""

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Iterator

import pytest

from gpupolicy.adapters.nvml import lanes
from gpupolicy.adapters.nvml.errors import Fault
from gpupolicy.adapters.nvml.lanes import HangError, Lanes

HANG_SECONDS = 1.0
"""After this long a call counts as hung, where that is the subject; a thread of a busy machine needs a while to begin."""


@pytest.fixture
async def pool() -> AsyncIterator[Lanes]:
    """Lanes on which nothing hangs, however busy the machine is."""
    made = Lanes(call_seconds=60)
    yield made
    made.close()


@contextlib.contextmanager
def impatient(pool: Lanes) -> Iterator[None]:
    """Let calls on a pool count as hung soon."""
    before = pool._call_seconds
    pool._call_seconds = HANG_SECONDS
    try:
        yield
    finally:
        pool._call_seconds = before


def nvml_threads() -> int:
    return sum(t.name.startswith("nvml-") for t in threading.enumerate())


async def test_results_and_errors_come_back(pool: Lanes) -> None:
    assert await pool.run("a", lambda: 42) == 42
    with pytest.raises(ValueError, match="no"):
        await pool.run("a", lambda: (_ for _ in ()).throw(ValueError("no")))
    assert await pool.run("a", threading.current_thread) is not threading.main_thread()


async def test_one_at_a_time_per_lane_and_lanes_side_by_side(pool: Lanes) -> None:
    running: dict[str, int] = {"a": 0, "b": 0}
    most = {"a": 0, "both": 0}
    both = threading.Barrier(2, timeout=60)

    def work(lane: str) -> None:
        running[lane] += 1
        both.wait()
        most["a"] = max(most["a"], running["a"])
        most["both"] = max(most["both"], running["a"] + running["b"])
        both.wait()
        running[lane] -= 1

    await asyncio.gather(*(pool.run(lane, lambda lane=lane: work(lane)) for lane in "aaabbb"))  # type: ignore[misc]
    assert most == {"a": 1, "both": 2}


async def test_the_deadline_is_that_of_a_call_and_not_of_all_calls(pool: Lanes) -> None:
    def many_calls() -> str:
        for number in range(4):
            lanes.entering(f"nvmlCall{number}")
            time.sleep(0.4 * HANG_SECONDS)
        return "done"

    with impatient(pool):
        assert await pool.run("a", many_calls) == "done"


async def test_a_hung_call_closes_its_lane_until_it_returns(
    pool: Lanes, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = threading.Event()

    def hang() -> None:
        lanes.entering("nvmlDeviceGetName")
        release.wait(120)

    with impatient(pool):
        with pytest.raises(HangError, match="nvmlDeviceGetName: hangs since 20") as failure:
            await pool.run("a", hang)
        assert failure.value.fault is Fault.HANGS
        called: list[int] = []
        with monkeypatch.context() as patch:
            patch.setattr(asyncio, "wait", lambda *_, **__: pytest.fail("it waits for what is known to hang"))
            with pytest.raises(HangError):
                await pool.run("a", lambda: called.append(1))
    assert called == []
    assert await pool.run("b", lambda: 1) == 1
    assert pool.busy
    release.set()
    async with asyncio.timeout(60):
        while pool.busy:  # noqa: ASYNC110 - a thread tells it
            await asyncio.sleep(0.01)
    assert await pool.run("a", lambda: 2) == 2


async def test_hung_calls_take_no_threads_from_others(pool: Lanes) -> None:
    release = threading.Event()
    before = nvml_threads()
    hung = [f"card-{n}" for n in range(lanes.THREADS + 2)]
    try:
        with impatient(pool):
            results = await asyncio.gather(
                *(pool.run(lane, lambda: release.wait(120)) for lane in hung), return_exceptions=True
            )
        assert all(isinstance(r, HangError) for r in results)
        for _ in range(20):
            assert await pool.run("healthy", lambda: 1) == 1
            with impatient(pool), pytest.raises(HangError):
                await pool.run(hung[0], lambda: 1)
        assert nvml_threads() - before <= len(hung) + lanes.THREADS
    finally:
        release.set()


async def test_a_cancelled_caller_leaves_the_lane_in_order(pool: Lanes) -> None:
    order: list[str] = []

    def slow() -> None:
        time.sleep(0.1)
        order.append("first")

    task = asyncio.create_task(pool.run("a", slow))
    await asyncio.sleep(0)
    assert pool.busy
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await pool.run("a", lambda: order.append("second"))
    assert order == ["first", "second"]


async def test_threads_are_reused(pool: Lanes) -> None:
    before = nvml_threads()
    for number in range(50):
        await pool.run(f"lane-{number}", lambda: None)
    assert nvml_threads() - before <= 2
