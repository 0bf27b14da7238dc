"""A controller with the rights of the chart, and eight nodes of eight cards whose agents the test plays."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.definitions import install_definitions
from tests.cluster.process import Daemon, poll_until
from tests.cluster.rest import ApiError, RestClient
from tests.integration.controller.stand_in import GPUNODES, SLICES, StandIn, h100
from tests.paths import ROOT

NAMESPACE = "gpupolicy-system"
_processes = itertools.count(1)
POLICIES = "/apis/gpupolicy.dev/v1alpha1/gpupolicies"
CLASSES = "/apis/resource.k8s.io/v1/deviceclasses"
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"


@pytest.fixture(scope="session")
def installed(cluster: Cluster) -> Cluster:
    """The cluster with CRDs and the roles of the chart."""
    install(cluster)
    return cluster


def install(cluster: Cluster) -> None:
    """Install the CRDs and the controller's roles, as the chart has them."""
    plane = cluster.control_plane
    install_definitions(cluster, ROOT / "crds")
    if plane.admin.call("GET", f"/api/v1/namespaces/{NAMESPACE}").status != 200:
        plane.admin.create("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    rendered = subprocess.run(
        [
            str(plane.programs / "helm"),
            "template",
            "gpupolicy",
            str(ROOT / "charts/gpupolicy"),
            "--namespace",
            NAMESPACE,
            "--show-only",
            "templates/controller/rbac.yaml",
        ],
        env=plane.environment(),
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    cluster.kubectl("apply", "-f", "-", stdin=rendered)


class World:
    """What a test sees and does as the admin, and the controller processes that it started."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.admin: RestClient = cluster.control_plane.admin
        self.nodes: dict[str, StandIn] = {}
        self.controllers: list[Daemon] = []
        self._number = 0

    def install_crds(self) -> None:
        """Install the CRDs again, for a test that removed them."""
        install_definitions(self.cluster, ROOT / "crds")

    def start_controller(self, *arguments: str) -> Daemon:
        """Start one more controller process."""
        self._number += 1
        access = self.cluster.service_account_kubeconfig(NAMESPACE, "gpupolicy-controller")
        daemon = self.cluster.daemon(
            # Unique in the cluster, which outlives this world.
            f"controller-{next(_processes)}",
            [
                sys.executable,
                "-m",
                "gpupolicy.controller.app",
                "--kubeconfig",
                str(access.kubeconfig),
                "--namespace",
                NAMESPACE,
                "--identity",
                f"test-{self._number}",
                "--health-host",
                "127.0.0.1",
                "--health-port",
                "0",
                *arguments,
            ],
            environment={"PYTHONPATH": str(ROOT / "operator")},
        )
        daemon.start()
        self.controllers.append(daemon)
        return daemon

    def add_node(self, name: str, *, cards: int = 8, **labels: str) -> StandIn:
        """Make a node with idle H100s whose agent has reported."""
        node = StandIn(
            self.admin,
            name,
            [h100(name, i) for i in range(cards)],
            {k.replace("_", "-"): v for k, v in labels.items()},
        )
        self.nodes[name] = node
        node.report()
        return node

    def pools(self) -> None:
        """Make the eight nodes of the stories: gpu-01..04 train, gpu-05..07 infer, gpu-08 short."""
        for number in range(1, 9):
            pool = "train" if number <= 4 else "infer" if number <= 7 else "short"
            self.add_node(f"gpu-{number:02}", gpu_pool=pool)

    def policy(self, name: str, spec: dict[str, Any]) -> dict[str, Any]:
        """Apply a policy."""
        body = {
            "apiVersion": "gpupolicy.dev/v1alpha1",
            "kind": "GpuPolicy",
            "metadata": {"name": name},
            "spec": spec,
        }
        return self.admin.apply(f"{POLICIES}/{name}", body, "admin", force=True)

    def status(self, policy: str) -> dict[str, Any]:
        """Return the status of a policy; empty while there is none."""
        return self.admin.get(f"{POLICIES}/{policy}").get("status", {})

    def condition(self, policy: str, kind: str = "Ready") -> dict[str, Any]:
        """Return a condition of a policy; empty while there is none."""
        found = self.status(policy).get("conditions", [])
        return next((c for c in found if c["type"] == kind), {})

    def classes(self) -> dict[str, dict[str, Any]]:
        """Return all DeviceClasses by name."""
        return {c["metadata"]["name"]: c for c in self.admin.get(CLASSES)["items"]}

    def events(self, kind: str, name: str) -> list[dict[str, Any]]:
        """Return the events about an object."""
        found = self.admin.get("/apis/events.k8s.io/v1/namespaces/default/events")["items"]
        return [e for e in found if e["regarding"]["kind"] == kind and e["regarding"]["name"] == name]

    def wait(self, what: str, condition: Callable[[], Any], seconds: float = 150.0) -> None:
        """Wait until something holds; on timeout show what the controller said last.

        The limit allows for the garbage collector, which learns of new kinds only every half minute, and looks again a
        minute after an outage: a class that goes with its policy may take that long.
        """

        def holds() -> bool:
            try:
                return bool(condition())
            except (ApiError, KeyError, IndexError):
                return False

        try:
            poll_until(holds, timeout_seconds=seconds, what=what, interval_seconds=0.1)
        except TimeoutError as error:
            tail = (
                "\n".join(self.controllers[-1].log.read_text().splitlines()[-30:]) if self.controllers else ""
            )
            shown = {
                p["metadata"]["name"]: p.get("status", {}).get("conditions")
                for p in self.admin.get(POLICIES)["items"]
            }
            raise TimeoutError(f"{error}\n{json.dumps(shown, indent=1)}\n{tail}") from error

    def wait_reason(self, policy: str, reason: str, seconds: float = 90.0) -> dict[str, Any]:
        """Wait until Ready has a reason for the policy's present generation; return the condition."""

        def holds() -> bool:
            found = self.admin.get(f"{POLICIES}/{policy}")
            ready = self.condition(policy)
            return (
                ready["reason"] == reason and ready["observedGeneration"] == found["metadata"]["generation"]
            )

        self.wait(f"policy {policy}: {reason}", holds, seconds)
        return self.condition(policy)

    def assigned(self, node: str, policy: str, cards: int) -> None:
        """Wait until a policy has so many cards in the spec of a node."""
        stand_in = self.nodes[node]
        self.wait(
            f"{cards} cards of {node} for {policy}",
            lambda: sum(a["policy"] == policy for a in stand_in.assignments().values()) == cards,
        )

    def claim(
        self, name: str, devices: list[tuple[str, str]], *, class_name: str, pods: list[str] | None = None
    ) -> dict[str, Any]:
        """Make a claim that holds (node, device) pairs, as the scheduler would write it."""
        request = {"name": "r", "exactly": {"deviceClassName": class_name, "count": len(devices)}}
        body = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": name},
            "spec": {"devices": {"requests": [request]}},
        }
        made = self.admin.create(CLAIMS, body)
        results = [
            {"request": "r", "driver": "gpu.gpupolicy.dev", "pool": f"{node}/gpupolicy", "device": device}
            for node, device in devices
        ]
        made["status"] = {
            "allocation": {"devices": {"results": results}},
            "reservedFor": [{"resource": "pods", "name": p, "uid": f"uid-{p}"} for p in pods or []],
        }
        return self.admin.replace(f"{CLAIMS}/{name}/status", made)

    def hand_count(self, policy: str) -> tuple[int, int, int]:
        """Count devices, allocated and free of a policy over the raw slices and claims."""
        slices = [
            s["spec"] for s in self.admin.get(SLICES)["items"] if s["spec"]["driver"] == "gpu.gpupolicy.dev"
        ]
        newest = {}
        for spec in slices:
            pool = spec["pool"]
            newest[pool["name"]] = max(pool["generation"], newest.get(pool["name"], 0))
        published = {
            (spec["pool"]["name"], device["name"]): device
            for spec in slices
            if spec["pool"]["generation"] == newest[spec["pool"]["name"]]
            for device in spec.get("devices", [])
            if device["attributes"]["policy"]["string"] == policy
        }
        held = {
            (result["pool"], result["device"])
            for claim in self.admin.get("/apis/resource.k8s.io/v1/resourceclaims")["items"]
            for result in claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", [])
        }
        allocated = published.keys() & held
        free = [key for key, device in published.items() if key not in held and not device.get("taints")]
        return len(published), len(allocated), len(free)

    def counted(self, policy: str) -> tuple[int, int, int]:
        """Return what the status of a policy says."""
        found = self.status(policy)
        return found["devices"], found["allocated"], found["free"]

    def wait_counts(self, policy: str) -> tuple[int, int, int]:
        """Wait until a status equals the hand count; return it."""
        self.wait(f"true counts of {policy}", lambda: self.counted(policy) == self.hand_count(policy))
        return self.counted(policy)

    def written(self, *, after: int = 0) -> list[dict[str, Any]]:
        """Return what the controllers wrote, from the API server's audit log; leases are not in it."""
        return self.cluster.control_plane.writes(
            user=f"system:serviceaccount:{NAMESPACE}:gpupolicy-controller", after=after
        )

    def wait_quiet(self) -> None:
        """Wait until the controllers have written nothing for a while: events come after the state that they tell of."""

        def quiet() -> bool:
            position = self.cluster.control_plane.audit_position()
            time.sleep(2.0)
            return self.written(after=position) == []

        self.wait("the end of all writes", quiet)

    def wait_right(self, user: str, verb: str, resource: str, *, allowed: bool, namespace: str = "") -> None:
        """Wait until a service account of the chart may do something, or may not: rights lag behind roles.

        Without a namespace it is about all of them.
        """
        plural, _, group = resource.partition(".")
        spec = {
            "user": f"system:serviceaccount:{NAMESPACE}:{user}",
            "groups": [
                "system:serviceaccounts",
                f"system:serviceaccounts:{NAMESPACE}",
                "system:authenticated",
            ],
            "resourceAttributes": {"verb": verb, "group": group, "resource": plural, "namespace": namespace},
        }
        review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
        self.wait(
            f"{user} to be {'allowed' if allowed else 'refused'} to {verb} {resource}",
            lambda: (
                self.admin.create("/apis/authorization.k8s.io/v1/subjectaccessreviews", review)["status"][
                    "allowed"
                ]
                is allowed
            ),
        )

    def versions(self) -> dict[str, str]:
        """Return the resource version of every object that the controller may write."""
        return {
            f"{path}/{item['metadata']['name']}": item["metadata"]["resourceVersion"]
            for path in (POLICIES, GPUNODES, CLASSES)
            for item in self.admin.get(path)["items"]
        }

    def release(self, name: str) -> None:
        """Delete a claim as when its pods are gone."""
        path = f"{CLAIMS}/{name}"
        body = self.admin.get(path)
        body["status"] = {}
        self.admin.replace(f"{path}/status", body)
        body = self.admin.get(path)
        body["metadata"].pop("finalizers", None)
        self.admin.replace(path, body)
        if self.admin.call("GET", path).status == 200:
            self.admin.delete(path)

    def stop_controllers(self) -> None:
        """Stop every controller that the test started."""
        for daemon in self.controllers:
            daemon.stop()

    def clean(self) -> None:
        """Stop the controllers and remove every object that the test left."""
        self.stop_controllers()
        self.wait("the end of all claims", self._released)
        for collection in (POLICIES, CLASSES):
            for item in self.admin.get(collection)["items"]:
                self.admin.call("DELETE", f"{collection}/{item['metadata']['name']}")
        self._clean_access()
        for node in self.nodes.values():
            node.remove()
        self.admin.call(
            "DELETE", f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/gpupolicy-controller"
        )
        self.admin.call("DELETE", "/apis/events.k8s.io/v1/namespaces/default/events")

    def _released(self) -> bool:
        """Whether no claim is left; releases those that are, which Kubernetes' controllers may do at the same time."""
        for claim in self.admin.get(CLAIMS)["items"]:
            self.release(claim["metadata"]["name"])
        return not self.admin.get(CLAIMS)["items"]

    def _clean_access(self) -> None:
        """Remove what enforced `spec.access`: the garbage collector would do it, but in the middle of a later test."""
        ours = {"labelSelector": "app.kubernetes.io/managed-by=gpupolicy"}
        admission = "/apis/admissionregistration.k8s.io/v1"
        for collection in ("validatingadmissionpolicybindings", "validatingadmissionpolicies"):
            self.admin.delete(f"{admission}/{collection}", **ours)
        for quota in self.admin.get("/api/v1/resourcequotas", **ours)["items"]:
            meta = quota["metadata"]
            self.admin.call("DELETE", f"/api/v1/namespaces/{meta['namespace']}/resourcequotas/{meta['name']}")


@pytest.fixture
def world(installed: Cluster) -> Iterator[World]:
    """An empty cluster to put nodes and policies in."""
    made = World(installed)
    yield made
    made.clean()
