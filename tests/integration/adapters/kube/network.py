"""A network between client and API server on which every connection breaks sooner or later."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator

LIMITS_BYTES = (1_000, 8_000, 12_000, 20_000, 40_000)
"""Some break within the TLS handshake, some within a list or an event."""


async def pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, limit_bytes: int) -> None:
    """Pass on what comes, but no more than so many bytes."""
    with contextlib.suppress(OSError):
        while limit_bytes > 0 and (data := await reader.read(limit_bytes)):
            limit_bytes -= len(data)
            writer.write(data)
            await writer.drain()


@contextlib.asynccontextmanager
async def unreliable(host: str, port: int, dice: random.Random) -> AsyncIterator[int]:
    """Yield a loopback port that leads to a server; each connection breaks after a random number of bytes."""
    connections: set[asyncio.Task[None]] = set()

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        connections.add(task)
        ends = [writer]
        try:
            onward_reader, onward_writer = await asyncio.open_connection(host, port)
            ends.append(onward_writer)
            ways = [
                asyncio.ensure_future(pipe(reader, onward_writer, dice.choice(LIMITS_BYTES))),
                asyncio.ensure_future(pipe(onward_reader, writer, dice.choice(LIMITS_BYTES))),
            ]
            try:
                # The end of the test cancels; that is an ordinary end of a connection.
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)
        finally:
            connections.discard(task)
            for end in ends:
                end.transport.abort()

    server = await asyncio.start_server(connect, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in list(connections):
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)
