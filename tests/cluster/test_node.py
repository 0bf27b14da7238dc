"""Nodes are real: pods run, the kubelet is reached and restarted, and each node has its own files."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.control_plane import KubectlError
from tests.cluster.image import BUSYBOX, Image, Layer, Link, busybox_layer
from tests.cluster.node import Node, NodeOptions
from tests.cluster.process import poll_until

pytestmark = pytest.mark.cluster


def run_pod(cluster: Cluster, namespace: str, node: Node, script: str, **fields: Any) -> Any:
    """Run a shell script in a pod on a node; return the pod once it is Running or has Succeeded."""
    container = {
        "name": "main",
        "image": BUSYBOX,
        "imagePullPolicy": "Never",
        "command": ["sh", "-c", script],
        **fields.pop("container", {}),
    }
    pod = {
        "metadata": {"generateName": "pod-"},
        "spec": {
            "nodeName": node.name,
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            "containers": [container],
            **fields,
        },
    }
    path = f"/api/v1/namespaces/{namespace}/pods"
    name = cluster.control_plane.admin.create(path, pod)["metadata"]["name"]

    def started() -> bool:
        phase: str = cluster.control_plane.admin.get(f"{path}/{name}")["status"]["phase"]
        assert phase != "Failed", cluster.kubectl("logs", "-n", namespace, name)
        return phase != "Pending"

    poll_until(started, timeout_seconds=120, what=f"pod {name} Running")
    return cluster.control_plane.admin.get(f"{path}/{name}")


def logs(cluster: Cluster, pod: dict[str, Any]) -> str:
    """The whole output of a pod that ends by itself."""
    metadata = pod["metadata"]
    return cluster.kubectl("logs", "-f", "-n", metadata["namespace"], metadata["name"])


def says_here(cluster: Cluster, pod: dict[str, Any]) -> bool:
    """Whether a command can be run in a pod."""
    metadata = pod["metadata"]
    with contextlib.suppress(KubectlError):
        cluster.kubectl("exec", "-n", metadata["namespace"], metadata["name"], "--", "true")
        return True
    return False


def addresses() -> str:
    """The addresses of this machine, as ``ip`` prints them."""
    return subprocess.run(["ip", "address"], capture_output=True, text=True, check=True).stdout


@pytest.fixture
def node(cluster_with_nodes: Callable[[int], list[Node]]) -> Node:
    return cluster_with_nodes(1)[0]


def test_a_node_registers_with_its_labels_taints_and_address(
    cluster: Cluster, make_node: Callable[..., Node]
) -> None:
    taint = {"key": "gpu", "value": "yes", "effect": "NoSchedule"}

    node = make_node("labelled", labels={"gpu-pool": "train"}, taints=[taint])

    seen = cluster.control_plane.admin.get("/api/v1/nodes/labelled")
    assert seen["metadata"]["labels"]["gpu-pool"] == "train"
    assert taint in seen["spec"]["taints"]
    assert {"type": "InternalIP", "address": node.address} in seen["status"]["addresses"]


def test_a_pod_runs_and_is_reached_through_its_kubelet(cluster: Cluster, namespace: str, node: Node) -> None:
    pod = run_pod(
        cluster,
        namespace,
        node,
        "echo hello; sleep 1000",
        securityContext={"seccompProfile": {"type": "RuntimeDefault"}, "runAsUser": 65534},
    )
    name = pod["metadata"]["name"]

    poll_until(
        lambda: cluster.kubectl("logs", "-n", namespace, name) == "hello\n",
        timeout_seconds=60,
        what="its log",
    )
    assert cluster.kubectl("exec", "-n", namespace, name, "--", "id", "-u") == "65534\n"


def test_a_pod_finds_the_api_server_as_in_any_cluster(cluster: Cluster, namespace: str, node: Node) -> None:
    # A plain request needs no TLS client in the image, and what refuses it is the API server.
    request = "printf 'GET / HTTP/1.0\\r\\n\\r\\n'"
    pod = run_pod(
        cluster,
        namespace,
        node,
        f"{request} | nc -w 60 $KUBERNETES_SERVICE_HOST $KUBERNETES_SERVICE_PORT;"
        " echo; ls /var/run/secrets/kubernetes.io/serviceaccount",
    )

    answer = logs(cluster, pod)
    assert "Client sent an HTTP request to an HTTPS server." in answer
    assert answer.split()[-3:] == ["ca.crt", "namespace", "token"]


def test_host_paths_lead_to_the_files_of_the_pods_own_node(
    cluster: Cluster, namespace: str, cluster_with_nodes: Callable[[int], list[Node]]
) -> None:
    nodes = cluster_with_nodes(2)
    paths = {"plugins": "/var/lib/kubelet/plugins", "cdi": "/var/run/cdi"}
    volumes = [{"name": name, "hostPath": {"path": path}} for name, path in paths.items()]
    mounts = [{"name": name, "mountPath": f"/host/{name}"} for name in paths]

    for node in nodes:
        (node.cdi_dir / "from-host").write_text(node.name)
        script = f"cat /host/cdi/from-host; echo {node.name} > /host/plugins/from-pod"
        pod = run_pod(cluster, namespace, node, script, volumes=volumes, container={"volumeMounts": mounts})
        assert logs(cluster, pod) == node.name

    for node in nodes:
        assert (node.plugins_dir / "from-pod").read_text() == f"{node.name}\n"
        (node.plugins_dir / "from-pod").unlink()
        (node.cdi_dir / "from-host").unlink()


def test_pods_outlive_a_kubelet_that_is_killed_or_restarted(
    cluster: Cluster, namespace: str, node: Node
) -> None:
    pod = run_pod(cluster, namespace, node, "sleep 1000")
    path = f"/api/v1/namespaces/{namespace}/pods/{pod['metadata']['name']}"
    before = node.kubelet.pid

    node.kill_kubelet()
    assert not node.kubelet.alive
    node.start_kubelet()
    node.restart_kubelet()
    node.wait_ready()

    assert node.kubelet.pid != before
    poll_until(lambda: says_here(cluster, pod), timeout_seconds=90, what="exec in the same container")
    status = cluster.control_plane.admin.get(path)["status"]
    assert status["containerStatuses"][0]["restartCount"] == 0


def test_a_node_that_lost_power_boots_with_its_disk_and_runs_its_pods_again(
    cluster: Cluster, namespace: str, make_node: Callable[..., Node]
) -> None:
    node = make_node()
    pod = run_pod(cluster, namespace, node, "sleep 1000", restartPolicy="Always")
    path = f"/api/v1/namespaces/{namespace}/pods/{pod['metadata']['name']}"
    node_path = f"/api/v1/nodes/{node.name}"
    boot_id = cluster.control_plane.admin.get(node_path)["status"]["nodeInfo"]["bootID"]
    assert boot_id == node.boot_id_file.read_text().strip()
    (node.cdi_dir / "in-memory").touch()
    (node.plugins_dir / "on-disk").touch()

    node.power_off()
    assert not node.kubelet.alive
    assert not node.containerd.alive
    node.power_on()

    def again() -> bool:
        statuses = cluster.control_plane.admin.get(path)["status"]["containerStatuses"]
        return bool(statuses[0]["restartCount"] == 1 and statuses[0]["ready"])

    poll_until(again, timeout_seconds=120, what="the pod's second container")
    # The kubelet reports pods and node apart.
    poll_until(
        lambda: cluster.control_plane.admin.get(node_path)["status"]["nodeInfo"]["bootID"] != boot_id,
        timeout_seconds=60,
        what="another boot id",
    )
    assert not list(node.cdi_dir.iterdir())
    assert (node.plugins_dir / "on-disk").exists()


def test_an_image_is_made_from_files(cluster: Cluster, namespace: str, node: Node, tmp_path: Path) -> None:
    (tmp_path / "program").mkdir()
    (tmp_path / "program" / "run").write_text(
        "#!/bin/sh\ncat /data/message $0.link; id -u; pwd; echo $COLOUR\n"
    )
    (tmp_path / "program" / "run").chmod(0o755)
    (tmp_path / "program" / "run.link").symlink_to("../data/message")
    layer: Layer = {
        "program": tmp_path / "program",
        "data/message": b"from a layer\n",
        "bin/tool": Link("busybox"),
    }
    image = Image(
        "docker.io/local/made:1",
        [busybox_layer(), layer],
        entrypoint=["/program/run"],
        environment={"COLOUR": "green"},
        user="1000",
        working_directory="/data",
    )

    cluster.load_images(image)
    pod = run_pod(cluster, namespace, node, "", container={"image": image.name, "command": None})

    assert logs(cluster, pod).split("\n")[:5] == ["from a layer", "from a layer", "1000", "/data", "green"]


def test_a_stopped_node_leaves_nothing_and_its_neighbour_alone(
    cluster: Cluster, namespace: str, node: Node, make_node: Callable[..., Node]
) -> None:
    neighbour = run_pod(cluster, namespace, node, "sleep 1000")
    gone = make_node("gone")
    run_pod(cluster, namespace, gone, "sleep 1000")
    processes = [gone.kubelet.identity, gone.containerd.identity]
    # With what surrounds it: 198.18.1.1 is also the beginning of 198.18.1.10 and the like of other clusters.
    address = f" {gone.address}/"
    assert address in addresses()

    gone.stop()

    assert not any(process and process.alive for process in processes)
    assert not gone.directory.exists()
    assert address not in addresses()
    assert "gone" not in cluster.kubectl("get", "nodes")
    assert says_here(cluster, neighbour)


def test_a_second_node_of_the_same_name_is_refused(cluster: Cluster, node: Node) -> None:
    with pytest.raises(ValueError, match="already has a node node-1"):
        cluster.add_nodes(NodeOptions(node.name))
