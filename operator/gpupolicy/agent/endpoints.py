"""`/healthz` and `/readyz` for the kubelet's probes, and `/metrics`.

Alive means that the event loop answers. Ready means that claims can be prepared: the kubelet has registered us and
the cards have been seen; the answer says what is missing. They answer from the first moment on, because an agent may
have to wait for its predecessor, and because a card that hangs must not make the kubelet restart the agent.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Self

from gpupolicy.adapters import listening
from gpupolicy.adapters.metrics import CONTENT_TYPE, Metrics

if TYPE_CHECKING:
    from aiohttp import web

_REMEDY = "choose another one with agent.healthPort of the chart (--health-port)"


class Endpoints:
    """Serves the endpoints until it is stopped; what they tell is filled in as the agent gets on.

    Args:
        port: TCP port; 0 takes a free one, None serves nothing.
        host: address to listen on; empty means all.

    Attributes:
        unready: says why the agent is not ready; empty when it is.
        measured: what `/metrics` shows; nothing before the agent has begun its work.
        port: set once the endpoints are served.
    """

    def __init__(self, port: int | None, *, host: str = "") -> None:
        self.unready: Callable[[], str] = lambda: "the agent is starting"
        self.measured: Metrics | None = None
        self.port: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._wanted = port
        self._host = host
        self._runner: web.AppRunner | None = None
        self._listening: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        """Begin to serve; where the port is taken, as soon as it is free."""
        if self._wanted is None:
            return self
        # The server half of aiohttp costs 1.3 MiB, and not every agent has a port.
        from aiohttp import web

        async def healthz(_: web.Request) -> web.Response:
            return web.Response(text="ok\n")

        async def readyz(_: web.Request) -> web.Response:
            reason = self.unready()
            return web.Response(text=f"{reason or 'ok'}\n", status=503 if reason else 200)

        async def exposition(_: web.Request) -> web.Response:
            body = b"" if self.measured is None else self.measured.exposition()
            return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE})

        app = web.Application()
        app.add_routes(
            [web.get("/healthz", healthz), web.get("/readyz", readyz), web.get("/metrics", exposition)]
        )
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        self._listening = asyncio.create_task(
            listening.listen(
                self._runner, self._host or None, self._wanted, remedy=_REMEDY, bound=self.port.set_result
            )
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop serving."""
        if self._listening is not None:
            self._listening.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._listening
        if self._runner is not None:
            await self._runner.cleanup()
