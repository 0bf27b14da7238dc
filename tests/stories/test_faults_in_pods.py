"""Upgrades, kills and drains that come at the wrong moment, with everything as pods (R49).

The tests of this module share one cluster of two nodes. After each nothing is prepared that no pod holds.
"""

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.process import ProcessIdentity
from tests.paths import ROOT
from tests.stack import NAMESPACE, GpuNodeOptions, Stack
from tests.stories import objects

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(900)]

POOLS = {"gpu-01": "train", "gpu-02": "infer"}
SLOW_MICROSECONDS = 200_000


@pytest.fixture(scope="module")
def pods() -> Iterator[Stack]:
    """Two nodes, the chart, a policy for whole cards and one for slices, both Ready."""
    with Cluster.start() as cluster:
        stack = Stack(cluster, pods=True)
        stack.add_nodes(*(GpuNodeOptions(name=name, pool=pool) for name, pool in POOLS.items()))
        stack.kubectl("create", "namespace", "work")
        stack.install_pods("simulator.gpus=4", seconds=240)
        offer = {"deviceClassName": "h100", "extendedResourceName": "nvidia.com/gpu"}
        stack.apply(
            objects.policy("train", pool="train", offers=[offer]),
            objects.policy("infer", pool="infer", sharing=objects.mig(objects.H100_LAYOUT)),
            objects.template("slice", "work", "infer-1g-10gb"),
        )
        stack.wait_policies("train", "infer", seconds=180)
        yield stack


@pytest.fixture
def stack(pods: Stack) -> Iterator[Stack]:
    """The stack; afterwards the pods go, and with them everything that was prepared for them."""
    yield pods
    for name in POOLS:
        pods.simulator(name).command("latency", "--clear")
    pods.kubectl("delete", "pods", "--all", "-n", "work", "--timeout=150s")
    pods.wait(lambda: held(pods) == ([], []), "nothing to be prepared any more", 240)
    pods.wait_policies("train", "infer", seconds=240)


def held(stack: Stack) -> tuple[list[str], list[str]]:
    """Return what the nodes keep for claims: records of the ledger, and CDI files."""
    records, specs = [], []
    for name in POOLS:
        node = stack.cluster.find_node(name)
        records += [p.name for p in (node.plugins_dir / "gpu.gpupolicy.dev/ledger/claim").rglob("*.json")]
        specs += [p.name for p in Path(node.cdi_dir).iterdir() if p.suffix in {".json", ".yaml"}]
    return sorted(records), sorted(specs)


def agent_pod(stack: Stack, node: str) -> dict[str, Any]:
    """Return the agent's pod of a node that is not ending."""
    (found,) = [
        p
        for p in stack.get("pods", "-n", NAMESPACE, "-l", "app.kubernetes.io/component=agent")
        if p["spec"].get("nodeName") == node and "deletionTimestamp" not in p["metadata"]
    ]
    return found


def agent_processes(pod: dict[str, Any]) -> list[ProcessIdentity]:
    """Return the processes of an agent's pod, by the UID that the chart gives them."""
    wanted = f"POD_UID={pod['metadata']['uid']}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdecimal() and wanted in (entry / "environ").read_bytes().split(b"\0"):
                found.append(ProcessIdentity.of(int(entry.name)))
        except OSError:
            continue
    return found


def whole(number: int) -> dict[str, Any]:
    """A pod with one whole card of gpu-01."""
    return objects.pod(f"whole-{number}", "work", limits={"nvidia.com/gpu": 1})


def slices(number: int) -> dict[str, Any]:
    """A pod with one slice of gpu-02."""
    return objects.pod(f"slice-{number}", "work", template="slice")


def devices(stack: Stack) -> list[str]:
    """Return the UUIDs that all pods see, each as often as it is seen."""
    seen = []
    for pod in stack.get("pods", "-n", "work"):
        lines = stack.kubectl(
            "exec", "-n", "work", pod["metadata"]["name"], "--", "nvidia-smi", "-L"
        ).splitlines()
        own = [line for line in lines if " MIG " in line] or lines
        seen += [line.split("UUID: ")[1].rstrip(")") for line in own]
    return seen


def all_run(stack: Stack, count: int) -> None:
    """Wait until so many pods run, each with a device of its own, and nothing is prepared beside."""
    stack.wait_pods("work", count, seconds=300)
    seen = devices(stack)
    assert len(seen) == len(set(seen)) == count
    records, specs = held(stack)
    assert (len(records), len(specs)) == (count, count)


def test_an_upgrade_in_the_middle_of_prepares(stack: Stack) -> None:
    """Slow cards: the new agent takes long to see them, and the pods of both nodes wait for it, not for ever."""
    for name in POOLS:
        stack.simulator(name).set_latency(SLOW_MICROSECONDS, symbol="nvmlDeviceGetMigMode")
    before = {name: agent_pod(stack, name)["metadata"]["uid"] for name in POOLS}
    stack.apply(whole(1), slices(1))
    stack.upgrade_pods(
        "simulator.gpus=4", "agent.podAnnotations.round=two", "controller.podAnnotations.round=two"
    )
    stack.apply(whole(2), slices(2))
    stack.wait_rollout(300)
    assert all(agent_pod(stack, name)["metadata"]["uid"] != uid for name, uid in before.items())
    all_run(stack, 4)


def test_an_agent_that_is_killed_while_it_prepares(stack: Stack) -> None:
    """SIGKILL as soon as the first claim is written down; the container comes back, in the same pod."""
    pod = agent_pod(stack, "gpu-01")
    victims = agent_processes(pod)
    assert victims
    stack.apply(*(whole(n) for n in range(4)))
    stack.wait(lambda: held(stack)[0] != [], "the first claim in the ledger", 240, every=0.005)
    for victim in victims:
        victim.signal(signal.SIGKILL)
    stack.wait(lambda: not any(v.alive for v in victims), "the agent to be gone")
    all_run(stack, 4)
    found = agent_pod(stack, "gpu-01")
    assert found["metadata"]["uid"] == pod["metadata"]["uid"]
    # The pods may have had all they needed before the kubelet notices that the agent is gone.
    stack.wait(
        lambda: agent_pod(stack, "gpu-01")["status"]["containerStatuses"][0]["restartCount"] >= 1,
        "the agent's container started again",
    )


def test_a_node_that_is_drained_while_a_layout_changes(stack: Stack) -> None:
    """Its pods leave, their claims are given back, the change that waited for them ends; afterwards pods come again."""
    stack.apply(*(slices(n) for n in range(3)))
    all_run(stack, 3)
    stack.simulator("gpu-02").set_latency(SLOW_MICROSECONDS, symbol="writes")
    seven = objects.policy("infer", pool="infer", sharing=objects.mig({"1g.10gb": 7}))
    stack.apply(seven)
    stack.wait(
        lambda: any(g["reason"] != "Applied" for g in stack.get("gpunode", "gpu-02")["status"]["gpus"]),
        "the change to begin",
    )
    stack.kubectl(
        "drain",
        "gpu-02",
        "--ignore-daemonsets",
        "--delete-emptydir-data",
        "--force",
        "--timeout=200s",
        timeout_seconds=240,
    )
    stack.wait(lambda: held(stack) == ([], []), "the claims to be given back", 240)
    stack.wait_policies("infer", seconds=240)
    assert [len(stack.simulator("gpu-02").layout(card)) for card in range(4)] == [7] * 4
    stack.kubectl("uncordon", "gpu-02")
    stack.simulator("gpu-02").command("latency", "--clear")
    stack.apply(*(slices(n) for n in range(4)))
    all_run(stack, 4)
    stack.kubectl("delete", "pods", "--all", "-n", "work", "--timeout=150s")
    stack.apply(objects.policy("infer", pool="infer", sharing=objects.mig(objects.H100_LAYOUT)))


def test_who_has_rights_in_his_namespace_only_cannot_install(pods: Stack) -> None:
    """Helm says what he may not do, and nothing is left half made."""
    pods.kubectl("create", "namespace", "alices")
    pods.kubectl("create", "rolebinding", "alice", "-n", "alices", "--clusterrole=admin", "--user=alice")
    plane = pods.cluster.control_plane
    alice = pods.cluster.kubeconfig("alice")
    # The API server reads rights from a cache.
    pods.wait(
        lambda: pods.succeeds("get", "secrets", "-n", "alices", kubeconfig=alice), "alice's rights in force"
    )
    done = subprocess.run(
        [
            str(plane.programs / "helm"),
            "install",
            "gpupolicy",
            str(ROOT / "charts/gpupolicy"),
            "--namespace",
            "alices",
        ],
        env={**plane.environment(), "KUBECONFIG": str(alice)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert 'User "alice" cannot' in done.stderr
    assert "at the cluster scope" in done.stderr
    for kind in ("deployments", "daemonsets", "serviceaccounts"):
        names = [
            o["metadata"]["name"]
            for o in json.loads(pods.kubectl("get", kind, "-n", "alices", "-o", "json"))["items"]
        ]
        assert [name for name in names if "gpupolicy" in name] == []
