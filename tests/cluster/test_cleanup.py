"""Nothing of a run stays, however it ended, and a run that is alive is never touched."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.cleanup import WARDEN, clean_dead_runs
from tests.cluster.cluster import Cluster
from tests.cluster.host import cgroup_folders, processes_of
from tests.cluster.process import command_of, poll_until
from tests.cluster.run import REPOSITORY, Run, machine_lock

pytestmark = pytest.mark.cluster

# Starts a cluster with a node and a pod in it, says where, and waits for its end.
OWNER = """
import sys, time
from pathlib import Path
from tests.cluster.cluster import Cluster
from tests.cluster.image import BUSYBOX
from tests.cluster.node import NodeOptions

state_dir, detached = Path(sys.argv[1]), sys.argv[2] == "detached"
cluster = Cluster.start(state_dir, nodes=[NodeOptions("n1")], detached=detached)
container = {"name": "c", "image": BUSYBOX, "imagePullPolicy": "Never", "command": ["sleep", "1000"]}
pod = {"metadata": {"name": "p"}, "spec": {"nodeName": "n1", "containers": [container]}}
cluster.control_plane.admin.create("/api/v1/namespaces/default/pods", pod)
cluster.kubectl("wait", "--for=condition=Ready", "pod/p", "--timeout=120s", timeout_seconds=180)
cluster.daemon("beside", ["sleep", "1000"]).start()
print("ready", flush=True)
if not detached:
    time.sleep(1000)
"""


def start_owner(state_dir: Path, kind: str) -> tuple[subprocess.Popen[str], Run]:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(state_dir), kind], cwd=REPOSITORY, stdout=subprocess.PIPE, text=True
    )
    assert owner.stdout is not None
    assert owner.stdout.readline() == "ready\n"
    return owner, Run(Path(json.loads((state_dir / "cluster.json").read_text())["run"]))


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], Run]]:
    process, run = start_owner(tmp_path, "owned")
    with process:
        yield process, run
        process.kill()
    clean_dead_runs()


def leftovers(run: Run, data: Path) -> list[str]:
    """Everything on this machine that still bears the run's name."""
    found = [f"process {p.pid}" for p in processes_of(run.marker, run.cgroup)]
    found += [str(path) for path in (run.directory, data) if path.exists()]
    found += [str(path) for path in Path("/sys/class/net").glob(f"gpt{run.id}*")]
    found += [str(path) for path in cgroup_folders(run.cgroup)]
    for table in Path("/proc").glob("[0-9]*/mountinfo"):
        try:
            found += [line for line in table.read_text().splitlines() if run.id in line]
        except OSError:
            continue  # of a process that has just ended
    return found


def test_the_warden_removes_the_cluster_of_an_owner_that_was_killed(
    owner: tuple[subprocess.Popen[str], Run],
) -> None:
    process, run = owner
    data = run.data_directory
    assert len(leftovers(run, data)) > 10

    process.kill()
    process.wait()

    poll_until(lambda: not leftovers(run, data), timeout_seconds=120, what="the end of all leftovers")


def test_the_next_start_removes_what_owner_and_warden_left(
    cluster: Cluster, owner: tuple[subprocess.Popen[str], Run]
) -> None:
    process, run = owner
    data = run.data_directory
    warden = next(daemon for daemon in run.daemons if daemon.name == WARDEN)
    # Any cluster that another test worker starts would do the cleaning; they wait for the lock.
    with machine_lock():
        warden.kill()
        process.kill()
        process.wait()
        # A killed shim leaves its container without any tie to the run but the cgroup.
        shims = [
            p
            for p in processes_of(run.marker, run.cgroup)
            if any("containerd-shim" in word for word in command_of(p.pid))
        ]
        assert shims
        for shim in shims:
            shim.signal(signal.SIGKILL)
        assert len(leftovers(run, data)) > 10

        removed = clean_dead_runs()

    assert run.id in removed
    assert leftovers(run, data) == []
    assert cluster.run.id not in removed
    assert "default" in cluster.kubectl("get", "namespaces")


def test_a_detached_cluster_outlives_its_starter_until_another_program_stops_it(tmp_path: Path) -> None:
    process, run = start_owner(tmp_path, "detached")
    with process:
        process.wait(60)
    data = run.data_directory

    removed = clean_dead_runs()
    loaded = Cluster.load(tmp_path)

    assert run.id not in removed
    assert "Running" in loaded.kubectl("get", "pods")
    assert [node.name for node in loaded.nodes] == ["n1"]
    assert loaded.find_daemon("beside").alive

    loaded.stop()

    assert leftovers(run, data) == []
    with pytest.raises(LookupError, match="does not run any more"):
        Cluster.load(tmp_path)
