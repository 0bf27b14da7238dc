"""Lines that belong together carry one id, whichever task or thread writes them; others carry none or another."""

import asyncio
import json
import logging
from collections.abc import Iterator

import pytest

from gpupolicy.adapters import logs

logger = logging.getLogger("gpupolicy.test")


class Lines(logging.Handler):
    """Keeps the lines as they would be printed."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(logs.JsonFormatter())
        self.lines: list[dict[str, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(json.loads(self.format(record)))

    def of(self, message: str) -> tuple[str | None, str | None]:
        """Return id and subject of the line with a message."""
        (line,) = [line for line in self.lines if line["message"] == message]
        return line.get("operation"), line.get("subject")


@pytest.fixture
def lines() -> Iterator[Lines]:
    handler = Lines()
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield handler
    logger.removeHandler(handler)
    logger.setLevel(logging.NOTSET)


def test_a_line_outside_has_neither_id_nor_subject(lines: Lines) -> None:
    with logs.operation("policy train"):
        pass
    logger.info("after")
    assert set(lines.lines[0]) == {"time", "level", "logger", "message"}


def test_all_lines_of_a_block_have_one_id_and_the_next_block_another(lines: Lines) -> None:
    with logs.operation("policy train"):
        logger.info("a")
        logger.info("b")
    with logs.operation("policy train"):
        logger.info("c")
    assert lines.of("a") == lines.of("b")
    assert lines.of("a")[1] == "policy train"
    assert len({lines.of("a")[0], lines.of("c")[0], None}) == 3


def test_inside_of_another_the_inner_one_counts_until_it_ends(lines: Lines) -> None:
    def fail() -> None:
        with logs.operation("card 0"):
            logger.info("inner")
            raise RuntimeError

    with logs.operation("pass"):
        with pytest.raises(RuntimeError):
            fail()
        logger.info("outer")
    assert (lines.of("inner")[1], lines.of("outer")[1]) == ("card 0", "pass")


async def test_tasks_and_threads_that_begin_inside_belong_to_it(lines: Lines) -> None:
    async def work() -> None:
        logger.info("task")
        await asyncio.to_thread(logger.info, "thread")

    with logs.operation("prepare"):
        logger.info("call")
        task = asyncio.create_task(work())
    logger.info("outside")
    await task
    assert lines.of("task") == lines.of("thread") == lines.of("call")
    assert lines.of("outside") == (None, None)


async def test_operations_at_one_time_do_not_see_each_other(lines: Lines) -> None:
    both = asyncio.Barrier(2)

    async def work(name: str) -> None:
        with logs.operation(f"node {name}"):
            await both.wait()
            logger.info("%s begins", name)
            await both.wait()
            logger.info("%s ends", name)

    await asyncio.gather(work("a"), work("b"))
    for name in "ab":
        assert lines.of(f"{name} begins") == lines.of(f"{name} ends")
        assert lines.of(f"{name} ends")[1] == f"node {name}"
    assert lines.of("a ends")[0] != lines.of("b ends")[0]


def test_a_trouble_is_said_once_and_its_end_too(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    trouble = logs.Trouble(logging.getLogger("t"), clock=lambda: now)

    def said() -> list[tuple[str, str]]:
        found = [(r.levelname, r.getMessage()) for r in caplog.records]
        caplog.clear()
        return found

    with caplog.at_level(logging.DEBUG, logger="t"):
        trouble.over("it works again")
        assert said() == []
        trouble.tell("a", "attempt %d failed", 1)
        assert said() == [("WARNING", "attempt 1 failed")]
        now = 599.0
        trouble.tell("a", "attempt %d failed", 2)
        assert said() == [("DEBUG", "attempt 2 failed")]
        now = 600.0
        trouble.tell("a", "attempt %d failed", 3)
        assert said() == [("WARNING", "attempt 3 failed")]
        trouble.tell("b", "something else failed")
        assert said() == [("WARNING", "something else failed")]
        trouble.over("it works %s", "again")
        trouble.over("it works %s", "again")
        assert said() == [("INFO", "it works again")]
        trouble.tell("b", "something else failed")
        assert said() == [("WARNING", "something else failed")]
