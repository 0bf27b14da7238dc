"""Listening on a TCP port that may be taken: probes and metrics are not worth a node's cards.

A process whose port is taken goes on without, says once which port it is and how to choose another, and takes the port
as soon as it is free: mostly it is a predecessor that is just about to end.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from aiohttp import web

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
    runner: web.AppRunner,
    host: str | None,
    number: int,
    *,
    remedy: str,
    retry_seconds: float = RETRY_SECONDS,
    bound: Callable[[int], None] = lambda _: None,
) -> None:
    """Listen; return once the port is ours, however long that takes.

    Args:
        runner: set up.
        host: address to listen on; None means all.
        number: the port; 0 takes a free one.
        remedy: how to choose another port, for the log.
        retry_seconds: how long to wait between two attempts.
        bound: called with the port.
    """
    # The server half of aiohttp costs 1.3 MiB, and not every agent has a port.
    from aiohttp import web

    told = False
    while True:
        site = web.TCPSite(runner, host, number)
        try:
            await site.start()
        except OSError as error:
            await site.stop()
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
        bound(int(runner.addresses[-1][1]))
        return
