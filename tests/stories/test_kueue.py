"""R41 with the real Kueue, installed from its own chart: what a policy's status shows is taken as it stands.

Kueue runs as a pod. The API server finds its webhooks at the pod's address, because there is no kube-proxy.
"""

import json
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster import build
from tests.cluster.cluster import Cluster
from tests.cluster.control_plane import ControlPlaneOptions
from tests.cluster.image import Image
from tests.cluster.node import NodeOptions
from tests.paths import ROOT
from tests.stack import GpuNodeOptions, Stack
from tests.stories import objects

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(900)]

COMMANDS = re.findall(
    r"^    kubectl (get gpupolicy infer .+?)(?: \|.*)?$",
    (ROOT / "docs/policies.md").read_text(),
    re.MULTILINE,
)
LONG_SECONDS = 240.0
"""Kueue and its webhooks come before anything of ours happens."""
TEAM = "team"
IMAGE = "docker.io/local/kueue"
OFFER = {"deviceClassName": "queued", "extendedResourceName": "example.com/queued"}
POLICIES = {
    "queued": objects.policy(
        "queued",
        gpusPerNode=2,
        offers=[OFFER],
        access={"quotas": [{"namespace": TEAM, "deviceClassName": "queued", "devices": 2}]},
    ),
    # Without an extended name; the younger of the two gets the third card.
    "plain": objects.policy("plain", gpusPerNode=1),
}
# As Kueue's chart sets it, less what would only cost time here.
CONFIGURATION = {
    "health": {"healthProbeBindAddress": ":8081"},
    "metrics": {"bindAddress": ":8443"},
    "webhook": {"port": 9443},
    "leaderElection": {"leaderElect": False},
    "integrations": {"frameworks": ["batch/job"]},
}


@pytest.fixture(scope="module")
def kueue(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A node of three cards, two policies Ready, and Kueue with the configuration and the queues of their status."""
    options = ControlPlaneOptions(api_server_flags=["--enable-aggregator-routing=true"])
    with Cluster.start(options=options) as cluster:
        stack = Stack(cluster)
        stack.install()
        stack.start_controller()
        # Kueue writes its certificate into a secret that its pod has mounted; a kubelet looks at those when it syncs.
        (node,) = cluster.add_nodes(NodeOptions("gpu-01", kubelet_configuration={"syncFrequency": "2s"}))
        stack.make_cards(GpuNodeOptions(name=node.name, gpus=3), node)
        stack.start_agent(node)
        with cluster.namespace(TEAM):
            for name, policy in POLICIES.items():
                stack.apply(policy)
                stack.wait_policies(name)
            install(stack, tmp_path_factory.mktemp("kueue"))
            for name in POLICIES:
                stack.kubectl("apply", "-f", "-", stdin=shown(stack, name, "kueue"))
                stack.wait(lambda name=name: active(stack, "clusterqueue", name), f"ClusterQueue {name}")
            stack.wait(lambda: active(stack, "localqueue", "queued", "-n", TEAM), "LocalQueue queued")
            stack.wait(lambda: active(stack, "localqueue", "plain", "-n", "default"), "LocalQueue plain")
            yield stack


def shown(stack: Stack, policy: str, example: str) -> str:
    """An example of a policy's status, printed by the command of docs/policies.md."""
    (command,) = [c for c in COMMANDS if f'"{example}"' in c]
    words = [policy if word == "infer" else word for word in shlex.split(command)]
    return str(stack.kubectl(*words))


def merged(stack: Stack) -> dict[str, Any]:
    """Kueue's configuration with the parts that the policies show."""
    parts = [yaml.safe_load(shown(stack, name, "kueue-configuration")) for name in POLICIES]
    mappings = [m for part in parts for m in part["resources"]["deviceClassMappings"]]
    gates = {"VisibilityOnDemand": False} | {k: v for part in parts for k, v in part["featureGates"].items()}
    return {
        **CONFIGURATION,
        **parts[0],
        "featureGates": gates,
        "resources": {"deviceClassMappings": mappings},
    }


def install(stack: Stack, directory: Path) -> None:
    """Install Kueue with its chart, and wait until its webhooks answer."""
    (tool,) = [tool for tool in build.TOOLS if tool.name == build.KUEUE]
    stack.cluster.load_images(
        Image(f"{IMAGE}:1", [{"manager": build.bin_directory([tool]) / "kueue", "tmp/": b""}])
    )
    listed = subprocess.run(
        ["go", "mod", "download", "-json", tool.module],
        cwd=tool.directory,
        capture_output=True,
        text=True,
        check=True,
    )
    values = {
        "controllerManager": {
            "manager": {
                "image": {"repository": IMAGE, "tag": "1", "pullPolicy": "Never"},
                "podSecurityContext": {"runAsNonRoot": True, "runAsUser": 65532},
                "resources": {"limits": {"memory": "2Gi"}},
            },
            # Without its webhooks no Job can be made, and on a busy machine a probe may have to wait.
            "readinessProbe": {"initialDelaySeconds": 2, "timeoutSeconds": 15, "failureThreshold": 60},
            "livenessProbe": {"initialDelaySeconds": 15, "timeoutSeconds": 15, "failureThreshold": 60},
        },
        "managerConfig": {"controllerManagerConfigYaml": yaml.safe_dump(merged(stack))},
    }
    (directory / "values.yaml").write_text(yaml.safe_dump(values))
    stack.helm(
        "install",
        "kueue",
        f"{json.loads(listed.stdout)['Dir']}/charts/kueue",
        *("--namespace", "kueue-system", "--create-namespace", "--values", str(directory / "values.yaml")),
    )
    # Served by the part of Kueue that is off here; an API that does not answer would keep namespaces from going.
    stack.kubectl(
        "delete", "apiservices", "v1beta1.visibility.kueue.x-k8s.io", "v1beta2.visibility.kueue.x-k8s.io"
    )
    deployment = "deployment/kueue-controller-manager"
    try:
        stack.wait(
            lambda: stack.get(deployment, "-n", "kueue-system")["status"].get("readyReplicas") == 1,
            "Kueue",
            LONG_SECONDS,
        )
    except TimeoutError as error:
        log = stack.kubectl("logs", "-n", "kueue-system", deployment, "--tail=30")
        raise TimeoutError(f"{error}\n--- Kueue\n{log}") from error
    # The API server finds the webhooks some time after their pod is ready.
    examples = "---\n".join(shown(stack, name, "kueue") for name in POLICIES)
    stack.wait(
        lambda: stack.succeeds("apply", "--dry-run=server", "-f", "-", stdin=examples),
        "Kueue's webhooks",
        LONG_SECONDS,
        every=1,
    )


def active(stack: Stack, *which: str) -> bool:
    """Whether a queue is active."""
    conditions = stack.get(*which).get("status", {}).get("conditions", [])
    return any((c["type"], c["status"]) == ("Active", "True") for c in conditions)


def job(
    name: str,
    *,
    template: str | None = None,
    limits: dict[str, int] | None = None,
    namespace: str = TEAM,
    queue: str = "queued",
) -> dict[str, Any]:
    """A Job in the queue of a policy."""
    pod = objects.pod(name, namespace, template=template, limits=limits)["spec"]
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": namespace, "labels": {"kueue.x-k8s.io/queue-name": queue}},
        "spec": {"template": {"spec": pod}, "backoffLimit": 0},
    }


def workload(stack: Stack, name: str) -> dict[str, Any]:
    """What Kueue made of a Job; empty while it has made nothing."""
    found: list[dict[str, Any]] = stack.get("workloads.kueue.x-k8s.io", "-A")
    owned = [w for w in found if w["metadata"]["ownerReferences"][0]["name"] == name]
    return owned[0] if owned else {}


def said(stack: Stack, name: str, condition: str) -> tuple[str, str]:
    """Status and message of a condition of a Job's workload."""
    conditions = workload(stack, name).get("status", {}).get("conditions", [])
    return next(((c["status"], c["message"]) for c in conditions if c["type"] == condition), ("", ""))


def usage(stack: Stack) -> list[tuple[str, str]]:
    """What Kueue counts of the first policy: name and number."""
    flavors = stack.get("clusterqueue", "queued")["status"].get("flavorsUsage", [])
    return [(r["name"], r["total"]) for flavor in flavors for r in flavor["resources"]]


def phases(stack: Stack, name: str) -> list[str]:
    """The phases of the pods of a Job."""
    return [p["status"]["phase"] for p in stack.get("pods", "-A", "-l", f"job-name={name}")]


def test_r41_jobs_wait_for_devices_by_claim_and_by_name_alike(kueue: Stack) -> None:
    """A Job that claims both cards runs; two more are held back without a pod, and run once it has gone."""
    kueue.apply(objects.template("both", TEAM, "queued", count=2), job("first", template="both"))
    kueue.wait(lambda: phases(kueue, "first") == ["Running"], "the first Job to run", LONG_SECONDS)
    assert said(kueue, "first", "Admitted")[0] == "True"
    kueue.wait(lambda: usage(kueue) == [("example.com/queued", "2")], "the ClusterQueue to count two devices")

    kueue.apply(
        objects.template("one", TEAM, "queued"),
        job("by-claim", template="one"),
        job("by-name", limits={"example.com/queued": 1}),
    )
    for name in ("by-claim", "by-name"):
        kueue.wait(
            lambda name=name: (
                "insufficient unused quota for example.com/queued" in said(kueue, name, "QuotaReserved")[1]
            ),
            f"{name} to be held back",
        )
        assert kueue.get("job", name, "-n", TEAM)["spec"]["suspend"] is True
        assert phases(kueue, name) == []

    kueue.kubectl("delete", "job", "first", "-n", TEAM)
    for name in ("by-claim", "by-name"):
        kueue.wait(lambda name=name: phases(kueue, name) == ["Running"], f"{name} to run", LONG_SECONDS)
    kueue.wait(lambda: kueue.policy_row("queued")[4:7] == ["2", "2", "0"], "the policy to count the same")


def test_r41_what_a_claim_may_not_say(kueue: Stack) -> None:
    """Sharing belongs into the policy: Kueue counts no claim with a configuration of its own."""
    parameters = {"apiVersion": "gpupolicy.dev/v1alpha1", "kind": "ClaimConfig"}
    kueue.apply(
        objects.template("configured", TEAM, "queued", config=parameters), job("odd", template="configured")
    )
    kueue.wait(
        lambda: "device config is not supported" in said(kueue, "odd", "QuotaReserved")[1],
        "the Job to be refused",
    )
    assert phases(kueue, "odd") == []


def test_r41_without_an_extended_name_the_implicit_one_counts(kueue: Stack) -> None:
    """One card: the Job that names it runs, the one that claims it waits."""
    name = "deviceclass.resource.kubernetes.io/plain"
    where = {"namespace": "default", "queue": "plain"}
    kueue.apply(job("by-implicit-name", limits={name: 1}, **where))
    kueue.wait(lambda: phases(kueue, "by-implicit-name") == ["Running"], "the Job to run", LONG_SECONDS)
    kueue.apply(objects.template("plain", "default", "plain"), job("second", template="plain", **where))
    kueue.wait(
        lambda: f"insufficient unused quota for {name}" in said(kueue, "second", "QuotaReserved")[1],
        "the second Job to be held back",
    )
    assert phases(kueue, "second") == []
