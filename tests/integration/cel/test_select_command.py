"""`kubectl-gpupolicy select` against a real cluster."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from gpupolicy.cli import main
from tests.cluster.cluster import Cluster

pytestmark = pytest.mark.cluster

SLICES = "/apis/resource.k8s.io/v1/resourceslices"
DRIVER = "select-test.example.com"
ATTRIBUTES = f'device.attributes["{DRIVER}"]'
GUARDED = f'device.driver == "{DRIVER}" && {ATTRIBUTES}.type == '


def resource_slice(node: str, kind: str) -> dict[str, Any]:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"select-test-{node}"},
        "spec": {
            "driver": DRIVER,
            "nodeName": node,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
            "devices": [
                {
                    "name": f"card-{index}",
                    "attributes": {"type": {"string": kind}, "index": {"int": index}},
                    "capacity": {"memory": {"value": "80Gi"}},
                }
                for index in range(2)
            ],
        },
    }


@pytest.fixture
def kubeconfig(cluster: Cluster) -> Iterator[str]:
    """The way to a cluster in which two nodes have two cards each."""
    admin = cluster.control_plane.admin
    slices = [resource_slice("select-a", "gpu"), resource_slice("select-b", "mig")]
    for one in slices:
        assert admin.call("POST", SLICES, one).status == 201
    yield str(cluster.control_plane.admin_kubeconfig)
    for one in slices:
        assert admin.call("DELETE", f"{SLICES}/{one['metadata']['name']}").status == 200


def select(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    """Return the exit code and what was printed, about the devices of this test only."""
    code = main.main(["select", *arguments, "-o", "json"])
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    found["devices"] = [one for one in found["devices"] if one["driver"] == DRIVER]
    return code, found


def test_devices_of_the_cluster(kubeconfig: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = select(capsys, GUARDED + '"gpu"', "--kubeconfig", kubeconfig)
    assert code == 0
    assert [(one["node"], one["name"], one["verdict"]) for one in found["devices"]] == [
        ("select-a", "card-0", "match"),
        ("select-a", "card-1", "match"),
        ("select-b", "card-0", "no-match"),
        ("select-b", "card-1", "no-match"),
    ]
    assert found["summary"]["nodes"] == {"select-a": 2}
    assert "new" not in found


def test_capacity_of_the_cluster(kubeconfig: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The API server writes quantities its own way."""
    expression = f'device.driver == "{DRIVER}" && device.capacity["{DRIVER}"].memory.compareTo(quantity("81920Mi")) == 0'
    code, found = select(capsys, expression, "--kubeconfig", kubeconfig)
    assert (code, found["summary"]["match"]) == (0, 4)


def test_the_api_server_takes_it(kubeconfig: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = select(capsys, GUARDED + '"mig"', "--kubeconfig", kubeconfig, "--new")
    assert code == 0
    assert (found["new"]["answer"], found["new"]["apiServer"]) == ("accepted", "accepted")


@pytest.mark.parametrize("expression", [f"{ATTRIBUTES}.index + ", "nope == 1", "device.driver"])
def test_the_api_servers_words_stand_beside_ours(
    kubeconfig: str, capsys: pytest.CaptureFixture[str], expression: str
) -> None:
    code, found = select(capsys, expression, "--kubeconfig", kubeconfig, "--new")
    assert code == 3
    assert found["new"]["answer"] == "rejected"
    ours = found["new"]["reason"].split("\n")[0]
    assert ours in found["new"]["apiServer"]


def test_nothing_is_stored(cluster: Cluster, kubeconfig: str, capsys: pytest.CaptureFixture[str]) -> None:
    select(capsys, "true", "--kubeconfig", kubeconfig, "--new")
    classes = cluster.control_plane.admin.call("GET", "/apis/resource.k8s.io/v1/deviceclasses").body["items"]
    assert not [one for one in classes if one["metadata"]["name"].startswith("gpupolicy-select-")]


def test_without_the_right_to_create_classes(
    cluster: Cluster, kubeconfig: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The API server's word is a favour: who may only look still gets ours."""
    admin = cluster.control_plane.admin
    rbac = "/apis/rbac.authorization.k8s.io/v1"
    meta = {"name": "select-test-reader"}
    role = {
        "metadata": meta,
        "rules": [{"apiGroups": ["resource.k8s.io"], "resources": ["resourceslices"], "verbs": ["list"]}],
    }
    binding = {
        "metadata": meta,
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": meta["name"]},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "reader"}],
    }
    assert admin.call("POST", f"{rbac}/clusterroles", role).status == 201
    assert admin.call("POST", f"{rbac}/clusterrolebindings", binding).status == 201
    try:
        file = cluster.control_plane.kubeconfig("reader")
        rest = cluster.control_plane.rest(file)
        cluster.control_plane.api_server.wait_until(
            lambda: rest.call("GET", SLICES).status == 200, "the reader's rights", timeout_seconds=60
        )
        code, found = select(capsys, GUARDED + '"gpu"', "--kubeconfig", str(file), "--new")
        assert (code, found["new"]["answer"], found["new"]["apiServer"]) == (0, "accepted", None)
        stranger = str(cluster.control_plane.kubeconfig("stranger"))
        assert main.main(["select", "true", "--kubeconfig", stranger]) == main.USAGE_ERROR
        assert "forbidden" in capsys.readouterr().err
    finally:
        admin.call("DELETE", f"{rbac}/clusterrolebindings/{meta['name']}")
        admin.call("DELETE", f"{rbac}/clusterroles/{meta['name']}")
