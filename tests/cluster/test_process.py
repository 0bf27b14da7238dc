"""Processes of a run are recorded, recognised and ended; a stranger with the same pid never is."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.host import processes_of
from tests.cluster.process import Daemon, ProcessIdentity, poll_until
from tests.cluster.run import REPOSITORY, Run


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    monkeypatch.setenv("GPUPOLICY_TEST_RUNS", str(tmp_path / "runs"))
    run = Run.create()
    yield run
    for daemon in run.daemons:
        daemon.kill()
    run.data_directory.rmdir()


def lives(process: Daemon | ProcessIdentity) -> bool:
    """A function, because a type checker takes a property for constant."""
    return process.alive


def state_of(daemon: Daemon) -> str:
    """The kernel's letter for a process: S sleeping, T stopped, ..."""
    return Path(f"/proc/{daemon.pid}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"start_ticks": 1}, id="another process has the pid"),
        pytest.param({"boot": "another"}, id="the machine was restarted"),
        pytest.param({"pid": 2**22 + 1}, id="no process has the pid"),
    ],
)
def test_a_process_that_is_not_the_recorded_one_is_left_alone(change: dict[str, int | str]) -> None:
    with subprocess.Popen(["sleep", "1000"]) as stranger:
        recorded = dataclasses.replace(ProcessIdentity.of(stranger.pid), **change)  # type: ignore[arg-type]

        assert not lives(recorded)
        assert not recorded.signal(signal.SIGKILL)
        assert recorded.wait(0)
        assert stranger.poll() is None

        assert ProcessIdentity.of(stranger.pid).signal(signal.SIGKILL)


def test_a_zombie_has_ended() -> None:
    with subprocess.Popen(["sleep", "1000"]) as process:
        identity = ProcessIdentity.of(process.pid)
        assert lives(identity)
        process.kill()
        # Not yet waited for: its entry is still in the process table.
        assert identity.wait(30)
        assert not lives(identity)
        with pytest.raises(ProcessLookupError, match="no process"):
            ProcessIdentity.of(process.pid)


def test_a_daemon_writes_its_log_and_gets_its_surroundings(run: Run, tmp_path: Path) -> None:
    daemon = run.daemon(
        "talk", ["sh", "-c", "echo $COLOUR; pwd >&2"], environment={"COLOUR": "red"}, cwd=tmp_path
    )

    daemon.start()

    assert daemon.wait(30)
    assert daemon.log == run.directory / "logs" / "talk.log"
    assert daemon.log_tail() == f"red\n{tmp_path}"
    with pytest.raises(RuntimeError, match=rf"(?s)talk has ended.*red\n{tmp_path}"):
        daemon.require_alive()


def test_another_program_finds_stops_and_restarts_a_daemon(run: Run) -> None:
    run.daemon("sleep", ["sleep", "1000"]).start()
    script = """
import sys
from pathlib import Path
from tests.cluster.process import Daemon
from tests.cluster.run import Run
daemon = Daemon(Run(Path(sys.argv[1])), "sleep")
assert daemon.alive
getattr(daemon, sys.argv[2])()
"""
    daemon = Daemon(run, "sleep")
    first = daemon.pid

    def from_outside(action: str) -> None:
        subprocess.run(
            [sys.executable, "-c", script, str(run.directory), action],
            check=True,
            cwd=REPOSITORY,
        )

    from_outside("restart")
    assert lives(daemon)
    assert daemon.pid != first
    from_outside("stop")
    assert not lives(daemon)


def test_a_daemon_is_frozen_and_thawed_and_stops_even_when_frozen(run: Run) -> None:
    script = "trap 'echo ended in order; exit' TERM; echo ready; read line < $0"
    os.mkfifo(run.directory / "pipe")
    daemon = run.daemon("sleep", ["sh", "-c", script, run.directory / "pipe"])
    daemon.start()
    poll_until(lambda: daemon.log_tail() == "ready", timeout_seconds=30, what="the trap")

    daemon.pause()
    poll_until(lambda: state_of(daemon) == "T", timeout_seconds=30, what="a stopped process")
    daemon.resume()
    poll_until(lambda: state_of(daemon) == "S", timeout_seconds=30, what="a sleeping process")
    daemon.pause()
    daemon.stop()

    assert not lives(daemon)
    assert daemon.log_tail().endswith("\nended in order")
    with pytest.raises(ProcessLookupError, match="sleep does not run"):
        daemon.pause()
    daemon.stop()  # no error


def test_a_daemon_that_ignores_sigterm_is_killed(run: Run) -> None:
    daemon = run.daemon("stubborn", ["sh", "-c", "trap '' TERM; echo ready; while :; do sleep 1; done"])
    daemon.start()
    poll_until(lambda: daemon.log_tail() == "ready", timeout_seconds=30, what="the trap")

    daemon.stop(timeout_seconds=0.2)

    assert not lives(daemon)


def test_a_second_start_and_a_second_name_are_refused(run: Run) -> None:
    daemon = run.daemon("one", ["sleep", "1000"])
    daemon.start()

    with pytest.raises(RuntimeError, match="one already runs as pid"):
        daemon.start()
    for replace in (False, True):
        with pytest.raises(ValueError, match="already has a process called one"):
            run.daemon("one", ["true"], replace=replace)
    daemon.kill()
    run.daemon("one", ["true"], replace=True).start()


def test_processes_are_found_by_what_they_inherit_and_who_started_them(run: Run) -> None:
    # The grandchild has another environment, as a container has.
    script = "env -i sleep 1000 & sleep 1000"
    daemon = run.daemon("family", ["sh", "-c", script])
    daemon.start()

    poll_until(
        lambda: len(processes_of(run.marker, run.cgroup)) == 3, timeout_seconds=30, what="the whole family"
    )
    found = {process.pid for process in processes_of(run.marker, run.cgroup)}

    assert daemon.pid in found
    assert os.getpid() not in found
    assert processes_of(f"{run.marker}-other", "none") == []
    for process in processes_of(run.marker, run.cgroup):
        process.signal(signal.SIGKILL)


def test_a_process_never_counts_itself(run: Run) -> None:
    name, _, value = run.marker.partition("=")
    script = f"""
import os
from tests.cluster.host import processes_of
print(os.getpid() in {{process.pid for process in processes_of({run.marker!r}, "none")}})
"""

    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, name: value},
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout == "False\n"
