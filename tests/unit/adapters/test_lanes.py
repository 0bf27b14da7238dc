"""Blocking calls in threads: one at a time per lane, a hung one in nobody's way, threads few and never lost for good."""

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator

import pytest

from gpupolicy.adapters.nvml import lanes
from gpupolicy.adapters.nvml.errors import Fault
from gpupolicy.adapters.nvml.lanes import HangError, Lanes


@pytest.fixture
async def pool() -> AsyncIterator[Lanes]:
    made = Lanes(call_seconds=0.2)
    yield made
    made.close()


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

    def work(lane: str) -> None:
        running[lane] += 1
        most["a"] = max(most["a"], running["a"])
        most["both"] = max(most["both"], running["a"] + running["b"])
        time.sleep(0.02)
        running[lane] -= 1

    await asyncio.gather(*(pool.run(lane, lambda lane=lane: work(lane)) for lane in "aaabbb"))  # type: ignore[misc]
    assert most == {"a": 1, "both": 2}


async def test_the_deadline_is_that_of_a_call_and_not_of_all_calls(pool: Lanes) -> None:
    def many_calls() -> str:
        for number in range(6):
            lanes.entering(f"nvmlCall{number}")
            time.sleep(0.06)
        return "done"

    assert await pool.run("a", many_calls) == "done"


async def test_a_hung_call_closes_its_lane_until_it_returns(pool: Lanes) -> None:
    release = threading.Event()

    def hang() -> None:
        lanes.entering("nvmlDeviceGetName")
        release.wait(10)

    with pytest.raises(HangError, match="nvmlDeviceGetName: hangs since 20") as failure:
        await pool.run("a", hang)
    assert failure.value.fault is Fault.HANGS
    called: list[int] = []
    before = time.monotonic()
    with pytest.raises(HangError):
        await pool.run("a", lambda: called.append(1))
    assert time.monotonic() - before < 0.1, "nobody waits again for what is known to hang"
    assert called == []
    assert await pool.run("b", lambda: 1) == 1
    assert pool.busy
    release.set()
    async with asyncio.timeout(5):
        while pool.busy:  # noqa: ASYNC110 - a thread tells it
            await asyncio.sleep(0.01)
    assert await pool.run("a", lambda: 2) == 2


async def test_hung_calls_take_no_threads_from_others() -> None:
    pool = Lanes(call_seconds=0.1)
    release = threading.Event()
    before = nvml_threads()
    hung = [f"card-{n}" for n in range(lanes.THREADS + 2)]
    try:
        results = await asyncio.gather(
            *(pool.run(lane, lambda: release.wait(10)) for lane in hung), return_exceptions=True
        )
        assert all(isinstance(r, HangError) for r in results)
        for _ in range(20):
            assert await pool.run("healthy", lambda: 1) == 1
            with contextlib.suppress(HangError):
                await pool.run(hung[0], lambda: 1)
        assert nvml_threads() - before <= len(hung) + lanes.THREADS
    finally:
        release.set()
        pool.close()


async def test_a_cancelled_caller_leaves_the_lane_in_order(pool: Lanes) -> None:
    order: list[str] = []

    def slow() -> None:
        time.sleep(0.1)
        order.append("first")

    task = asyncio.create_task(pool.run("a", slow))
    await asyncio.sleep(0.02)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await pool.run("a", lambda: order.append("second"))
    assert order == ["first", "second"]


async def test_threads_are_reused(pool: Lanes) -> None:
    before = nvml_threads()
    for number in range(50):
        await pool.run(f"lane-{number}", lambda: None)
    assert nvml_threads() - before <= 2
