"""The process: restarts, two candidates, an API server that is away, tokens that end, an orderly end."""

from __future__ import annotations

import json
import re
import socket
import time
import urllib.error
import urllib.request

import pytest

from tests.cluster.process import Daemon, poll_until
from tests.integration.controller.conftest import CLASSES, NAMESPACE, POLICIES, World

pytestmark = pytest.mark.cluster

LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/gpupolicy-controller"


def leader(world: World) -> str:
    found = world.admin.call("GET", LEASE)
    return found.body["spec"].get("holderIdentity", "") if found.status == 200 else ""


def lines(daemon: Daemon) -> list[dict[str, str]]:
    """Return the log; every line must be one JSON object, but for one that is just being written."""
    return [
        json.loads(line) for line in daemon.log.read_text().splitlines(keepends=True) if line.endswith("\n")
    ]


def wait_for_line(daemon: Daemon, words: str, times: int = 1) -> None:
    """Wait until a controller has said something so often."""
    poll_until(
        lambda: sum(words in line["message"] for line in lines(daemon)) >= times,
        timeout_seconds=120.0,
        what=f"{words!r} in the log",
        interval_seconds=0.2,
    )


def probe(daemon: Daemon, path: str) -> tuple[int, str]:
    """Ask a health endpoint; its port stands in the log."""
    wait_for_line(daemon, "health on port")
    port = next(m[1] for line in lines(daemon) if (m := re.search(r"health on port (\d+)", line["message"])))
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60.0) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def ready_world(world: World) -> Daemon:
    """Start a controller with two policies that are Ready."""
    world.add_node("gpu-01", cards=2, gpu_pool="a")
    world.add_node("gpu-02", cards=2, gpu_pool="b")
    daemon = world.start_controller()
    for name in ("a", "b"):
        world.policy(name, {"nodeSelector": {"matchLabels": {"gpu-pool": name}}})
    for node, name in (("gpu-01", "a"), ("gpu-02", "b")):
        world.assigned(node, name, 2)
        world.nodes[node].converge()
        world.wait_reason(name, "Ready")

    world.wait_quiet()
    return daemon


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_a_restart_changes_nothing(world: World, end: str) -> None:
    first = ready_world(world)
    getattr(first, end)()
    before = world.versions()

    world.admin.call("DELETE", LEASE)
    world.start_controller()
    world.wait("the successor to lead", lambda: leader(world) == "test-2")
    world.policy("c", {"nodeSelector": {"matchLabels": {"gpu-pool": "c"}}})
    world.wait_reason("c", "NoMatchingNodes")

    after = world.versions()
    assert {path: after[path] for path in before} == before


def test_what_happened_while_nobody_looked_is_caught_up_with(world: World) -> None:
    ready_world(world).kill()
    world.admin.delete(f"{POLICIES}/a")
    world.admin.delete(f"{CLASSES}/b")
    world.policy("c", {"nodeSelector": {"matchLabels": {"gpu-pool": "a"}}})

    world.admin.call("DELETE", LEASE)
    world.start_controller()

    world.assigned("gpu-01", "c", 2)
    world.wait("the classes", lambda: world.classes().keys() == {"b", "c"})
    world.nodes["gpu-01"].converge()
    world.wait_reason("c", "Ready")
    world.wait_reason("b", "Ready")


def test_of_two_candidates_one_leads_and_the_other_takes_over_at_once(world: World) -> None:
    first = ready_world(world)
    world.wait("a leader", lambda: leader(world) == "test-1")
    second = world.start_controller()
    wait_for_line(second, "copies are complete")
    assert leader(world) == "test-1"
    assert probe(second, "/readyz")[0] == 200

    first.stop()

    # The lease was given back: nobody waits for it to run out.
    assert leader(world) in {"", "test-2"}
    world.wait("the second to lead", lambda: leader(world) == "test-2")
    world.policy("c", {})
    world.wait("its class", lambda: "c" in world.classes())


def test_it_ends_within_seconds_and_gives_the_lease_back(world: World) -> None:
    daemon = ready_world(world)

    # Not a benchmark: the kubelet kills after 30 seconds, and so does this.
    daemon.stop(timeout_seconds=30.0)

    assert lines(daemon)[-1]["message"] == "Stopped"
    assert leader(world) == ""
    assert [line for line in lines(daemon) if line["level"] in {"error", "critical"}] == []


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_it_outlives_an_api_server_that_is_away_and_catches_up(world: World) -> None:
    """The API server is killed, started again on the same data, and the world moved meanwhile."""
    daemon = ready_world(world)
    plane = world.cluster.control_plane
    pid = daemon.pid

    plane.api_server.kill()
    wait_for_line(daemon, "trying again")
    # Longer than the lease lasts: the leader has to step down by itself, and to come back.
    wait_for_line(daemon, "is lost")
    plane.api_server.start()
    plane.wait_ready()
    world.policy("c", {"nodeSelector": {"matchLabels": {"gpu-pool": "c"}}})
    world.admin.delete(f"{POLICIES}/b")

    world.wait_reason("c", "NoMatchingNodes")
    world.wait("the deletion to be noticed", lambda: world.nodes["gpu-02"].assignments() == {})
    assert (daemon.alive, daemon.pid) == (True, pid)
    world.wait("it to lead", lambda: leader(world) == "test-1")
    assert probe(daemon, "/healthz")[0] == 200
    assert probe(daemon, "/readyz")[0] == 200


def test_it_outlives_the_end_of_its_token(world: World) -> None:
    """The service account is made anew: the old token answers 401 to everything, until the file is replaced."""
    daemon = ready_world(world)
    pid = daemon.pid
    account = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts"
    world.admin.delete(f"{account}/gpupolicy-controller")
    world.admin.create(account, {"metadata": {"name": "gpupolicy-controller", "namespace": NAMESPACE}})
    wait_for_line(daemon, "Unauthorized")

    world.cluster.service_account_kubeconfig(NAMESPACE, "gpupolicy-controller").rotate()
    world.policy("c", {"nodeSelector": {"matchLabels": {"gpu-pool": "c"}}})

    world.wait_reason("c", "NoMatchingNodes")
    assert (daemon.alive, daemon.pid) == (True, pid)


def test_a_taken_port_stops_nobody(world: World) -> None:
    """It says which port and which value; policies are served, and the port is used when it is free."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        daemon = world.start_controller("--health-port", str(port))
        world.policy("p", {})
        world.wait("its class", lambda: "p" in world.classes())
        told = [line["message"] for line in lines(daemon) if line["level"] == "error"]
        assert len(told) == 1
        for part in (f"port {port}", "controller.healthPort", "--health-port"):
            assert part in told[0]
        other.close()
        wait_for_line(daemon, "health on port")
    assert probe(daemon, "/readyz")[0] == 200


def test_it_waits_for_the_crds_and_says_so(world: World) -> None:
    world.cluster.kubectl("delete", "crd", "gpunodes.gpupolicy.dev", "gpupolicies.gpupolicy.dev")
    try:
        daemon = world.start_controller()
        wait_for_line(daemon, "install the CRDs")
        assert probe(daemon, "/readyz")[0] == 503
        assert probe(daemon, "/healthz")[0] == 200
    finally:
        world.install_crds()

    world.policy("c", {})
    world.wait("its class", lambda: "c" in world.classes())


def test_it_outlives_crds_that_go_and_come_back(world: World) -> None:
    """Kopf ends when its kind is gone; it is started again, but not before the kind is back."""
    daemon = ready_world(world)
    pid = daemon.pid
    world.cluster.kubectl("delete", "crd", "gpunodes.gpupolicy.dev", "gpupolicies.gpupolicy.dev")
    try:
        # The end of kopf, and attempts in vain.
        wait_for_line(daemon, "are not watched", times=3)
    finally:
        world.install_crds()

    world.policy("c", {})
    world.wait("its class", lambda: "c" in world.classes())
    assert (daemon.alive, daemon.pid) == (True, pid)


def test_nothing_is_written_at_rest(world: World) -> None:
    daemon = ready_world(world)
    world.wait("work to be done", lambda: world.condition("a")["status"] == "True")
    before = world.cluster.control_plane.audit_position()

    # Each report says something new that no policy shows, and makes everything run again.
    for number in range(5):
        for node in world.nodes.values():
            node.cards[0]["healthMessage"] = f"{number} corrected errors"
            node.report()
            time.sleep(0.4)
    time.sleep(2.0)

    assert world.written(after=before) == []
    assert daemon.alive
