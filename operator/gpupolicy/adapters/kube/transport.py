"""HTTP to one API server: connections, deadlines, retries, and credentials that change under way.

The client and nothing else uses it. What it decides is when another attempt is safe:

    what happened                     GET, PUT, PATCH, DELETE      POST
    no connection was made            again                        again
    429                               again, as late as asked      again, as late as asked
    5xx, cut off, no answer in time   again                        raised: it may have been done
    401                               once more, with credentials read again
    anything else                     raised

Attempts end at the caller's deadline, whatever is left to try.
"""

import asyncio
import contextlib
import json
import logging
import socket
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import urlencode

import aiohttp
import yarl

from gpupolicy.adapters.kube import backoff, credentials, decoding, errors
from gpupolicy.adapters.kube.credentials import Credentials

logger = logging.getLogger(__name__)

CONNECT_SECONDS: Final = 5.0
ATTEMPT_SECONDS: Final = 15.0
"""One attempt takes no longer than this, so that a dead connection leaves time for another one."""

ATTEMPTS: Final = 5
LINE_LIMIT_BYTES: Final = 32 * 1024 * 1024
"""A watch event longer than this is not one: etcd stores objects of 1.5 MiB."""

_IDLE_CONNECTION_SECONDS: Final = 60.0
_RETIRED_SESSION_SECONDS: Final = 660.0

Observer = Callable[[str, int, float], None]
"""Called after every attempt with method, HTTP status (0: no answer) and seconds."""


@dataclass(frozen=True, slots=True)
class Response:
    """A successful answer, read whole."""

    status: int
    content_type: str
    body: bytes

    def decoded(self) -> Any:
        """Return the JSON value.

        Raises:
            Unavailable: the body is not JSON.
        """
        try:
            return decoding.loads(self.body)
        except ValueError as error:
            raise _unavailable("InvalidAnswer", f"the answer is not JSON: {error}") from error


@dataclass(frozen=True, slots=True)
class Request:
    """One request, independent of the attempts that it takes."""

    method: str
    path: str
    query: Mapping[str, str]
    body: Any = None
    content_type: str = "application/json"

    @property
    def idempotent(self) -> bool:
        """Whether sending it twice is as good as once."""
        return self.method != "POST"


class Transport:
    """Sends requests to one API server."""

    def __init__(
        self,
        source: credentials.Source,
        *,
        user_agent: str = "gpupolicy",
        observer: Observer | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Prepare a sender; nothing is read or opened before the first request.

        Args:
            source: where the credentials come from.
            user_agent: how we call ourselves in the server's audit log.
            observer: called after every attempt.
            sleep: waits between attempts.
        """
        self._keeper = credentials.Keeper(source)
        self._user_agent = user_agent
        self._observer = observer
        self._sleep = sleep
        self._session: aiohttp.ClientSession | None = None
        self._known: Credentials | None = None
        self._made_with: tuple[Any, ...] = ()
        self._proxy: str | None = None
        self._retired: list[tuple[float, aiohttp.ClientSession]] = []
        self._closed = False

    def observe(self, observer: Observer) -> None:
        """Call this after every further attempt."""
        self._observer = observer

    async def close(self) -> None:
        """Close all connections; running requests and watches fail."""
        self._closed = True
        sessions = [session for _, session in self._retired]
        if self._session is not None:
            sessions.append(self._session)
        self._session, self._retired = None, []
        for session in sessions:
            await session.close()

    async def open(self) -> None:
        """Read credentials and TLS files, so that what is wrong with them is told before the first request.

        Raises:
            ConfigurationError: they cannot be used.
        """
        await self._session_for(await self._keeper.current())

    async def credentials(self) -> Credentials:
        """Return the credentials as they are now, see `credentials.Keeper.current`."""
        return await self._keeper.current()

    async def send(self, request: Request, *, timeout_seconds: float, attempts: int = ATTEMPTS) -> Response:
        """Send a request until it succeeds, cannot succeed, or the time is up.

        Args:
            request: what to send.
            timeout_seconds: for everything, waiting between attempts included.
            attempts: how many attempts at most, not counting the one after a 401.

        Raises:
            ApiError: the last attempt's failure.
        """
        deadline = time.monotonic() + timeout_seconds
        pause = backoff.Backoff(0.2, 5.0)
        for attempt in range(1, attempts + 1):
            try:
                return await self._authorized(request, deadline)
            except errors.ApiError as error:
                wait = _wait_seconds(request, error, pause)
                if wait is None or attempt == attempts or time.monotonic() + wait >= deadline:
                    raise
                logger.debug("%s %s: %s; again in %.1f s", request.method, request.path, error, wait)
            await self._sleep(wait)
        raise AssertionError("unreachable: the last attempt returns or raises")

    async def lines(self, request: Request, *, inactivity_seconds: float) -> AsyncGenerator[bytes]:
        """Yield the lines of a streamed answer until the server ends it.

        Raises:
            Unavailable: the stream broke, was cut inside a line, or was silent for `inactivity_seconds`.
            ApiError: the server refused.
        """
        limits = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=inactivity_seconds)
        for last in (False, True):
            deadline = time.monotonic() + ATTEMPT_SECONDS
            try:
                async with contextlib.aclosing(self._stream(request, limits, deadline)) as stream:
                    async for line in stream:
                        yield line
            except errors.Unauthorized as error:
                if last:
                    raise
                await self._renew(request, error, deadline)
            else:
                return

    async def _authorized(self, request: Request, deadline: float) -> Response:
        try:
            return await self._attempt(request, deadline)
        except errors.Unauthorized as error:
            await self._renew(request, error, deadline)
            return await self._attempt(request, deadline)

    async def _renew(self, request: Request, refusal: errors.Unauthorized, deadline: float) -> None:
        try:
            async with asyncio.timeout(_left_seconds(deadline)):
                await self._keeper.renew()
        except errors.ConfigurationError as error:
            raise refusal from error
        except TimeoutError as error:
            raise _no_answer(request, error) from error

    async def _attempt(self, request: Request, deadline: float) -> Response:
        seconds = _left_seconds(deadline)
        limits = aiohttp.ClientTimeout(total=seconds, sock_connect=min(CONNECT_SECONDS, seconds))
        started = time.monotonic()
        status = 0
        try:
            async with await self._open(request, limits, deadline) as response:
                body = await response.read()
                status = response.status
                if status >= HTTPStatus.MULTIPLE_CHOICES:
                    raise errors.from_body(status, body, retry_after=response.headers.get("Retry-After"))
                return Response(status, response.content_type, body)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise _no_answer(request, error) from error
        finally:
            self._observe(request, status, started)

    async def _stream(
        self, request: Request, limits: aiohttp.ClientTimeout, deadline: float
    ) -> AsyncGenerator[bytes]:
        started = time.monotonic()
        status = 0
        try:
            async with await self._open(request, limits, deadline) as response:
                status = response.status
                self._observe(request, status, started)
                if status >= HTTPStatus.MULTIPLE_CHOICES:
                    body = await response.read()
                    raise errors.from_body(status, body, retry_after=response.headers.get("Retry-After"))
                async with contextlib.aclosing(_split(response.content)) as lines:
                    async for line in lines:
                        yield line
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            if status == 0:
                self._observe(request, status, started)
            raise _no_answer(request, error) from error

    async def _open(
        self, request: Request, limits: aiohttp.ClientTimeout, deadline: float
    ) -> aiohttp.ClientResponse:
        # An exec plugin may take its time; the caller's is limited.
        async with asyncio.timeout(_left_seconds(deadline)):
            known = await self._keeper.current()
            session = await self._session_for(known)
        headers = {"Accept": "application/json, */*", "User-Agent": self._user_agent}
        if known.authorization:
            headers["Authorization"] = known.authorization
        data = None
        if request.body is not None:
            headers["Content-Type"] = request.content_type
            data = json.dumps(request.body, separators=(",", ":")).encode()
        url = known.server + request.path
        if request.query:
            url += ("&" if "?" in request.path else "?") + urlencode(request.query)
        return await session.request(
            request.method,
            yarl.URL(url, encoded=True),
            headers=headers,
            data=data,
            timeout=limits,
            proxy=self._proxy,
            server_hostname=known.server_name,
            allow_redirects=False,
        )

    async def _session_for(self, known: Credentials) -> aiohttp.ClientSession:
        if self._closed:
            raise _unavailable("Closed", "the client is closed")
        if known is not self._known or self._session is None:
            made_with = known.transport()
            if self._session is None or made_with != self._made_with:
                try:
                    await self._replace_session(known)
                except errors.ConfigurationError as error:
                    if self._session is None:
                        raise
                    # A file may be missing for the moment in which it is replaced.
                    logger.warning("The connections stay as they are: %s", error)
                    return self._session
            self._known, self._made_with = known, made_with
        assert self._session is not None  # noqa: S101 - for the type checker
        return self._session

    async def _replace_session(self, known: Credentials) -> None:
        """Begin with new connections; watches that run keep theirs until they end."""
        now = time.monotonic()
        tls = known.ssl_context() if known.server.startswith("https") else False
        if self._session is not None:
            self._retired.append((now, self._session))
        connector = aiohttp.TCPConnector(
            ssl=tls,
            keepalive_timeout=_IDLE_CONNECTION_SECONDS,
            socket_factory=_socket,
        )
        self._session = aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar())
        self._proxy = known.proxy_url()
        while self._retired and now - self._retired[0][0] > _RETIRED_SESSION_SECONDS:
            await self._retired.pop(0)[1].close()

    def _observe(self, request: Request, status: int, started: float) -> None:
        if self._observer is not None:
            self._observer(request.method, status, time.monotonic() - started)


def _left_seconds(deadline: float) -> float:
    """Return how long an attempt may take; never zero, which would mean no limit."""
    return min(ATTEMPT_SECONDS, max(deadline - time.monotonic(), 0.001))


async def _split(content: aiohttp.StreamReader) -> AsyncGenerator[bytes]:
    buffer = bytearray()
    async for chunk in content.iter_any():
        # Only the new part can hold the end of the line, so a long line is not searched again and again.
        searched = len(buffer)
        buffer += chunk
        while (end := buffer.find(b"\n", searched)) >= 0:
            if line := bytes(buffer[:end]).strip():
                yield line
            del buffer[: end + 1]
            searched = 0
        if len(buffer) > LINE_LIMIT_BYTES:
            raise _unavailable("InvalidAnswer", f"a watch event is longer than {LINE_LIMIT_BYTES} bytes")
    if buffer.strip():
        raise _unavailable("CutOff", "the stream ended inside an event")


def _wait_seconds(request: Request, error: errors.ApiError, pause: backoff.Backoff) -> float | None:
    """Return how long to wait before another attempt; None when there must be none."""
    if isinstance(error, errors.TooManyRequests):
        return max(error.retry_after_seconds, pause.next_seconds())
    if not isinstance(error, errors.Unavailable) or error.reason in {"CertificateRefused", "Closed"}:
        return None
    if request.idempotent or error.reason == "NoConnection":
        return pause.next_seconds()
    return None


def _no_answer(request: Request, error: Exception) -> errors.Unavailable:
    what = f"{request.method} {request.path.partition('?')[0]}"
    match error:
        case aiohttp.ClientConnectorCertificateError():
            return _unavailable(
                "CertificateRefused", f"{what}: the server's certificate is not trusted: {error}"
            )
        case aiohttp.ConnectionTimeoutError() | aiohttp.ClientConnectorError():
            return _unavailable("NoConnection", f"{what}: {error}")
        case TimeoutError():
            return _unavailable("Timeout", f"{what}: no answer in time")
        case _:
            return _unavailable("CutOff", f"{what}: {type(error).__name__}: {error}")


def _unavailable(reason: str, message: str) -> errors.Unavailable:
    return errors.Unavailable(0, reason, message)


def _socket(address: tuple[Any, ...]) -> socket.socket:
    """Return a socket that notices within a minute that the other side is gone without a word."""
    family, kind, protocol, *_ = address
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        ("TCP_KEEPIDLE", 20),
        ("TCP_KEEPINTVL", 10),
        ("TCP_KEEPCNT", 3),
        ("TCP_USER_TIMEOUT", 50_000),
    ):
        if hasattr(socket, option):
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
    return made
