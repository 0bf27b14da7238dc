"""One run of a test cluster on this machine, and everything it must give back.

Each run has a short directory below `runs_directory` (a Unix socket path holds 107 bytes, and a driver
instance may put two UUID-like names behind ours) and a data directory for what is large. Its
``state.json`` records processes with their start times, reserved ports and subnets; processes, cgroups and
network interfaces also bear the run's name. So any later program can stop the run, and the next start can
remove the leftovers of dead runs without ever touching one that is alive.

A run is alive while its owner (the program that started it) runs. A detached run has no owner: it is
alive while any of its processes is.
"""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import json
import os
import random
import re
import secrets
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.cluster.host import processes_of
from tests.cluster.process import Daemon, ProcessIdentity, boot_id

REPOSITORY = Path(__file__).resolve().parents[2]
STATE_VERSION = 1
# flock is per open file: within one process, threads need a lock of their own and nesting needs a note.
_PROCESS_LOCK = threading.RLock()
_HELD = threading.local()
_RUN_NAME = re.compile(r"[0-9a-f]{6}")
# In the environment of every process of a run, with the run's directory as its value.
RUN_VARIABLE = "GPUPOLICY_TEST_RUN"
# Below the kernel's range for outgoing connections, so that a port stays ours while its server restarts.
_PORTS = range(10_000, 32_000)
# Set aside for benchmarks (RFC 2544): never a network that the machine is really attached to.
_NETWORKS = ipaddress.IPv4Network("198.18.0.0/15")


class StateError(Exception):
    """A state file is missing or unreadable; the message says which and why."""


def runs_directory() -> Path:
    """Where runs live: ``$GPUPOLICY_TEST_RUNS``, ``/run/gpt`` for root, else a folder per user in /tmp."""
    if given := os.environ.get("GPUPOLICY_TEST_RUNS"):
        return Path(given).absolute()
    return Path("/run/gpt") if os.geteuid() == 0 else Path(f"/tmp/gpt-{os.geteuid()}")


def inotify_note() -> Path:
    """Where the machine's own limit of inotify instances is kept while runs have raised it."""
    return runs_directory() / ".inotify-limit"


def all_runs() -> list[Run]:
    """Every run that has left a directory, alive or dead, oldest name first."""
    directory = runs_directory()
    if not directory.is_dir():
        return []
    return [Run(path) for path in sorted(directory.iterdir()) if _RUN_NAME.fullmatch(path.name)]


@contextlib.contextmanager
def machine_lock() -> Iterator[None]:
    """Serialise what must be unique on the machine: new runs, ports, subnets, cleaning. Re-entrant."""
    directory = runs_directory()
    directory.mkdir(mode=0o755, parents=True, exist_ok=True)
    with _PROCESS_LOCK:
        if getattr(_HELD, "by_this_thread", False):
            yield
            return
        with (directory / ".lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            _HELD.by_this_thread = True
            try:
                yield
            finally:
                _HELD.by_this_thread = False


class Run:
    """The directories and the state file of one run. Nothing is cached: several programs may hold one."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._lock = threading.RLock()

    @classmethod
    def create(cls) -> Run:
        """Make a new run owned by this process."""
        with machine_lock():
            while True:
                identity = secrets.token_hex(3)
                directory = runs_directory() / identity
                with contextlib.suppress(FileExistsError):
                    directory.mkdir(mode=0o711)
                    break
            run = cls(directory)
            run._write(
                {
                    "version": STATE_VERSION,
                    "id": identity,
                    "boot": boot_id(),
                    "owner": ProcessIdentity.of(os.getpid()).to_state(),
                    "daemons": {},
                    "node_count": 0,
                    "ports": [],
                    "networks": [],
                    "parts": {},
                }
            )
            run.data_directory.mkdir(mode=0o711)
        return run

    @property
    def id(self) -> str:
        return self.directory.name

    @property
    def state(self) -> dict[str, Any]:
        """The recorded state, read afresh.

        Raises:
            StateError: when there is none or it cannot be read.
        """
        path = self.directory / "state.json"
        try:
            state = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise StateError(f"{path}: {error}") from error
        if not isinstance(state, dict) or state.get("version") != STATE_VERSION:
            raise StateError(f"{path}: not a state file of version {STATE_VERSION}")
        return state

    @property
    def data_directory(self) -> Path:
        """For what is large: the runs' directory may be a file system in memory."""
        return Path("/var/tmp") / f"gpupolicy-test-{self.id}"

    @property
    def marker(self) -> str:
        """What every process of the run has in its environment."""
        return f"{RUN_VARIABLE}={self.directory}"

    @property
    def cgroup(self) -> str:
        """The name of the run's cgroup; every node has one below it."""
        return f"gpt-{self.id}"

    @property
    def link_prefix(self) -> str:
        """How the names of the run's network interfaces begin."""
        return f"gpt{self.id}-"

    @property
    def alive(self) -> bool:
        """Whether the run is in use (see the module's rule).

        One whose state cannot be read, say of another version, is in use while it has processes.
        """
        try:
            state = self.state
        except StateError:
            return bool(processes_of(self.marker, self.cgroup))
        if state["owner"] is not None:
            return ProcessIdentity.from_state(state["owner"]).alive
        return any(daemon.alive for daemon in self.daemons)

    @property
    def daemons(self) -> list[Daemon]:
        """All recorded processes, in the order of their first start."""
        return [Daemon(self, name) for name in self.state["daemons"]]

    @contextlib.contextmanager
    def edit(self) -> Iterator[dict[str, Any]]:
        """Change the state: what is yielded is written back, atomically, unless the block raises."""
        with self._lock, (self.directory / ".state.lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            state = self.state
            yield state
            self._write(state)

    def detach(self) -> None:
        """Give up ownership: from now on the run lives until somebody stops it."""
        with self.edit() as state:
            state["owner"] = None

    def daemon(
        self,
        name: str,
        command: Sequence[str | Path],
        *,
        environment: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        replace: bool = False,
    ) -> Daemon:
        """Record a background process under a name unique in the run; the caller starts it.

        With `replace`, a process of that name, which must have ended, gets the new command.
        """
        with self.edit() as state:
            if name in state["daemons"] and not (replace and not Daemon(self, name).alive):
                raise ValueError(f"the run already has a process called {name}")
            state["daemons"][name] = {
                "command": [str(argument) for argument in command],
                "environment": {**(environment or {}), RUN_VARIABLE: str(self.directory)},
                "cwd": None if cwd is None else str(cwd),
                "process": None,
            }
        return Daemon(self, name)

    def daemon_record(self, name: str) -> Mapping[str, Any]:
        """What is recorded about a process.

        Raises:
            KeyError: when the run has none of this name.
        """
        record: Mapping[str, Any] = self.state["daemons"][name]
        return record

    def record_process(self, name: str, identity: ProcessIdentity) -> None:
        with self.edit() as state:
            state["daemons"][name]["process"] = identity.to_state()

    def forget_daemon(self, name: str) -> None:
        """Drop a stopped process from the state; its log stays."""
        with self.edit() as state:
            state["daemons"].pop(name, None)

    def part(self, name: str) -> dict[str, Any] | None:
        """The settings a part of the cluster has stored (`store_part`), or None."""
        part: dict[str, Any] | None = self.state["parts"].get(name)
        return part

    def store_part(self, name: str, settings: Mapping[str, Any] | None) -> None:
        """Store what another program needs to take a part up again; None removes it."""
        with self.edit() as state:
            if settings is None:
                state["parts"].pop(name, None)
            else:
                state["parts"][name] = dict(settings)

    def reserve_ports(self, count: int) -> list[int]:
        """Reserve loopback TCP ports that no other run has and nobody listens on now."""
        with machine_lock():
            taken = {port for other in all_runs() for port in _reserved(other, "ports")}
            free: list[int] = []
            while len(free) < count:
                port = random.choice(_PORTS)
                if port not in taken and port not in free and _bindable(port):
                    free.append(port)
            with self.edit() as state:
                state["ports"] += free
        return free

    def reserve_network(self) -> ipaddress.IPv4Network:
        """Reserve a /24 that neither another run nor a route of this machine uses."""
        with machine_lock():
            taken = [
                ipaddress.IPv4Network(text) for other in all_runs() for text in _reserved(other, "networks")
            ]
            candidates = list(_NETWORKS.subnets(new_prefix=24))
            random.shuffle(candidates)
            busy = [*taken, *_routes()]
            for network in candidates:
                if not any(network.overlaps(other) for other in busy):
                    with self.edit() as state:
                        state["networks"].append(str(network))
                    return network
        raise RuntimeError(f"all networks of {_NETWORKS} are in use; stop other test clusters")

    def remove_directory(self) -> None:
        """Remove the run's directory; the state file goes last, so that a kill half-way leaves a trace.

        Another program that starts at the same moment may take the run for dead and remove it with us.
        """
        with contextlib.suppress(FileNotFoundError):
            self._remove_files()

    def _remove_files(self) -> None:
        for path in self.directory.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            elif path.name != "state.json":
                path.unlink()
        shutil.rmtree(self.directory)

    def _write(self, state: Mapping[str, Any]) -> None:
        scratch = self.directory / ".state.json.new"
        scratch.write_text(json.dumps(state, indent=1), encoding="utf-8")
        scratch.replace(self.directory / "state.json")


def _reserved(run: Run, kind: str) -> list[Any]:
    try:
        return list(run.state[kind])
    except StateError:
        return []


def _bindable(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _routes() -> list[ipaddress.IPv4Network]:
    if shutil.which("ip") is None:
        return []  # without it there are no nodes, and the addresses are never put on an interface
    answer = subprocess.run(
        ["ip", "-j", "-4", "route", "show", "table", "all"], capture_output=True, text=True, check=True
    )
    targets = (route.get("dst", "") for route in json.loads(answer.stdout or "[]"))
    return [ipaddress.IPv4Network(target, strict=False) for target in targets if target[:1].isdigit()]
