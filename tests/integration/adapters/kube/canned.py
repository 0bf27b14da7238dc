"""A server of canned answers, for what a real API server cannot be made to do on command."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

from aiohttp import web

from gpupolicy.adapters import kube

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


def status(
    code: int, reason: str = "", *, headers: dict[str, str] | None = None, message: str = "canned"
) -> Answer:
    """Answer with a Status object."""

    async def answer(_request: web.Request) -> web.StreamResponse:
        return web.json_response(
            {"kind": "Status", "reason": reason, "message": message}, status=code, headers=headers
        )

    return answer


def ok(body: object) -> Answer:
    """Answer with an object."""

    async def answer(_request: web.Request) -> web.StreamResponse:
        return web.json_response(body)

    return answer


def page(text: str, code: int = 200, content_type: str = "application/json") -> Answer:
    """Answer with a text, JSON or not."""

    async def answer(_request: web.Request) -> web.StreamResponse:
        return web.Response(text=text, status=code, content_type=content_type)

    return answer


async def hang_up(request: web.Request) -> web.StreamResponse:
    """Close the connection without an answer."""
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


async def never(request: web.Request) -> web.StreamResponse:
    """Take the request and stay silent."""
    await asyncio.Event().wait()
    return web.Response()


def cut_off(promised: int = 1000) -> Answer:
    """Promise more bytes than are sent."""

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(
            headers={"Content-Length": str(promised), "Content-Type": "application/json"}
        )
        await response.prepare(request)
        await response.write(b'{"kind": "Node", "meta')
        assert request.transport is not None
        request.transport.close()
        return response

    return answer


def stream(*chunks: bytes, end: str = "orderly") -> Answer:
    """Send the chunks of a watch, then end in an orderly way, break off, or fall silent."""

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        response.enable_chunked_encoding()
        await response.prepare(request)
        for chunk in chunks:
            await response.write(chunk)
            await asyncio.sleep(0)
        if end == "silent":
            await asyncio.Event().wait()
        if end == "broken":
            assert request.transport is not None
            request.transport.abort()
        return response

    return answer


def event(type_: str, **metadata: object) -> bytes:
    """Return one line of a watch."""
    return json.dumps({"type": type_, "object": {"kind": "Node", "metadata": metadata}}).encode() + b"\n"


@dataclass
class Server:
    """The answers to come, in order, and the requests that came; after the last answer comes `always`, or a 418."""

    url: str = ""
    answers: list[Answer] = field(default_factory=list)
    always: Answer | None = None
    requests: list[web.Request] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)

    def script(self, *answers: Answer) -> None:
        self.answers.extend(answers)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(request)
        self.bodies.append(await request.read())
        answer = self.answers.pop(0) if self.answers else self.always
        if answer is None:
            return web.json_response({"reason": "ScriptIsOver", "message": "unexpected request"}, status=418)
        return await answer(request)


@dataclass
class Tokens:
    """Credentials for a server; each reading yields the next token, the last one for ever."""

    server: str
    tokens: list[str] = field(default_factory=lambda: ["token"])
    stale: float | None = None
    reads: int = 0

    async def read(self) -> kube.Credentials:
        token = self.tokens[min(self.reads, len(self.tokens) - 1)]
        self.reads += 1
        return kube.Credentials(server=self.server, authorization=f"Bearer {token}")

    def stale_after_seconds(self) -> float | None:
        return self.stale


@dataclass
class Sleeps:
    """Records waiting times instead of waiting."""

    seconds: list[float] = field(default_factory=list)

    async def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)
        await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def running(reflector: kube.Reflector) -> AsyncIterator[None]:
    """Keep a reflector running; an exception that ended it is raised at the end."""
    task = asyncio.create_task(reflector.run())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def until(condition: Callable[[], bool], timeout_seconds: float = 120.0) -> None:
    """Wait until a condition holds; the limit is there to end a test that would never end."""
    async with asyncio.timeout(timeout_seconds):
        while not condition():  # noqa: ASYNC110 - what is waited for is anything at all
            await asyncio.sleep(0.01)
