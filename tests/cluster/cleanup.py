"""Take runs of test clusters down, and remove what killed ones left behind.

``python -m tests.cluster.cleanup`` removes the leftovers of dead runs; ``--run DIR`` stops that run, alive
or not; ``--watch DIR`` is the warden that every owned cluster starts: it sleeps until the owner has
ended, however it ended, and then removes the run. The same code stops a cluster in the ordinary way, so
it is exercised by every test session.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import sys
from pathlib import Path

from tests.cluster.process import ProcessIdentity, poll_until
from tests.cluster.run import RUN_VARIABLE, Run, StateError, all_runs, machine_lock

WARDEN = "warden"
_END_TIMEOUT_SECONDS = 30.0


def remove_run(run: Run) -> None:
    """End every process of a run and remove all that it made. Safe to repeat after a kill half-way."""
    with contextlib.suppress(StateError, KeyError):
        warden = next(daemon for daemon in run.daemons if daemon.name == WARDEN)
        if warden.identity is not None and warden.pid != os.getpid():
            warden.kill()
    end_processes(run)
    with contextlib.suppress(StateError):
        shutil.rmtree(run.data_directory, ignore_errors=True)
    run.remove_directory()


def end_processes(run: Run) -> None:
    """Kill every process that the run started, and what those started, until none is left."""

    def none_left() -> bool:
        processes = processes_of(run)
        for process in processes:
            process.signal(signal.SIGKILL)
        return not processes

    poll_until(none_left, timeout_seconds=_END_TIMEOUT_SECONDS, what=f"the end of all processes of {run.id}")


def processes_of(run: Run) -> list[ProcessIdentity]:
    """All processes of a run but this one, recorded or not.

    A process started by a run carries the run's directory in its environment and hands it on, so one that
    was started in the very moment its starter was killed is found as well.
    """
    marker = f"{RUN_VARIABLE}={run.directory}".encode()
    parents: dict[int, int] = {}
    found: set[int] = set()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError, IndexError):
            parents[int(entry.name)] = _parent(entry)
            if marker in (entry / "environ").read_bytes().split(b"\0"):
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


def _parent(process: Path) -> int:
    return int((process / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[1])


def clean_dead_runs() -> list[str]:
    """Remove every run that is dead and return their names; runs that are alive are not touched."""
    removed = []
    with machine_lock():
        for run in all_runs():
            if not run.alive:
                remove_run(run)
                removed.append(run.id)
    return removed


def watch(run: Run) -> None:
    """Wait until the owner of the run has ended or has let go of it; remove the run if it is then dead."""
    with contextlib.suppress(StateError):
        owner = run.state["owner"]
        if owner is not None:
            ProcessIdentity.from_state(owner).wait(None)
    with machine_lock():
        if run.directory.exists() and not run.alive:
            remove_run(run)


def main(arguments: list[str] | None = None) -> int:
    """The command line; see the module."""
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.cleanup", description=__doc__)
    parser.add_argument("--run", type=Path, metavar="DIR", help="stop this run, alive or not")
    parser.add_argument("--watch", type=Path, metavar="DIR", help="remove this run when its owner ends")
    options = parser.parse_args(arguments)
    if options.watch:
        watch(Run(options.watch))
    elif options.run:
        if not (options.run / "state.json").exists():
            parser.error(f"{options.run} is not the directory of a run")
        remove_run(Run(options.run))
    else:
        for name in clean_dead_runs():
            print(f"removed what {name} had left", file=sys.stderr)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
