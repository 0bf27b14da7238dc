"""The endpoints that the kubelet asks: is the process alive, and is it of use.

`/healthz` fails when a restart is likely to help: a task that must run has ended, or work has been due for minutes
and nobody does it. `/readyz` fails until the copies are complete, and while the API server has been silent for so
long that they may be wrong. Both answer with one line per check.
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from aiohttp import web

from gpupolicy.adapters import listening
from gpupolicy.adapters.metrics import CONTENT_TYPE, Metrics

_REMEDY = "choose another one with controller.healthPort of the chart (--health-port)"

Check = Callable[[], str | None]
"""Returns what is wrong; None when nothing is."""


@dataclass(frozen=True, slots=True)
class Checks:
    """What each endpoint looks at, by name."""

    alive: Mapping[str, Check]
    ready: Mapping[str, Check]


class HealthServer:
    """Serves the checks until it is stopped."""

    def __init__(self, checks: Checks, measured: Metrics, *, host: str, port: int) -> None:
        """Prepare a server.

        Args:
            checks: what is looked at.
            measured: what `/metrics` shows.
            host: address to listen on.
            port: port to listen on; 0 takes a free one.
        """
        application = web.Application()
        application.router.add_get("/healthz", self._alive)
        application.router.add_get("/readyz", self._ready)
        application.router.add_get("/metrics", self._metrics)
        self._checks = checks
        self._measured = measured
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=1.0)
        self._host = host
        self._port = port
        self._listening: asyncio.Task[None] | None = None

    async def start(self, bound: Callable[[int], None]) -> None:
        """Begin to listen; where the port is taken, as soon as it is free. `bound` is told the port."""
        await self._runner.setup()
        self._listening = asyncio.create_task(
            listening.listen(self._open, self._port, remedy=_REMEDY, bound=bound)
        )

    async def _open(self) -> int:
        site = web.TCPSite(self._runner, self._host, self._port)
        try:
            await site.start()
        except OSError:
            await site.stop()
            raise
        return int(self._runner.addresses[-1][1])

    async def stop(self) -> None:
        """Stop listening and close what is open."""
        if self._listening is not None:
            self._listening.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._listening
        await self._runner.cleanup()

    async def _alive(self, _: web.Request) -> web.Response:
        return _answer(self._checks.alive)

    async def _metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=self._measured.exposition(), headers={"Content-Type": CONTENT_TYPE})

    async def _ready(self, _: web.Request) -> web.Response:
        return _answer(self._checks.ready)


def _answer(checks: Mapping[str, Check]) -> web.Response:
    found = {name: check() for name, check in checks.items()}
    lines = [f"{name}: {problem or 'ok'}" for name, problem in found.items()]
    healthy = not any(found.values())
    return web.Response(status=200 if healthy else 503, text="\n".join(lines) + "\n")
