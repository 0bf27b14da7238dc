"""One agent per node: a lock that the kernel takes from a process which ends, however it ends.

Two agents would undo each other's slices, records and instances. The lock is an flock on a file in the driver's plugin
directory, which all agents of a node share. It belongs to the open file, so it goes with the process, also with a killed
one, and survives nothing. Who holds it stands in the file, for people; nothing is decided by that.

The file itself stays: if it were removed, a process that waits on the old file and one that opens a new one would both
have the lock. Where somebody else removed it, whoever got the lock of the old file notices and takes the new one.
"""

import asyncio
import contextlib
import fcntl
import os
from pathlib import Path
from typing import Final

from gpupolicy.adapters.files import FileError

GLANCE_SECONDS: Final = 0.2
"""How often one who waits tries. A blocking flock would need a thread that cannot be stopped."""
_NOTE_BYTES: Final = 200


class NodeLock:
    """The lock of one node, as one process sees it.

    An agent does not give it back: it ends with the process, and so with whatever call of the driver still hangs in it.

    Args:
        path: the file; its directory is made when missing.
        holder: who we are, for the one who has to wait; a short line.
    """

    def __init__(self, path: Path, holder: str) -> None:
        self._path = path
        self._holder = holder
        self._descriptor: int | None = None
        self.other = ""
        """Who has the lock while we wait, in his own words; empty when it is ours or was never asked for."""

    def take(self) -> bool:
        """Take the lock if nobody has it; return whether it is ours now.

        Raises:
            FileError: the file cannot be opened or locked.
        """
        if self._descriptor is not None:
            return True
        try:
            self._path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise FileError("lock", self._path, error) from error
        kept = False
        try:
            if not _lock(descriptor):
                self.other = (
                    os.pread(descriptor, _NOTE_BYTES, 0).decode("utf-8", "replace").strip() or "unnamed"
                )
            elif _is_at(self._path, descriptor):
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, self._holder.encode()[:_NOTE_BYTES], 0)
                self._descriptor, self.other, kept = descriptor, "", True
        except OSError as error:
            raise FileError("lock", self._path, error) from error
        finally:
            if not kept:
                os.close(descriptor)
        return kept

    async def wait(self) -> None:
        """Wait until the lock is ours.

        Raises:
            FileError: as in `take`.
        """
        while not self.take():  # noqa: ASYNC110 - another process cannot set an event of ours
            await asyncio.sleep(GLANCE_SECONDS)

    def release(self) -> None:
        """Give the lock back; the file stays."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_at(path: Path, descriptor: int) -> bool:
    """Return whether an open file is still the one at a path."""
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(path.lstat(), os.fstat(descriptor))
    return False
