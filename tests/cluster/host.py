"""What a run has of the machine beside files: processes, bridges and cgroups; how to find and remove them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.cluster.process import ProcessIdentity, poll_until, reap_children

_CGROUPS = Path("/sys/fs/cgroup")
_INTERFACES = Path("/sys/class/net")
_INOTIFY_LIMIT = Path("/proc/sys/fs/inotify/max_user_instances")
_INOTIFY_INSTANCES = 4096
_TIMEOUT_SECONDS = 150.0


def end_processes(marker: str, cgroup: str) -> None:
    """Kill every process with `marker` in its environment, what they started, and all in `cgroup`.

    Raises:
        TimeoutError: when some do not go (which only a stuck kernel call explains).
    """

    def none_left() -> bool:
        processes = processes_of(marker, cgroup)
        for process in processes:
            process.signal(signal.SIGKILL)
        reap_children()
        return not processes

    poll_until(none_left, timeout_seconds=_TIMEOUT_SECONDS, what=f"the end of all processes with {marker}")


def processes_of(marker: str, cgroup: str) -> list[ProcessIdentity]:
    """All processes that belong to a run or a node, recorded or not, but never this one.

    A process hands its environment on, so one that was started in the very moment its starter was killed
    is found as well. Containers do not have the marker: they are children of one that has, or, when
    their shim was killed, are found in the cgroup.
    """
    variable = marker.encode()
    parents: dict[int, int] = {}
    found = {pid for folder in cgroup_folders(cgroup) for pid in _members(folder)}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        # A process may end while it is looked at.
        with contextlib.suppress(OSError, IndexError):
            parents[int(entry.name)] = _parent(entry)
            if variable in (entry / "environ").read_bytes().split(b"\0"):
                found.add(int(entry.name))
    grown = True
    while grown:
        children = {pid for pid, parent in parents.items() if parent in found} - found
        found |= children
        grown = bool(children)
    identities = []
    for pid in found - {os.getpid()}:
        with contextlib.suppress(ProcessLookupError):
            identities.append(ProcessIdentity.of(pid))
    return identities


def make_bridge(name: str, address: str) -> None:
    """Make a bridge of this machine with an address such as ``198.18.7.1/24``."""
    for command in (
        f"link add {name} type bridge",
        f"address add {address} dev {name}",
        f"link set {name} up",
    ):
        subprocess.run(["ip", *command.split()], capture_output=True, check=True)


def remove_link(name: str) -> None:
    """Remove a network interface; none of that name is no error.

    Raises:
        RuntimeError: when it stays.
    """
    subprocess.run(["ip", "link", "delete", name], capture_output=True, check=False)
    if (_INTERFACES / name).exists():
        raise RuntimeError(f"the interface {name} could not be removed; try: ip link delete {name}")


def remove_links(prefix: str) -> None:
    """Remove every network interface whose name begins so."""
    for path in _INTERFACES.glob(f"{prefix}*"):
        remove_link(path.name)


def raise_inotify_limit(kept: Path) -> None:
    """Allow enough inotify instances for many nodes (each takes nine; Debian allows 128), noting the old limit.

    Args:
        kept: the file that keeps the old limit for `restore_inotify_limit`.
    """
    before = int(_INOTIFY_LIMIT.read_text(encoding="ascii"))
    if before < _INOTIFY_INSTANCES:
        if not kept.exists():
            kept.write_text(str(before), encoding="ascii")
        _INOTIFY_LIMIT.write_text(str(_INOTIFY_INSTANCES), encoding="ascii")


def restore_inotify_limit(kept: Path) -> None:
    """Undo `raise_inotify_limit`; nothing to undo is no error."""
    with contextlib.suppress(FileNotFoundError):
        _INOTIFY_LIMIT.write_text(kept.read_text(encoding="ascii"), encoding="ascii")
        kept.unlink()


def make_cgroup(cgroup: str) -> None:
    """Make a cgroup ``a/b`` in every hierarchy, with all the processors and controllers that there are."""
    for root in _hierarchies():
        folder = root
        for part in cgroup.split("/"):
            parent, folder = folder, folder / part
            folder.mkdir(exist_ok=True)
            # Version 1: a new cpuset is empty, and nothing can run in it.
            for name in ("cpuset.cpus", "cpuset.mems"):
                if (folder / name).exists() and not (folder / "cgroup.controllers").exists():
                    (folder / name).write_text((parent / name).read_text(encoding="ascii"), encoding="ascii")
            # Version 2: a parent passes on only the controllers that it is told to.
            if (parent / "cgroup.controllers").exists():
                for controller in (parent / "cgroup.controllers").read_text(encoding="ascii").split():
                    with contextlib.suppress(OSError):
                        (parent / "cgroup.subtree_control").write_text(f"+{controller}", encoding="ascii")


def remove_cgroup(cgroup: str) -> None:
    """Remove a cgroup without processes, with all below it, from every hierarchy."""

    def removed() -> bool:
        # The kernel lets go of a process's cgroup a moment after the process.
        for folder in sorted(cgroup_folders(cgroup), key=lambda path: len(path.parts), reverse=True):
            with contextlib.suppress(OSError):
                folder.rmdir()
        return not list(cgroup_folders(cgroup))

    poll_until(removed, timeout_seconds=_TIMEOUT_SECONDS, what=f"the removal of cgroup {cgroup}")


def cgroup_folders(cgroup: str) -> Iterator[Path]:
    """The cgroup and all below it, in every hierarchy."""
    for root in _hierarchies():
        for folder, _, _ in os.walk(root / cgroup):
            yield Path(folder)


def _hierarchies() -> list[Path]:
    """Version 2 has one hierarchy, at the root; version 1 one per controller, some also a version 2."""
    if (_CGROUPS / "cgroup.procs").exists():
        return [_CGROUPS]
    return [path for path in _CGROUPS.iterdir() if (path / "cgroup.procs").exists() and not path.is_symlink()]


def _members(folder: Path) -> list[int]:
    with contextlib.suppress(OSError):
        return [int(line) for line in (folder / "cgroup.procs").read_text(encoding="ascii").split()]
    return []


def _parent(process: Path) -> int:
    stat = (process / "stat").read_text(encoding="utf-8", errors="replace")
    return int(stat.rpartition(")")[2].split()[1])
