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
import sys
from pathlib import Path

from tests.cluster.host import end_processes, remove_cgroup, remove_links, restore_inotify_limit
from tests.cluster.process import ProcessIdentity
from tests.cluster.run import Run, StateError, all_runs, inotify_note, machine_lock

WARDEN = "warden"


def remove_run(run: Run) -> None:
    """End every process of a run and remove all that it made. Safe to repeat after a kill half-way."""
    with contextlib.suppress(StateError):
        for daemon in run.daemons:
            # First, so that it does not do the same work at the same time.
            if daemon.name == WARDEN and daemon.identity and daemon.pid != os.getpid():
                daemon.kill()
    end_processes(run.marker, run.cgroup)
    remove_links(run.link_prefix)
    remove_cgroup(run.cgroup)
    shutil.rmtree(run.data_directory, ignore_errors=True)
    with machine_lock():
        run.remove_directory()
        if not all_runs():
            restore_inotify_limit(inotify_note())


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
