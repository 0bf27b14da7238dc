"""The job of `cleanup=true` on a real API server, with the rights of the chart and agents that the test plays."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.controller.conftest import NAMESPACE, World
from tests.integration.controller.stand_in import GPUNODES
from tests.paths import ROOT

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"
LEASE = f"{LEASES}/gpupolicy-controller"


@pytest.fixture
def kubeconfig(world: World) -> Iterator[Path]:
    """Give the job the identity that the chart gives it; without the Lease of controllers of other tests."""
    plane = world.cluster.control_plane
    words = ["template", "gpupolicy", str(ROOT / "charts/gpupolicy"), "--namespace", NAMESPACE]
    rendered = subprocess.run(
        [plane.programs / "helm", *words, "--set", "cleanup=true", "-s", "templates/cleanup/cleanup.yaml"],
        env=plane.environment(),
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    identity = "\n---\n".join(d for d in rendered.split("\n---\n") if "kind: Job" not in d)
    world.cluster.kubectl("apply", "-f", "-", stdin=identity)
    world.cluster.kubectl("delete", "lease", "gpupolicy-controller", "-n", NAMESPACE, "--ignore-not-found")
    world.wait_right("gpupolicy-cleanup", "patch", "gpunodes.gpupolicy.dev", allowed=True)
    leases = "leases.coordination.k8s.io"
    world.wait_right("gpupolicy-cleanup", "create", leases, allowed=True, namespace=NAMESPACE)
    yield world.cluster.service_account_kubeconfig(NAMESPACE, "gpupolicy-cleanup").kubeconfig
    world.cluster.kubectl("delete", "lease", "gpupolicy-controller", "-n", NAMESPACE, "--ignore-not-found")
    world.cluster.kubectl("delete", "--ignore-not-found", "-f", "-", stdin=identity)


def run(kubeconfig: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the job to its end."""
    words = [sys.executable, "-m", "gpupolicy.controller.app", "--kubeconfig", str(kubeconfig)]
    return subprocess.run(
        [*words, "--namespace", NAMESPACE, "--identity", "job", *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT / "operator")},
        capture_output=True,
        text=True,
        check=False,
    )


def answers(world: World, node: str, **of_cards: Any) -> threading.Thread:
    """Let the agent of a node answer as soon as its cards are released, its first card with these fields."""
    stand_in = world.nodes[node]

    def wait_and_answer() -> None:
        while not (found := world.admin.get(f"{GPUNODES}/{node}"))["spec"].get("releases"):
            time.sleep(0.1)
        stand_in.generation = found["metadata"]["generation"]
        stand_in.cards[0] |= of_cards
        stand_in.report()

    thread = threading.Thread(target=wait_and_answer, daemon=True)
    thread.start()
    return thread


def test_what_agents_answer_is_told(world: World, kubeconfig: Path) -> None:
    world.add_node("idle", cards=2)
    world.add_node("busy", cards=2)
    threads = [
        answers(world, "idle"),
        answers(world, "busy", reason="WaitingForClaims", message="used by pod team-a/x"),
    ]
    done = run(kubeconfig, "--clean-up-seconds", "150")
    for thread in threads:
        thread.join(60)
    assert done.returncode == 0, done.stderr
    assert "idle: cards 0-1 whole" in done.stdout
    assert "busy: card 1 whole; card 0 is left: WaitingForClaims: used by pod team-a/x" in done.stdout
    assert "3 cards are whole, 1 are left as they are, 0 nodes did not finish" in done.stdout
    lease = world.admin.get(LEASE)["spec"]
    assert (lease["holderIdentity"], lease["leaseDurationSeconds"]) == ("cleanup_job", 30)


def test_a_silent_agent_is_not_waited_for_and_a_late_one_not_for_ever(world: World, kubeconfig: Path) -> None:
    """The first was silent for ten minutes before; the second has its time."""
    world.add_node("silent", cards=1)
    world.nodes["silent"].silent_for_seconds = 700
    world.nodes["silent"].report()
    done = run(kubeconfig, "--clean-up-seconds", "3600")
    assert done.returncode == 0, done.stderr
    assert "silent: left as it is: its agent did not answer (last heard of at" in done.stdout
    world.nodes["silent"].silent_for_seconds = 0
    world.nodes["silent"].report()
    done = run(kubeconfig, "--clean-up-seconds", "2")
    assert done.returncode == 0, done.stderr
    assert "silent: left as it is: its agent did not answer" in done.stdout


def test_the_leader_of_before_has_stopped_when_cards_are_released(world: World, kubeconfig: Path) -> None:
    """The job waits for as long as the Lease says; what a leader writes meanwhile does not stand."""
    world.add_node("led", cards=1)
    held = {"holderIdentity": "leader", "leaseDurationSeconds": 3}
    world.admin.create(LEASES, {"metadata": {"name": "gpupolicy-controller"}, "spec": held})
    began = time.monotonic()
    done = run(kubeconfig, "--clean-up-seconds", "1")
    assert done.returncode == 0, done.stderr
    assert "Waiting 3 s for the controller to stop" in done.stdout
    assert time.monotonic() - began > 3
    assert world.admin.get(f"{GPUNODES}/led")["spec"]["releases"]


def test_a_clean_up_that_was_interrupted_is_not_waited_for(world: World, kubeconfig: Path) -> None:
    """It took the Lease for as long as it might have needed; the next one waits only for a leader before both."""
    world.add_node("again", cards=1)
    held = {"holderIdentity": "cleanup_before", "leaseDurationSeconds": 3600}
    world.admin.create(LEASES, {"metadata": {"name": "gpupolicy-controller"}, "spec": held})
    done = run(kubeconfig, "--clean-up-seconds", "1")
    assert done.returncode == 0, done.stderr
    assert "Waiting 30 s for the controller to stop" in done.stdout
    assert world.admin.get(f"{GPUNODES}/again")["spec"]["releases"]


def test_a_job_without_its_rights_fails_with_words(world: World, kubeconfig: Path) -> None:
    world.cluster.kubectl("delete", "clusterrolebinding", "gpupolicy-cleanup")
    world.wait_right("gpupolicy-cleanup", "patch", "gpunodes.gpupolicy.dev", allowed=False)
    world.add_node("kept", cards=1)
    done = run(kubeconfig, "--clean-up-seconds", "1")
    assert done.returncode == 1
    assert "The clean-up failed" in done.stderr
    assert "Forbidden" in done.stderr
    assert "Traceback" not in done.stderr
    assert "releases" not in world.admin.get(f"{GPUNODES}/kept")["spec"]
