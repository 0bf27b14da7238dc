"""`/healthz` and `/readyz` for the kubelet's probes, and `/metrics`.

Alive means that the event loop answers. Ready means that claims can be prepared: the kubelet has registered us and
the cards have been seen; the answer says what is missing. They answer from the first moment on, because an agent may
have to wait for its predecessor, and because a card that hangs must not make the kubelet restart the agent.
"""

import asyncio
import contextlib
from collections.abc import Callable
from http import HTTPStatus
from typing import Final, Self

# Not `aiohttp.web`, which has them too: routes, files and templates of a web site are another MiB on every node.
from aiohttp.web_request import BaseRequest
from aiohttp.web_response import Response
from aiohttp.web_server import Server

from gpupolicy.adapters import listening
from gpupolicy.adapters.metrics import CONTENT_TYPE, Metrics

_REMEDY: Final = "choose another one with agent.healthPort of the chart (--health-port)"
_STOP_SECONDS: Final = 1.0
"""How long an answer under way may take when the agent ends."""


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
        self._server: Server | None = None
        self._sockets: asyncio.Server | None = None
        self._listening: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        """Begin to serve; where the port is taken, as soon as it is free."""
        if (port := self._wanted) is not None:
            self._server = server = Server(self._answer, access_log=None)
            self._listening = asyncio.create_task(
                listening.listen(
                    lambda: self._open(server, port), port, remedy=_REMEDY, bound=self.port.set_result
                )
            )
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop serving."""
        if self._listening is not None:
            self._listening.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._listening
        if self._sockets is not None:
            self._sockets.close()
        if self._server is not None:
            self._server.pre_shutdown()
            await self._server.shutdown(_STOP_SECONDS)

    async def _open(self, server: Server, port: int) -> int:
        loop = asyncio.get_running_loop()
        self._sockets = await loop.create_server(server, self._host or None, port)
        return int(self._sockets.sockets[-1].getsockname()[1])

    async def _answer(self, request: BaseRequest) -> Response:
        match request.path:
            case "/healthz":
                return Response(text="ok\n")
            case "/readyz":
                reason = self.unready()
                return Response(text=f"{reason or 'ok'}\n", status=503 if reason else 200)
            case "/metrics":
                body = b"" if self.measured is None else self.measured.exposition()
                return Response(body=body, headers={"Content-Type": CONTENT_TYPE})
            case _:
                return Response(
                    text="there are /healthz, /readyz and /metrics\n", status=HTTPStatus.NOT_FOUND
                )
