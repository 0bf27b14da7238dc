"""The two Unix sockets of a plugin: their names, how they appear, and whose they are.

A socket is bound under a hidden name and renamed into place while it already listens: the kubelet, which watches the
directory, never finds one that refuses it, and a dead socket of ours is replaced in one step. A socket that someone
still serves, and a file that is no socket, is never touched.
"""

import base64
import contextlib
import hashlib
import os
import re
import secrets
import socket
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PATH_BYTES: Final = 107
"""Longest path of a Unix socket on Linux: sun_path has 108 bytes, the last of which ends the text."""

_BACKLOG: Final = 64
# What a driver's name of 63 characters leaves in /var/lib/kubelet/plugins/<driver>/dra-<hash>.sock, less one.
_HASH_LENGTH: Final = 8
_INSTANCE_ID: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?")
_SERVICE_NAME: Final = re.compile(r"dra(?:-(.+))?\.sock")


class SocketError(Exception):
    """A socket that cannot be served: what, where, and what to do about it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SocketPaths:
    """Where one instance of a driver serves: the DRA service, and the registration that points to it."""

    service: Path
    registration: Path


@dataclass(slots=True, kw_only=True)
class BoundSocket:
    """A listening socket, with the identity of its file."""

    path: Path
    listener: socket.socket
    device: int
    inode: int

    def state(self) -> str:
        """Say whether the file is `ours`, `missing` or `replaced` by someone else's."""
        try:
            status = self.path.lstat()
        except OSError:
            return "missing"
        return "ours" if (status.st_dev, status.st_ino) == (self.device, self.inode) else "replaced"

    def unlink(self) -> None:
        """Remove the file if it is still this socket's."""
        if self.state() == "ours":
            with contextlib.suppress(FileNotFoundError):
                self.path.unlink()


def name_sockets(
    driver_name: str, plugin_dir: Path, registry_dir: Path, instance_id: str | None
) -> SocketPaths:
    """Choose the socket paths of one instance.

    With an instance id (the pod's uid) two instances can serve side by side during a rolling update. Where the full
    id does not fit into a socket path, a hash of it takes its place.

    Raises:
        SocketError: not even the short form fits, or the instance id cannot be part of a name.
    """
    if instance_id is not None and not _INSTANCE_ID.fullmatch(instance_id):
        raise SocketError(
            f"instance id {instance_id!r}: want up to 63 letters, digits and dashes, as in a pod's uid"
        )
    services = ["dra.sock"]
    if instance_id is not None:
        services = [f"dra-{instance_id}.sock", f"dra-{_hash(instance_id)}.sock"]
    return SocketPaths(
        service=_fit(plugin_dir, services),
        registration=_fit(registry_dir, _registration_names(driver_name, instance_id)),
    )


def bind(path: Path) -> BoundSocket:
    """Listen at a path, replacing a dead socket there.

    Raises:
        SocketError: someone serves there, something else than a socket is there, or the directory does not let us.
    """
    _check_free(path)
    # Shorter than any final name, so it fits where that fits.
    hidden = path.with_name(f".{secrets.token_hex(3)}")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.setblocking(False)
        listener.bind(str(hidden))
        # Only root prepares claims.
        hidden.chmod(0o600)
        listener.listen(_BACKLOG)
        status = hidden.lstat()
        hidden.rename(path)
    except OSError as error:
        listener.close()
        with contextlib.suppress(OSError):
            hidden.unlink()
        raise SocketError(
            f"cannot serve at {path}: {error.strerror or error}: the directory must exist on the host"
            " and be mounted read-write into this pod at the same path"
        ) from error
    return BoundSocket(path=path, listener=listener, device=status.st_dev, inode=status.st_ino)


def remove_stale(driver_name: str, plugin_dir: Path, registry_dir: Path) -> tuple[Path, ...]:
    """Remove the sockets of instances of this driver that are no more; return what was removed.

    The plugin directory is the driver's own, so a service socket in it names an instance of ours, and from that
    follows the name of its registration socket. What does not follow from a socket of ours is not looked at:
    another driver's name may begin with this one's.
    """
    removed: list[Path] = []
    for entry in _entries(plugin_dir):
        match = _SERVICE_NAME.fullmatch(entry)
        if not match:
            continue
        service = plugin_dir / entry
        registrations = [registry_dir / name for name in _registration_names(driver_name, match[1])]
        if is_dead(service):
            removed += [path for path in (*registrations, service) if is_dead(path) and _unlink(path)]
    return tuple(removed)


def is_dead(path: Path) -> bool:
    """Say whether a path is a socket that nobody listens on."""
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            return False
    except OSError:
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return True
        except OSError:
            # A full backlog, for one: somebody is there.
            return False
    return False


def _check_free(path: Path) -> None:
    try:
        mode = path.lstat().st_mode
    except OSError:
        # Missing is free; any other trouble shows when binding.
        return
    if not stat.S_ISSOCK(mode):
        raise SocketError(f"cannot serve at {path}: it is not a socket: remove it if nothing needs it")
    if not is_dead(path):
        raise SocketError(
            f"cannot serve at {path}: another process serves there: stop the other instance of this driver,"
            " or give each instance an id"
        )


def _registration_names(driver_name: str, instance_id: str | None) -> list[str]:
    """List the names of a registration socket, the preferred one first.

    Each hash is taken of a hash of the id, so that the names follow from the shortened name of a service socket too.
    """
    if instance_id is None:
        return [f"{driver_name}-reg.sock", f"{_hash(driver_name)}-reg.sock"]
    short = instance_id if len(instance_id) == _HASH_LENGTH else _hash(instance_id)
    return [
        f"{driver_name}-{instance_id}-reg.sock",
        f"{driver_name}-{short}-reg.sock",
        f"{_hash(f'{driver_name}/{short}')}-reg.sock",
    ]


def _fit(directory: Path, candidates: list[str]) -> Path:
    for name in candidates:
        path = directory / name
        if len(os.fsencode(path)) <= PATH_BYTES:
            return path
    raise SocketError(
        f"socket path {directory / candidates[-1]} is longer than {PATH_BYTES} bytes: use a shorter directory"
    )


def _hash(text: str) -> str:
    """Shorten a text to a few characters that are legal in a file name and never begin with a dot."""
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode()[:_HASH_LENGTH]


def _entries(directory: Path) -> list[str]:
    with contextlib.suppress(OSError):
        return sorted(entry.name for entry in directory.iterdir())
    return []


def _unlink(path: Path) -> bool:
    try:
        path.unlink()
    except OSError:
        return False
    return True
