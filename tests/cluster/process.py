"""Processes that outlive the program that started them, and how to recognise them again.

A pid alone says little: it is reused. `ProcessIdentity` adds the start time and the boot, so a process
that a state file names is signalled only if it is still the same one. `Daemon` is one background
process of a run: its command and identity stand in the run's state file, so any later program can
stop, kill, pause or restart it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.cluster.run import Run

# Children of this very process, kept so that they can be reaped and their objects are never finalised
# while the process runs (the interpreter would warn about each).
_CHILDREN: dict[int, subprocess.Popen[bytes]] = {}


def boot_id() -> str:
    """The identity of this boot of the machine: start times are only comparable within it."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def reap_children() -> None:
    """Collect the ended children of this process, so that they do not stay as zombies."""
    for pid, child in list(_CHILDREN.items()):
        if child.poll() is not None:
            _CHILDREN.pop(pid, None)


@dataclasses.dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """A process that cannot be mistaken for a later one with the same pid."""

    pid: int
    start_ticks: int
    boot: str

    @classmethod
    def of(cls, pid: int) -> ProcessIdentity:
        """Identify a running process.

        Raises:
            ProcessLookupError: when there is none with this pid (or only a zombie).
        """
        ticks = _start_ticks(pid)
        if ticks is None:
            raise ProcessLookupError(f"no process {pid}")
        return cls(pid, ticks, boot_id())

    @property
    def alive(self) -> bool:
        """Whether exactly this process still runs; a zombie does not."""
        return self.boot == boot_id() and _start_ticks(self.pid) == self.start_ticks

    def signal(self, number: int) -> bool:
        """Send a signal to exactly this process; tell whether it was there."""
        # A pidfd pins the process, so it cannot be replaced between the look and the signal.
        try:
            descriptor = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return False
        try:
            if not self.alive:
                return False
            signal.pidfd_send_signal(descriptor, number)
        except ProcessLookupError:
            return False
        finally:
            os.close(descriptor)
        return True

    def wait(self, timeout_seconds: float | None) -> bool:
        """Wait until the process has ended; tell whether it has."""
        try:
            descriptor = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return True
        try:
            # A zombie may have threads that still hold its ports; the descriptor is ready when they are gone too.
            if self.boot != boot_id() or _start_ticks(self.pid, zombie=True) != self.start_ticks:
                return True
            ready, _, _ = select.select([descriptor], [], [], timeout_seconds)
        finally:
            os.close(descriptor)
        reap_children()
        return bool(ready)

    def to_state(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> ProcessIdentity:
        return cls(state["pid"], state["start_ticks"], state["boot"])


def _start_ticks(pid: int, *, zombie: bool = False) -> int | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The command name may hold spaces and parentheses; the fields of interest follow its last ")".
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in {"Z", "X"} and not zombie else int(fields[19])


def poll_until(
    condition: Callable[[], bool], *, timeout_seconds: float, what: str, interval_seconds: float = 0.05
) -> None:
    """Wait until `condition` holds.

    Raises:
        TimeoutError: naming `what` after `timeout_seconds`.
    """
    deadline = time.monotonic() + timeout_seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {timeout_seconds:g} s")
        time.sleep(interval_seconds)


class Daemon:
    """A background process of a run, known by name in the run's state file.

    It gets a session of its own, no input, and appends its output to ``<run>/logs/<name>.log``.
    ``environment`` is laid over the starting program's. Obtain one from `Run.daemon` (new or known).
    """

    def __init__(self, run: Run, name: str) -> None:
        self._run = run
        self.name = name

    @property
    def _record(self) -> Mapping[str, Any]:
        return self._run.daemon_record(self.name)

    @property
    def log(self) -> Path:
        """The file that collects standard output and standard error."""
        return self._run.directory / "logs" / f"{self.name}.log"

    @property
    def identity(self) -> ProcessIdentity | None:
        """The process last started, dead or alive; None before the first start."""
        state = self._record.get("process")
        return None if state is None else ProcessIdentity.from_state(state)

    @property
    def pid(self) -> int:
        """The pid last used (the process may have ended since)."""
        identity = self.identity
        if identity is None:
            raise ProcessLookupError(f"{self.name} was never started")
        return identity.pid

    @property
    def alive(self) -> bool:
        identity = self.identity
        return identity is not None and identity.alive

    def start(self) -> None:
        """Start the process with its recorded command.

        Raises:
            RuntimeError: when it already runs.
            OSError: when there is no such program.
        """
        if self.alive:
            raise RuntimeError(f"{self.name} already runs as pid {self.pid}")
        record = self._record
        self.log.parent.mkdir(exist_ok=True)
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                record["command"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd=record["cwd"],
                env={**os.environ, **record["environment"]},
            )
        # Until it is waited for, even a child that has ended already has its entry.
        ticks = _start_ticks(process.pid, zombie=True)
        assert ticks is not None
        self._run.record_process(self.name, ProcessIdentity(process.pid, ticks, boot_id()))
        _CHILDREN[process.pid] = process

    def stop(self, timeout_seconds: float = 30.0) -> None:
        """Ask the process to end (SIGTERM), then make it end (SIGKILL). No error when it is gone."""
        identity = self.identity
        if identity is None or not self.alive:
            return
        # A stopped process would not see SIGTERM.
        identity.signal(signal.SIGTERM)
        identity.signal(signal.SIGCONT)
        if not identity.wait(timeout_seconds):
            self.kill()

    def kill(self) -> None:
        """End the process with SIGKILL, as a crash would, and wait until it is gone."""
        identity = self.identity
        if identity is not None:
            identity.signal(signal.SIGKILL)
            identity.wait(120.0)

    def restart(self) -> None:
        self.stop()
        self.start()

    def pause(self) -> None:
        """Freeze the process (SIGSTOP): it keeps its connections and answers nothing."""
        self._signal_running(signal.SIGSTOP)

    def resume(self) -> None:
        """Let a frozen process go on (SIGCONT)."""
        self._signal_running(signal.SIGCONT)

    def wait(self, timeout_seconds: float) -> bool:
        """Wait for the end of the process; tell whether it has ended."""
        identity = self.identity
        return identity is None or identity.wait(timeout_seconds)

    def log_tail(self, lines: int = 30) -> str:
        with contextlib.suppress(FileNotFoundError):
            return "\n".join(self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])
        return ""

    def wait_until(self, condition: Callable[[], bool], what: str, *, timeout_seconds: float) -> None:
        """Wait until `condition` holds, which this process is to bring about.

        Raises:
            RuntimeError: with the end of the log, as soon as the process has ended.
            TimeoutError: naming `what`, with the end of the log.
        """

        def holds() -> bool:
            self.require_alive()
            return condition()

        try:
            poll_until(holds, timeout_seconds=timeout_seconds, what=what)
        except TimeoutError as error:
            raise TimeoutError(f"{error}; the end of {self.log}:\n{self.log_tail()}") from None

    def require_alive(self) -> None:
        """Raise with the end of the log when the process has ended."""
        if not self.alive:
            raise RuntimeError(f"{self.name} has ended; the end of {self.log}:\n{self.log_tail()}")

    def _signal_running(self, number: int) -> None:
        identity = self.identity
        if identity is None or not identity.signal(number):
            raise ProcessLookupError(f"{self.name} does not run")


def command_of(pid: int) -> Sequence[str]:
    """The arguments a process was started with; empty when it is gone or a kernel thread."""
    try:
        raw = Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return ()
    return [part.decode(errors="replace") for part in raw.rstrip(b"\0").split(b"\0")] if raw else ()
