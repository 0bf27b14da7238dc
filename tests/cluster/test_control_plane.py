"""The control plane is real: identities are limited, an older release is emulated, data survive."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.control_plane import ControlPlaneOptions, KubectlError
from tests.cluster.process import poll_until
from tests.cluster.rest import ApiError

pytestmark = pytest.mark.cluster

SLICES = "/apis/resource.k8s.io/v1/resourceslices"


def counter_slice(node: str) -> dict[str, Any]:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"{node}-counters"},
        "spec": {
            "driver": "gpu.example.com",
            "nodeName": node,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
            "sharedCounters": [{"name": "gpu-0", "counters": {"slices": {"value": "7"}}}],
        },
    }


@pytest.fixture
def two_nodes(cluster: Cluster) -> Iterator[None]:
    """Node objects without a kubelet."""
    admin = cluster.control_plane.admin
    for name in ("n1", "n2"):
        admin.create("/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
    yield
    for name in ("n1", "n2"):
        admin.delete(f"/api/v1/nodes/{name}")


def test_the_components_run_the_pinned_release(cluster: Cluster) -> None:
    version = cluster.control_plane.admin.get("/version")

    assert version["gitVersion"] == "v1.37.2"


def test_a_node_may_write_its_own_slices_only(cluster: Cluster, two_nodes: None) -> None:
    kubeconfig = cluster.kubeconfig("system:node:n1", groups=("system:nodes",))
    node = cluster.control_plane.rest(kubeconfig)

    with pytest.raises(ApiError, match="same NodeName as the requesting node") as refusal:
        node.create(SLICES, counter_slice("n2"))
    assert refusal.value.status == 403

    node.create(SLICES, counter_slice("n1"))
    # Whose slice it is the authorizer reads from a graph that follows a watch.
    poll_until(
        lambda: node.call("DELETE", f"{SLICES}/n1-counters").status == 200,
        timeout_seconds=60.0,
        what="the deletion of its own slice",
    )
    with pytest.raises(ApiError, match="not found"):
        cluster.control_plane.admin.get(f"{SLICES}/n1-counters")


def test_a_user_without_roles_is_refused(cluster: Cluster) -> None:
    alice = cluster.kubeconfig("alice", groups=("team-a",))

    assert "alice" in cluster.kubectl("auth", "whoami", kubeconfig=alice)
    with pytest.raises(KubectlError, match=r'User "alice" cannot list resource "pods"'):
        cluster.kubectl("get", "pods", kubeconfig=alice)


def test_a_token_bound_to_a_node_says_which(cluster: Cluster, two_nodes: None) -> None:
    access = cluster.service_account_kubeconfig("default", "default", node="n1")
    rest, path = (
        cluster.control_plane.rest(access.kubeconfig),
        "/apis/authentication.k8s.io/v1/selfsubjectreviews",
    )
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}

    # The server's copy of the nodes may still hold the n1 of the test before, which has another UID.
    poll_until(
        lambda: rest.call("POST", path, body).status == 201, timeout_seconds=60.0, what="the token taken"
    )
    review = rest.create(path, body)

    user = review["status"]["userInfo"]
    assert user["username"] == "system:serviceaccount:default:default"
    assert user["extra"]["authentication.kubernetes.io/node-name"] == ["n1"]


def test_a_rotated_token_reaches_clients_that_read_the_file_again(cluster: Cluster) -> None:
    access = cluster.service_account_kubeconfig("default", "default")
    before = access.token_file.read_text()

    after = access.rotate()

    assert before != after == access.token_file.read_text()
    assert "system:serviceaccount:default:default" in cluster.kubectl(
        "auth", "whoami", kubeconfig=access.kubeconfig
    )


def test_no_component_holds_the_drivers_certificate(cluster: Cluster) -> None:
    admin = str(cluster.control_plane.admin_kubeconfig)
    commands = [
        argument
        for daemon in cluster.run.daemons
        for argument in cluster.run.daemon_record(daemon.name)["command"]
    ]

    assert commands
    assert not [argument for argument in commands if admin in argument]
    with pytest.raises(KubectlError, match="no"):
        cluster.kubectl("auth", "can-i", "*", "*", kubeconfig=cluster.kubeconfig("system:kube-scheduler"))


def test_admission_gives_pods_their_service_account_and_quotas_count(
    cluster: Cluster, namespace: str
) -> None:
    admin = cluster.control_plane.admin
    quota = {"metadata": {"name": "none"}, "spec": {"hard": {"pods": "0"}}}
    pods = f"/api/v1/namespaces/{namespace}/pods"
    pod = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "none"}]}}

    created = admin.create(pods, pod, dryRun="All")
    admin.create(f"/api/v1/namespaces/{namespace}/resourcequotas", quota)

    assert created["spec"]["serviceAccountName"] == "default"
    assert created["spec"]["volumes"][0]["name"].startswith("kube-api-access-")
    # The plugin reads quotas from a cache that may be a moment behind.
    poll_until(
        lambda: "exceeded quota" in str(admin.call("POST", pods, pod, query={"dryRun": "All"})),
        timeout_seconds=60.0,
        what="the quota in force",
    )
    with pytest.raises(ApiError, match="exceeded quota: none"):
        admin.create(pods, pod)


def test_an_emulated_release_drops_what_it_does_not_know(cluster: Cluster) -> None:
    now = cluster.control_plane.admin.create(SLICES, counter_slice("n1"), dryRun="All")
    options = ControlPlaneOptions(emulated_version="1.34")
    with Cluster.start(options=options) as old:
        then = old.control_plane.admin.create(SLICES, counter_slice("n1"), dryRun="All")
        version = old.control_plane.admin.get("/version")

    assert version["emulationMinor"] == "34"
    assert "sharedCounters" in now["spec"]
    assert "sharedCounters" not in then["spec"]


def test_data_survive_an_api_server_that_was_killed(cluster: Cluster) -> None:
    config_map = {"metadata": {"name": "kept"}, "data": {"key": "value"}}
    path = "/api/v1/namespaces/default/configmaps"
    admin = cluster.control_plane.admin
    admin.create(path, config_map)
    url = cluster.control_plane.url

    cluster.control_plane.api_server.kill()
    with pytest.raises(ConnectionError):
        admin.get(path)
    cluster.control_plane.api_server.start()
    cluster.control_plane.wait_ready()

    assert cluster.control_plane.url == url
    assert admin.get(f"{path}/kept")["data"] == {"key": "value"}
    admin.delete(f"{path}/kept")


def test_a_killed_api_server_has_let_go_of_its_port(cluster: Cluster) -> None:
    """Its threads may outlive the first of them by a moment, and with them its port."""
    control_plane = cluster.control_plane
    address = ("127.0.0.1", int(control_plane.url.rpartition(":")[2]))
    for _ in range(3):
        control_plane.api_server.kill()
        try:
            # As the next API server will do it: connections that linger are no hindrance, a listener is.
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(address)
        finally:
            # Where the port is held, the next one needs a moment as well.
            time.sleep(0.3)
            control_plane.api_server.start()
            control_plane.wait_ready()


def test_a_paused_api_server_answers_again_once_resumed(cluster: Cluster) -> None:
    server = cluster.control_plane.api_server
    server.pause()
    try:
        with pytest.raises(KubectlError, match=r"(?i)timeout|deadline"):
            cluster.kubectl("get", "namespaces", "--request-timeout=1s")
    finally:
        server.resume()
    cluster.control_plane.wait_ready()

    assert "default" in cluster.kubectl("get", "namespaces")


def test_writes_are_counted_by_who_made_them(cluster: Cluster, namespace: str) -> None:
    alice = cluster.control_plane.rest(cluster.kubeconfig("alice", groups=("system:masters",)))
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    before = cluster.control_plane.audit_position()

    alice.get(path)
    assert cluster.control_plane.writes(user="alice", after=before) == []

    alice.create(path, {"metadata": {"name": "one"}})
    alice.call("POST", path, {"metadata": {"name": "one"}})
    cluster.control_plane.admin.create(path, {"metadata": {"name": "two"}})

    events = cluster.control_plane.writes(user="alice", after=before)
    assert [(event["verb"], event["responseStatus"]["code"]) for event in events] == [
        ("create", 201),
        ("create", 409),
    ]
    assert events[0]["objectRef"]["name"] == "one"
