"""`/healthz` and `/readyz` for the kubelet's probes, and `/metrics`.

Alive means that the event loop answers. Ready means that claims can be prepared: the kubelet has registered us and
the cards have been seen; the answer says what is missing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from gpupolicy.adapters.metrics import CONTENT_TYPE, Metrics

if TYPE_CHECKING:
    from aiohttp import web


async def serve(port: int, unready: Callable[[], str], measured: Metrics, *, host: str = "") -> web.AppRunner:
    """Serve the endpoints until the runner is cleaned up.

    Args:
        port: TCP port; 0 takes a free one.
        unready: says why the agent is not ready; empty when it is.
        measured: what `/metrics` shows.
        host: address to listen on; empty means all.
    """
    # The server half of aiohttp costs 1.3 MiB, and not every agent has a port.
    from aiohttp import web

    async def healthz(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(_: web.Request) -> web.Response:
        reason = unready()
        return web.Response(text=f"{reason or 'ok'}\n", status=503 if reason else 200)

    async def exposition(_: web.Request) -> web.Response:
        return web.Response(body=measured.exposition(), headers={"Content-Type": CONTENT_TYPE})

    app = web.Application()
    app.add_routes(
        [web.get("/healthz", healthz), web.get("/readyz", readyz), web.get("/metrics", exposition)]
    )
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, host or None, port).start()
    return runner
