"""Log lines as JSON objects, one per line, for machines that collect them.

What belongs together carries one id: `operation` gives it to all lines of a block, also to those of tasks and threads
(`asyncio.to_thread`) that begin in it, whatever module writes them. Who writes a line need not know of it.
"""

import contextlib
import contextvars
import datetime as dt
import json
import logging
import secrets
import sys
import time
from collections.abc import Callable, Iterator
from typing import Final

_operation: contextvars.ContextVar[tuple[str, str] | None] = contextvars.ContextVar("operation", default=None)


@contextlib.contextmanager
def operation(subject: str) -> Iterator[None]:
    """Mark the lines of a block with an id of its own; inside of another operation the inner one counts.

    Args:
        subject: what the block is about, such as `policy train`.
    """
    token = _operation.set((secrets.token_hex(4), subject))
    try:
        yield
    finally:
        _operation.reset(token)


REMIND_SECONDS: Final = 600.0
"""How soon a trouble that lasts is said again: a log that was cut meanwhile would not show it."""


class Trouble:
    """Something that is tried again and again: said when it begins, when it becomes another one, and when it is over.

    Args:
        logger: where it is said; repetitions go there at level debug.
        clock: monotonic seconds.
    """

    def __init__(self, logger: logging.Logger, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._logger = logger
        self._clock = clock
        self._kind = ""
        self._told_at = 0.0

    def tell(self, kind: str, text: str, *arguments: object) -> None:
        """Say that it failed. `kind` tells one trouble from another; it is not shown."""
        if kind == self._kind and self._clock() - self._told_at < REMIND_SECONDS:
            self._logger.debug(text, *arguments)
            return
        self._kind, self._told_at = kind, self._clock()
        self._logger.warning(text, *arguments)

    def over(self, text: str, *arguments: object) -> None:
        """Say that it works again, if it did not."""
        if self._kind:
            self._kind = ""
            self._logger.info(text, *arguments)


class JsonFormatter(logging.Formatter):
    """Formats a record as one JSON object.

    It has time, level, logger, message; operation and subject inside of one; the traceback if there is one.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, see the class."""
        moment = dt.datetime.fromtimestamp(record.created, dt.UTC)
        line = {
            "time": moment.isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if (under_way := _operation.get()) is not None:
            line["operation"], line["subject"] = under_way
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def configure(level: str) -> None:
    """Send all log lines to stderr as JSON.

    Args:
        level: debug, info, warning or error; other libraries stay at warning unless it is debug.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    number = logging.getLevelNamesMapping()[level.upper()]
    logging.basicConfig(
        level=max(number, logging.WARNING) if number > logging.DEBUG else number, handlers=[handler]
    )
    logging.getLogger("gpupolicy").setLevel(number)
