"""The queue: each key at most once, never twice at a time, again when something happened meanwhile."""

import asyncio
import itertools

import pytest

from gpupolicy.controller.queue import WorkQueue


class Clock:
    """A clock that the test moves; waiting is real, so tests never wait for it."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


async def taken(queue: WorkQueue[str], seconds: float = 0.05) -> str | None:
    """Return the key that is due, None where none is."""
    try:
        async with asyncio.timeout(seconds):
            return await queue.get()
    except TimeoutError:
        return None


async def test_a_key_that_is_added_twice_runs_once() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add("a")
    queue.add("a")

    assert await taken(queue) == "a"
    queue.done("a")
    assert await taken(queue) is None


async def test_a_key_that_is_added_while_it_runs_runs_again_and_not_beside_itself() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add("a")
    assert await taken(queue) == "a"

    queue.add("a")

    assert await taken(queue) is None
    queue.done("a")
    assert await taken(queue) == "a"


async def test_keys_come_in_the_order_in_which_they_are_due() -> None:
    clock = Clock()
    queue: WorkQueue[str] = WorkQueue(clock=clock)
    queue.add("late", after_seconds=2.0)
    queue.add("early", after_seconds=1.0)
    queue.add("late", after_seconds=5.0)

    assert await taken(queue) is None
    clock.now += 1.5
    assert await taken(queue) == "early"
    assert await taken(queue) is None
    clock.now += 1.0
    assert await taken(queue) == "late"


async def test_a_later_time_does_not_put_a_key_off() -> None:
    clock = Clock()
    queue: WorkQueue[str] = WorkQueue(clock=clock)
    queue.add("a")
    queue.add("a", after_seconds=60.0)

    assert await taken(queue) == "a"


async def test_the_first_run_is_at_once_and_the_next_one_spaced() -> None:
    clock = Clock()
    queue: WorkQueue[str] = WorkQueue(spacing_seconds=1.0, clock=clock)
    queue.add("a")
    assert await taken(queue) == "a"
    queue.done("a")

    queue.add("a")
    assert await taken(queue) is None
    clock.now += 1.0
    assert await taken(queue) == "a"


async def test_a_key_that_was_forgotten_begins_anew() -> None:
    clock = Clock()
    queue: WorkQueue[str] = WorkQueue(spacing_seconds=1.0, clock=clock)
    queue.add("a")
    assert await taken(queue) == "a"
    queue.done("a")

    queue.forget("a")

    queue.add("a")
    assert await taken(queue) == "a"


async def test_failures_are_spaced_ever_more_until_one_succeeds() -> None:
    clock = Clock()
    queue: WorkQueue[str] = WorkQueue(clock=clock)
    pauses = []
    for _ in range(10):
        queue.add("a")
        clock.now += 100.0
        assert await taken(queue) == "a"
        pauses.append(queue.retry("a"))
    clock.now += 100.0
    assert await taken(queue) == "a"
    queue.done("a")
    queue.add("a")
    assert await taken(queue) == "a"

    assert queue.retry("a") <= 0.5
    assert pauses[-1] >= 30.0
    assert all(later > earlier / 2 for earlier, later in itertools.pairwise(pauses))


async def test_the_server_may_ask_for_a_longer_pause() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add("a")
    assert await taken(queue) == "a"

    assert queue.retry("a", at_least_seconds=30.0) == 30.0
    assert await taken(queue) is None


async def test_a_waiting_worker_wakes_up_for_a_key_that_is_added() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add("later", after_seconds=60.0)
    waiting = asyncio.ensure_future(queue.get())
    await asyncio.sleep(0)

    queue.add("now")

    assert await asyncio.wait_for(waiting, 60.0) == "now"


async def test_two_workers_get_two_keys() -> None:
    queue: WorkQueue[str] = WorkQueue()
    workers = [asyncio.ensure_future(queue.get()) for _ in range(2)]
    await asyncio.sleep(0)
    queue.add("a")
    queue.add("b")

    assert sorted(await asyncio.wait_for(asyncio.gather(*workers), 60.0)) == ["a", "b"]


async def test_nothing_is_lost_when_a_worker_is_cancelled_while_it_waits() -> None:
    queue: WorkQueue[str] = WorkQueue()
    waiting = asyncio.ensure_future(queue.get())
    await asyncio.sleep(0)
    queue.add("a")
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting

    assert await taken(queue) == "a"


async def test_how_long_work_is_due_is_told() -> None:
    clock = Clock()
    queue: WorkQueue[str] = WorkQueue(clock=clock)
    assert queue.oldest_seconds() == 0.0
    queue.add("a")
    queue.add("b", after_seconds=500.0)

    clock.now += 7.0

    assert queue.oldest_seconds() == 7.0
    assert len(queue) == 2
