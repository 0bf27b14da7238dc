"""Listening on a TCP port that may be taken: probes and metrics are not worth a node's cards.

A process whose port is taken goes on without, says once which port it is and how to choose another, and takes the port
as soon as it is free: mostly it is a predecessor that is just about to end.
"""

import argparse
import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

_log = logging.getLogger(__name__)

RETRY_SECONDS: Final = 5.0
_LAST_PORT: Final = 65535


def port(text: str) -> int:
    """Read a TCP port from the command line.

    Raises:
        argparse.ArgumentTypeError: it is none.
    """
    if not text.isdecimal() or int(text) > _LAST_PORT:
        raise argparse.ArgumentTypeError(f"{text!r} is no port: give a number from 0 to {_LAST_PORT}")
    return int(text)


async def listen(
    start: Callable[[], Awaitable[int]],
    number: int,
    *,
    remedy: str,
    retry_seconds: float = RETRY_SECONDS,
    bound: Callable[[int], None] = lambda _: None,
) -> None:
    """Listen; return once the port is ours, however long that takes.

    Args:
        start: begins to listen and returns the port; raises OSError and leaves nothing behind where it cannot.
        number: the port that it is to listen on, for the log.
        remedy: how to choose another port, for the log.
        retry_seconds: how long to wait between two attempts.
        bound: called with the port.
    """
    told = False
    while True:
        try:
            found = await start()
        except OSError as error:
            if not told:
                _log.error(
                    "port %d of /healthz, /readyz and /metrics cannot be used: %s. All else goes on, and the port is "
                    "tried again; %s",
                    number,
                    error.strerror or error,
                    remedy,
                )
                told = True
            await asyncio.sleep(retry_seconds)
            continue
        if told:
            _log.info("port %d is free now, and used", number)
        bound(found)
        return
