"""Whole files, written and removed so that a crash leaves either the old state or the new one.

The ledger and the CDI writer both stand on this module. It blocks: callers on an event loop use a thread.
A failure is a `FileError`, which says what was tried on which path, why it failed and what to do about it.
Nothing here retries, and nothing here creates a missing directory.
"""

import contextlib
import errno
import os
import secrets
import time
from enum import Enum, StrEnum
from pathlib import Path
from typing import Final

TEMPORARY_SUFFIX: Final = ".tmp"
LEFTOVER_AGE_SECONDS: Final = 600.0
"""No writer takes that long, so an older temporary file is what a crash left behind."""


class Fault(StrEnum):
    """Why a file could not be written, read or removed."""

    MISSING = "DirectoryMissing"
    READ_ONLY = "ReadOnlyFileSystem"
    FULL = "NoSpaceLeft"
    DENIED = "PermissionDenied"
    BROKEN = "InputOutputError"
    NO_FILE = "NotAFile"
    OTHER = "UnexpectedError"


class Sync(Enum):
    """How much has to be on the disk before a write returns. Every level survives a killed process.

    What a level costs was measured on ext4, as a multiple of one fsynced 1 KiB file (3 ms there).
    """

    NONE = 0
    """Left to the kernel. For directories that do not outlive a boot, such as /var/run."""

    FILE = 1
    """After a power cut the file holds its old content or its new content (1.1, 1.6 when it replaces one)."""

    FULL = 2
    """As FILE, and the new content it is: the directory is on the disk too (1.9, 2.6 when it replaces one)."""


_FAULTS: Final = {
    errno.ENOENT: Fault.MISSING,
    errno.ENOTDIR: Fault.MISSING,
    errno.EROFS: Fault.READ_ONLY,
    errno.ENOSPC: Fault.FULL,
    errno.EDQUOT: Fault.FULL,
    errno.EACCES: Fault.DENIED,
    errno.EPERM: Fault.DENIED,
    errno.EIO: Fault.BROKEN,
    errno.EISDIR: Fault.NO_FILE,
    errno.ELOOP: Fault.NO_FILE,
}

_REMEDIES: Final = {
    Fault.MISSING: "create the directory on the host, or correct the host path of the volume",
    Fault.READ_ONLY: "mount the volume read-write; a disk that went read-only by itself needs a file system check",
    Fault.FULL: "free space or inodes on this file system of the node",
    Fault.DENIED: "let the process write there: run it as root, or correct owner, mode and security labels",
    Fault.BROKEN: "look at the kernel log of the node: the disk or its driver fails",
    Fault.NO_FILE: "a directory or a link stands where a file belongs; move it away",
    Fault.OTHER: "look up the error number in errno(3)",
}


class FileError(Exception):
    """An effect on a file that the operating system refused.

    Attributes:
        fault: the kind of failure, fit for a condition's reason.
        path: the file or directory that it was about.
        errno: the error number of the operating system.
        remedy: what the administrator can do.
    """

    def __init__(self, action: str, path: Path, cause: OSError) -> None:
        self.fault = _FAULTS.get(cause.errno or 0, Fault.OTHER)
        self.path = path
        self.errno = cause.errno or 0
        self.remedy = _REMEDIES[self.fault]
        super().__init__(f"cannot {action} {path}: {cause.strerror or cause} ({self.fault}): {self.remedy}")


def replace(path: Path, content: bytes, *, mode: int = 0o644, sync: Sync) -> None:
    """Give the file at `path` this content, in one step for every reader.

    Raises:
        FileError: nothing was changed, unless only the last fsync of the directory failed.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}{TEMPORARY_SUFFIX}")
    try:
        # O_CLOEXEC is Python's default. O_EXCL keeps a planted symlink from choosing the target.
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
    except OSError as error:
        raise FileError("write", path, error) from error
    try:
        try:
            _write_all(descriptor, content)
            if sync is not Sync.NONE:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
        temporary.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise FileError("write", path, error) from error
    if sync is Sync.FULL:
        _sync_directory(path.parent)


def remove(path: Path, *, sync: Sync) -> bool:
    """Remove one file; False when there was none.

    Raises:
        FileError: the file is still there, unless only the fsync of the directory failed.
    """
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise FileError("remove", path, error) from error
    if sync is Sync.FULL:
        _sync_directory(path.parent)
    return True


def move(source: Path, target: Path) -> None:
    """Rename a file or directory within one file system, its bytes untouched; the target must not exist.

    Raises:
        FileError: nothing was moved, unless only the last fsync of a directory failed.
    """
    try:
        source.rename(target)
    except OSError as error:
        raise FileError("move", source, error) from error
    _sync_directory(target.parent)
    _sync_directory(source.parent)


def names(directory: Path) -> tuple[str, ...]:
    """List the names in a directory, sorted.

    Raises:
        FileError: the directory cannot be read.
    """
    try:
        return tuple(sorted(entry.name for entry in directory.iterdir()))
    except OSError as error:
        raise FileError("list", directory, error) from error


def sweep(directory: Path, *, prefix: str = "") -> int:
    """Remove the temporary files that a crash left of files whose name begins with `prefix`; return how many.

    A file that another process may still be writing is younger than `LEFTOVER_AGE_SECONDS` and stays.
    """
    swept = 0
    oldest = time.time() - LEFTOVER_AGE_SECONDS
    for name in names(directory):
        path = directory / name
        if not (name.startswith(f".{prefix}") and name.endswith(TEMPORARY_SUFFIX)):
            continue
        # Whoever else swept or finished it in between is welcome to.
        with contextlib.suppress(OSError):
            if path.lstat().st_mtime < oldest:
                path.unlink()
                swept += 1
    return swept


def _write_all(descriptor: int, content: bytes) -> None:
    """Write everything; a short write is what a nearly full disk answers before it answers ENOSPC."""
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _sync_directory(directory: Path) -> None:
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise FileError("sync", directory, error) from error
