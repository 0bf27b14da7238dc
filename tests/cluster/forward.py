"""Carry TCP connections from one address to another: ``python -m tests.cluster.forward FROM TO``.

There is no kube-proxy in a test cluster. The cluster IP of the service ``kubernetes`` is an address of
this machine instead, and this program takes its connections to the API server on loopback, so pods find
the API server as in any cluster. Needs only the standard library.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys

_CHUNK_BYTES = 65_536


async def _copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await source.read(_CHUNK_BYTES):
            sink.write(data)
            await sink.drain()
    with contextlib.suppress(OSError):
        sink.write_eof()


async def _serve(listen: str, target: str) -> None:
    host, _, port = listen.rpartition(":")
    target_host, _, target_port = target.rpartition(":")

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with contextlib.suppress(OSError):
                onward_reader, onward_writer = await asyncio.open_connection(target_host, int(target_port))
                try:
                    await asyncio.gather(_copy(reader, onward_writer), _copy(onward_reader, writer))
                finally:
                    onward_writer.close()
        finally:
            # An API server that is away refuses connections; here they are closed at once.
            writer.close()

    server = await asyncio.start_server(carry, host, int(port))
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1], sys.argv[2]))
