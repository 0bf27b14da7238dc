"""What keeps the agent small: it runs on every node with a GPU, so each MiB counts as often as there are nodes.

Measured on CPython 3.11 with eight cards, in MiB: the system's certificates in aiohttp's default contexts 1.8, arenas
for each thread 0.4, memory that was only needed to start 0.4, read buffers of TLS 1 (2.5 after a crowd of claims), calls
of the past up to 12. Models that are built when they are first used save 1, docstrings (PYTHONOPTIMIZE=2) 2, a pod's
credentials without kubernetes_asyncio 1, the server of aiohttp without its web framework 1. A test lists what the
process must not load.
"""

import contextlib
import ctypes
import os
from asyncio import sslproto
from typing import Final

from h2 import connection

CLOSED_STREAMS: Final = 1024
"""Of how many calls on a connection it is remembered how they ended."""

_M_ARENA_MAX: Final = -8
_CERTIFICATES: Final = "SSL_CERT_FILE"


def prepare() -> None:
    """Call before anything imports aiohttp: it reads all certificates of the system into contexts that we never use.

    Every connection of ours brings a context of its own, with the certificate authority of the API server.
    """
    before = os.environ.get(_CERTIFICATES)
    os.environ[_CERTIFICATES] = os.devnull
    try:
        import aiohttp  # noqa: F401
    finally:
        if before is None:
            del os.environ[_CERTIFICATES]
        else:
            os.environ[_CERTIFICATES] = before
    # Every TLS connection has a read buffer of 256 KiB; a crowd of claims opens eight. A TLS record has 16 KiB at most.
    sslproto.SSLProtocol.max_size = 32 * 1024
    # The kubelet keeps one connection for as long as we live, and of each call on it h2 remembers how its stream was closed:
    # 65,536 of them are 13 MiB. It asks only about frames that still come for them, which is a matter of moments.
    connection.H2Connection.MAX_CLOSED_STREAMS = CLOSED_STREAMS
    # One arena for all threads: they take turns with the interpreter's lock anyway. Other C libraries have no arenas.
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


def trim() -> None:
    """Give freed memory back to the system."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
