"""Plugin, publisher, ledger and CDI writer under a real kubelet, scheduler and containerd.

A toy driver is all that is ours here besides the parts under test. The node is the tests' own, since its kubelet is
restarted and its driver is killed.
"""

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gpupolicy.adapters.kubeletplugin import services
from tests.cluster.cluster import Cluster
from tests.cluster.image import BUSYBOX
from tests.cluster.node import Node, NodeOptions
from tests.cluster.process import Daemon, poll_until
from tests.paths import ROOT

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

DRIVER = "toy.example.com"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"


class Toy:
    """The toy driver on one node."""

    def __init__(self, cluster: Cluster, node: Node, number: int, **options: Any) -> None:
        self.cluster = cluster
        self.node = node
        command = [
            sys.executable,
            "-m",
            "tests.integration.adapters.toy_driver",
            "--kubeconfig",
            str(cluster.kubeconfig("toy", ("system:masters",))),
            "--node",
            node.name,
        ]
        for name, value in options.items():
            command += [f"--{name}", *(value if isinstance(value, list) else [str(value)])]
        path = f"{ROOT}:{ROOT / 'operator'}"
        self.daemon: Daemon = cluster.daemon(
            f"toy-{number}", node.inside(command), environment={"PYTHONPATH": path}
        )

    def events(self, event: str = "") -> list[dict[str, Any]]:
        """What the driver said so far, its log lines left out, and what it is just writing."""
        lines = self.daemon.log.read_text().splitlines(keepends=True)
        said = [json.loads(line) for line in lines if line.startswith("{") and line.endswith("\n")]
        return [each for each in said if event in ("", each["event"])]

    def wait_for(self, what: str, condition: Callable[[], Any]) -> None:
        def held() -> bool:
            self.daemon.require_alive()
            return bool(condition())

        poll_until(held, timeout_seconds=120, what=f"{what}; see {self.daemon.log}")

    def wait_registered(self, times: int = 1) -> None:
        def registrations() -> int:
            return len([each for each in self.events("status") if each["registered"]])

        self.wait_for(f"registered {times} times", lambda: registrations() >= times)

    def slices(self) -> list[dict[str, Any]]:
        items = self.cluster.control_plane.admin.get(SLICES, fieldSelector=f"spec.driver={DRIVER}")["items"]
        return [item for item in items if item["spec"]["nodeName"] == self.node.name]


@pytest.fixture(scope="module")
def node(cluster: Cluster) -> Iterator[Node]:
    (started,) = cluster.add_nodes(NodeOptions("plugin-node", labels={"toys": "yes"}))
    device_class = {
        "metadata": {"name": "toy"},
        "spec": {"selectors": [{"cel": {"expression": f"device.driver == '{DRIVER}'"}}]},
    }
    cluster.control_plane.admin.create("/apis/resource.k8s.io/v1/deviceclasses", device_class)
    yield started
    cluster.control_plane.admin.delete("/apis/resource.k8s.io/v1/deviceclasses/toy")
    started.stop()


numbers = iter(range(1000))


@pytest.fixture
def make_toy(cluster: Cluster, node: Node) -> Iterator[Callable[..., Toy]]:
    """A function that starts a toy driver, which is stopped after the test with all that it published."""
    made: list[Toy] = []

    def make(**options: Any) -> Toy:
        toy = Toy(cluster, node, next(numbers), **options)
        toy.daemon.start()
        made.append(toy)
        return toy

    yield make
    for toy in made:
        toy.daemon.stop()
    for toy in made[:1]:
        for item in toy.slices():
            cluster.control_plane.admin.delete(f"{SLICES}/{item['metadata']['name']}")


class Pods:
    """Pods with one claim each in one namespace."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self.cluster = cluster
        self.admin = cluster.control_plane.admin
        self.namespace = namespace

    def start(self, name: str) -> None:
        claim = {
            "metadata": {"name": name},
            "spec": {"devices": {"requests": [{"name": "toy", "exactly": {"deviceClassName": "toy"}}]}},
        }
        self.admin.create(f"/apis/resource.k8s.io/v1/namespaces/{self.namespace}/resourceclaims", claim)
        pod = {
            "metadata": {"name": name},
            "spec": {
                "nodeSelector": {"toys": "yes"},
                "restartPolicy": "Never",
                "terminationGracePeriodSeconds": 1,
                "resourceClaims": [{"name": "mine", "resourceClaimName": name}],
                "containers": [
                    {
                        "name": "main",
                        "image": BUSYBOX,
                        "imagePullPolicy": "Never",
                        "command": ["sh", "-c", "env; sleep 10000"],
                        "resources": {"claims": [{"name": "mine"}]},
                    }
                ],
            },
        }
        self.admin.create(f"/api/v1/namespaces/{self.namespace}/pods", pod)

    def get(self, name: str) -> dict[str, Any] | None:
        answer = self.admin.call("GET", f"/api/v1/namespaces/{self.namespace}/pods/{name}")
        return answer.body if answer.status == 200 else None

    def phase(self, name: str) -> str:
        pod = self.get(name)
        return "" if pod is None else pod["status"]["phase"]

    def wait_running(self, name: str) -> dict[str, str]:
        """Wait until the pod runs; return its environment."""
        poll_until(lambda: self.phase(name) == "Running", timeout_seconds=120, what=f"pod {name} Running")
        output = ""

        def complete() -> bool:
            nonlocal output
            output = self.cluster.kubectl("logs", "-n", self.namespace, name)
            return "TOYS=" in output

        poll_until(complete, timeout_seconds=60, what=f"the environment of {name}")
        return dict(line.partition("=")[::2] for line in output.splitlines())

    def delete(self, name: str) -> None:
        self.admin.delete(f"/api/v1/namespaces/{self.namespace}/pods/{name}")

    def wait_gone(self, name: str) -> None:
        poll_until(lambda: self.get(name) is None, timeout_seconds=120, what=f"pod {name} gone")

    def uid(self, name: str) -> str:
        path = f"/apis/resource.k8s.io/v1/namespaces/{self.namespace}/resourceclaims/{name}"
        uid: str = self.admin.get(path)["metadata"]["uid"]
        return uid

    def messages(self, name: str) -> list[str]:
        events = self.admin.get(
            f"/api/v1/namespaces/{self.namespace}/events", fieldSelector=f"involvedObject.name={name}"
        )
        return [event["message"] for event in events["items"]]


@pytest.fixture
def pods(cluster: Cluster, namespace: str) -> Iterator[Pods]:
    started = Pods(cluster, namespace)
    yield started
    left = [
        pod["metadata"]["name"] for pod in started.admin.get(f"/api/v1/namespaces/{namespace}/pods")["items"]
    ]
    for name in left:
        started.delete(name)
    # While their driver still runs: a claim that is prepared for ever would be unprepared in the middle of a later test.
    for name in left:
        with contextlib.suppress(TimeoutError):
            started.wait_gone(name)


def cdi_files(node: Node) -> list[str]:
    return sorted(path.name for path in node.cdi_dir.iterdir())


def records(node: Node) -> list[str]:
    return sorted(path.stem for path in (node.plugins_dir / DRIVER / "claims").iterdir())


@pytest.mark.parametrize("version", [services.DRA_V1, services.DRA_V1BETA1])
def test_a_pod_with_a_claim_runs_and_leaves_nothing_behind(
    node: Node, make_toy: Callable[..., Toy], pods: Pods, version: str
) -> None:
    """Register, publish, allocate, prepare, run, unprepare, in both versions of the protocol."""
    toy = make_toy(versions=[version])
    toy.wait_registered()
    pods.start("pod")
    environment = pods.wait_running("pod")
    assert environment["TOY"] in {"toy-0", "toy-1"}
    assert {call["version"] for call in toy.events("call")} == {version}
    uid = pods.uid("pod")
    assert cdi_files(node) == [f"{DRIVER}-claim_{uid}.json"]
    assert records(node) == [uid]
    pods.delete("pod")
    pods.wait_gone("pod")
    assert cdi_files(node) == records(node) == []
    assert [each["existed"] for each in toy.events("unprepare")] == [True]


def test_a_restarted_kubelet_finds_driver_and_slices_again(
    node: Node, make_toy: Callable[..., Toy], pods: Pods
) -> None:
    """It wipes the node's slices when it starts; they are back at once, and running pods never notice."""
    toy = make_toy()
    toy.wait_registered()
    pods.start("before")
    pods.wait_running("before")
    (old,) = toy.slices()
    node.restart_kubelet()
    toy.wait_registered(times=2)
    node.wait_ready()
    toy.wait_for(
        "the slice published again",
        lambda: [item["metadata"]["uid"] for item in toy.slices()] not in ([], [old["metadata"]["uid"]]),
    )
    pods.start("after")
    pods.wait_running("after")
    assert pods.phase("before") == "Running"
    for name in ("before", "after"):
        pods.delete(name)
        pods.wait_gone(name)
    assert records(node) == []


def test_a_killed_driver_comes_back_to_its_claims(
    node: Node, make_toy: Callable[..., Toy], pods: Pods
) -> None:
    """SIGKILL leaves both sockets; the next one replaces them, and the pod that ended meanwhile is unprepared."""
    toy = make_toy()
    toy.wait_registered()
    pods.start("pod")
    pods.wait_running("pod")
    (before,) = toy.slices()
    toy.daemon.kill()
    assert (node.plugins_dir / DRIVER / "dra.sock").is_socket()
    assert (node.registry_dir / f"{DRIVER}-reg.sock").is_socket()
    pods.delete("pod")
    toy.daemon.start()
    toy.wait_registered(times=2)
    pods.wait_gone("pod")
    assert cdi_files(node) == records(node) == []
    assert [each["claims"] for each in toy.events("loaded")] == [0, 1]
    # Away for less than half a minute: the slices were neither wiped nor written.
    (after,) = toy.slices()
    assert after["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]


def test_a_removed_registration_is_renewed(node: Node, make_toy: Callable[..., Toy], pods: Pods) -> None:
    """The kubelet hears of the removal and drops the driver; the new socket brings it back."""
    toy = make_toy()
    toy.wait_registered()
    before = len(toy.events("status"))
    (node.registry_dir / f"{DRIVER}-reg.sock").unlink()
    # The kubelet may be back before anybody looks.
    toy.wait_for(
        "the loss noticed", lambda: any(not each["registered"] for each in toy.events("status")[before:])
    )
    toy.wait_registered(times=2)
    pods.start("pod")
    pods.wait_running("pod")


def test_a_refusal_stands_in_the_pods_events(make_toy: Callable[..., Toy], pods: Pods) -> None:
    make_toy().wait_registered()
    pods.start("refused")
    poll_until(
        lambda: any("this claim is refused by the toy" in message for message in pods.messages("refused")),
        timeout_seconds=120,
        what="the event with our words",
    )
    pods.delete("refused")
    pods.wait_gone("refused")


def test_health_stands_in_the_pods_status(make_toy: Callable[..., Toy], pods: Pods) -> None:
    make_toy(devices=1, sick=["toy-0"]).wait_registered()
    pods.start("pod")
    pods.wait_running("pod")
    seen: list[dict[str, Any]] = []

    def shown() -> bool:
        nonlocal seen
        pod = pods.get("pod")
        assert pod is not None
        statuses = pod["status"]["containerStatuses"][0].get("allocatedResourcesStatus", [])
        seen = [resource for status in statuses for resource in status["resources"]]
        return any(resource["health"] == "Unhealthy" for resource in seen)

    poll_until(shown, timeout_seconds=150, what="the health in the pod's status")
    assert seen[0]["message"] == "toy is broken"


def test_a_rolling_update_has_two_instances_for_a_while(
    node: Node, make_toy: Callable[..., Toy], pods: Pods
) -> None:
    """The old one goes when the new one is registered, and takes only its own sockets along."""
    old = make_toy(instance="old")
    old.wait_registered()
    pods.start("first")
    pods.wait_running("first")
    new = make_toy(instance="new")
    new.wait_registered()
    old.daemon.stop()
    assert [path.name for path in node.registry_dir.iterdir() if path.name.startswith(DRIVER)] == [
        f"{DRIVER}-new-reg.sock"
    ]
    pods.start("second")
    pods.wait_running("second")
    for name in ("first", "second"):
        pods.delete(name)
        pods.wait_gone(name)
    assert records(node) == []
    assert {each["claim"] for each in new.events("unprepare")} == {"first", "second"}
