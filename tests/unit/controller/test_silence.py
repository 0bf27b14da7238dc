"""When an agent is believed no more: by our own clock, whatever that of its node says."""

import datetime as dt
from typing import Any

import pytest

from gpupolicy.controller.queue import WorkQueue
from gpupolicy.controller.reconcile import Key, Reconciler
from gpupolicy.controller.world import World

NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
LIMIT = 600.0


class Desk:
    """A controller whose clocks the test turns, and an agent whose clock may be wrong."""

    def __init__(self) -> None:
        self.monotonic = 50.0
        self.wall = NOON
        self.version = 0
        self.world = World(clock=lambda: self.monotonic)
        self.reconciler = Reconciler(
            None,  # type: ignore[arg-type]
            self.world,
            WorkQueue[Key](),
            judges=None,  # type: ignore[arg-type]
            poster=None,  # type: ignore[arg-type]
            clock=lambda: self.wall,
            stale_after_seconds=LIMIT,
        )

    def says(self, moment: dt.datetime | None) -> None:
        """Have the agent say something, dated by its clock."""
        self.version += 1
        status: dict[str, Any] = {}
        if moment is not None:
            status["lastObservedTime"] = moment.isoformat().replace("+00:00", "Z")
        metadata = {"name": "n", "uid": "u", "resourceVersion": str(self.version)}
        self.world.put_node(self.world.read_node({"metadata": metadata, "spec": {}, "status": status}))

    def passes(self, seconds: float) -> None:
        self.monotonic += seconds
        self.wall += dt.timedelta(seconds=seconds)

    def left(self) -> float:
        return self.reconciler._believed_seconds(self.world.nodes["n"])


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_what_was_said_before_we_looked_is_dated_by_its_own_clock(desk: Desk) -> None:
    desk.says(NOON - dt.timedelta(seconds=200))
    assert desk.left() == pytest.approx(400)
    desk.passes(401)
    assert desk.left() < 0


def test_an_agent_that_never_reported_is_not_believed(desk: Desk) -> None:
    desk.says(None)
    assert desk.left() == 0


@pytest.mark.parametrize("hours", [-48, -1, 1, 48])
def test_an_agent_whose_clock_is_wrong_is_believed_as_long_as_it_speaks(desk: Desk, hours: int) -> None:
    desk.says(NOON + dt.timedelta(hours=hours))
    for minutes in range(0, 60, 3):
        desk.passes(180)
        desk.says(NOON + dt.timedelta(hours=hours, minutes=minutes + 3))
        assert desk.left() == pytest.approx(LIMIT)
    desk.passes(LIMIT + 1)
    assert desk.left() < 0, "and no longer, however far ahead its clock is"


def test_a_clock_ahead_does_not_keep_an_agent_alive_that_never_speaks(desk: Desk) -> None:
    desk.says(NOON + dt.timedelta(days=1))
    desk.passes(LIMIT + 1)
    assert desk.left() < 0


@pytest.mark.parametrize("jump", [dt.timedelta(days=-3), dt.timedelta(days=3)])
def test_our_own_clock_may_be_set(desk: Desk, jump: dt.timedelta) -> None:
    desk.says(NOON)
    desk.passes(10)
    desk.says(NOON + dt.timedelta(seconds=10))
    desk.wall += jump
    assert desk.left() == pytest.approx(LIMIT)


def test_a_write_of_ours_is_no_word_of_the_agent(desk: Desk) -> None:
    desk.says(NOON)
    desk.passes(10)
    desk.says(NOON + dt.timedelta(seconds=10))
    desk.passes(100)
    desk.says(NOON + dt.timedelta(seconds=10))
    assert desk.left() == pytest.approx(LIMIT - 100)


def test_nothing_is_kept_of_a_node_that_is_gone(desk: Desk) -> None:
    desk.says(NOON)
    assert desk.world.drop_node("n", "u")
    assert desk.world._heard == {}
