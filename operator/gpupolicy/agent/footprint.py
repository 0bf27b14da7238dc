"""What keeps the agent small: it runs on every node with a GPU, so each MiB counts as often as there are nodes.

Measured on CPython 3.11 with eight cards: the system's certificates in aiohttp's default contexts 1.8 MiB, arenas for
each thread 0.4, memory that was only needed to start 0.4, read buffers of TLS 1 (2.5 after a crowd of claims). (Models that are built when they are first used, and the
server half of aiohttp only where it is used, save another 2; docstrings, with PYTHONOPTIMIZE=2, another 2.)
"""

import contextlib
import ctypes
import os
from asyncio import sslproto
from typing import Final

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
    # One arena for all threads: they take turns with the interpreter's lock anyway. Other C libraries have no arenas.
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


def trim() -> None:
    """Give freed memory back to the system."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
