"""The chart's whole life with everything as pods: install, upgrade, a killed agent, uninstall, install again (R1, R49, R50).

The tests of this module go on from each other: one cluster of two nodes lives through all of it.
"""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster.cluster import Cluster
from tests.stack import NAMESPACE, GpuNodeOptions, Stack
from tests.stories import objects

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def installed() -> Iterator[Stack]:
    """Two nodes with the images on them, and the chart installed on top."""
    with Cluster.start() as cluster:
        stack = Stack(cluster, pods=True)
        stack.add_nodes(
            GpuNodeOptions(name="gpu-01", pool="train"), GpuNodeOptions(name="gpu-02", pool="infer")
        )
        stack.kubectl("create", "namespace", "work")
        # That they are not ready yet is taken from nodes some time after they are.
        stack.wait(lambda: not any("taints" in n["spec"] for n in stack.get("nodes")), "nodes without taints")
        before = {
            name: stack.kubectl("get", "node", name, "-o", "jsonpath={.spec}")
            for name in ("gpu-01", "gpu-02")
        }
        stack.install_pods()
        after = {name: stack.kubectl("get", "node", name, "-o", "jsonpath={.spec}") for name in before}
        assert after == before
        assert stack.get("deviceclasses") == []
        yield stack


def agent_pod(stack: Stack, node: str) -> dict[str, Any]:
    """Return the agent's pod of a node that is not ending."""
    (found,) = [
        p
        for p in stack.get("pods", "-n", NAMESPACE, "-l", "app.kubernetes.io/component=agent")
        if p["spec"]["nodeName"] == node and "deletionTimestamp" not in p["metadata"]
    ]
    return found


def is_ready(pod: dict[str, Any]) -> bool:
    """Whether a pod is Ready."""
    return any(c["type"] == "Ready" and c["status"] == "True" for c in pod["status"].get("conditions", []))


def cards_of(stack: Stack, pod: str) -> list[str]:
    """Return the devices that a pod sees with the vendor's tool."""
    return sorted(stack.kubectl("exec", "-n", "work", pod, "--", "nvidia-smi", "-L").splitlines())


def test_policies_and_pods_work_as_with_any_installation(installed: Stack) -> None:
    """Whole cards under the old name, and slices of a layout."""
    stack = installed
    stack.apply(
        objects.policy(
            "train",
            pool="train",
            offers=[{"deviceClassName": "h100", "extendedResourceName": "nvidia.com/gpu"}],
        ),
        objects.policy("infer", pool="infer", sharing=objects.mig(objects.H100_LAYOUT)),
    )
    stack.wait_policies("train", "infer", seconds=240)
    assert stack.policy_row("train")[1:6] == ["Exclusive", "1/1", "8/8", "8", "0"]
    assert stack.policy_row("infer")[1:6] == ["MIG", "1/1", "8/8", "32", "0"]
    stack.apply(
        objects.pod("whole", "work", limits={"nvidia.com/gpu": 2}),
        objects.template("slice", "work", "infer-1g-10gb"),
        objects.pod("slice", "work", template="slice"),
    )
    stack.wait_pods("work", 2)
    assert len(cards_of(stack, "whole")) == 2
    assert len([line for line in cards_of(stack, "slice") if "MIG 1g.10gb" in line]) == 1


def test_an_upgrade_with_the_same_values_changes_nothing(installed: Stack) -> None:
    """No pod starts again and nothing gets a new generation, however often it is done."""
    stack = installed

    def state() -> tuple[set[str], dict[str, int]]:
        pods = stack.get("pods", "-n", NAMESPACE)
        owned = stack.get("deployments,daemonsets", "-n", NAMESPACE) + stack.get(
            "crds,gpupolicies,validatingadmissionpolicies,gpunodes"
        )
        return (
            {p["metadata"]["uid"] for p in pods},
            {f"{o['kind']}/{o['metadata']['name']}": o["metadata"]["generation"] for o in owned},
        )

    before = state()
    for _ in range(2):
        stack.upgrade_pods()
    stack.wait_rollout()
    assert state() == before


def test_an_upgrade_replaces_the_pods_and_nothing_else(installed: Stack) -> None:
    """Running pods keep their cards, the cards their layout; a pod that starts meanwhile runs in the end."""
    stack = installed
    seen = {name: cards_of(stack, name) for name in ("whole", "slice")}
    layout = stack.simulator("gpu-02").layout(0)
    writes = stack.simulator("gpu-02").writes()
    old = agent_pod(stack, "gpu-01")["metadata"]["uid"]
    stack.upgrade_pods("agent.podAnnotations.round=two", "controller.podAnnotations.round=two")
    stack.apply(objects.pod("meanwhile", "work", limits={"nvidia.com/gpu": 1}))
    stack.wait_rollout()
    stack.wait_pods("work", 3, seconds=240)
    assert agent_pod(stack, "gpu-01")["metadata"]["uid"] != old
    assert {name: cards_of(stack, name) for name in seen} == seen
    assert not set(cards_of(stack, "meanwhile")) & set(seen["whole"])
    assert stack.simulator("gpu-02").layout(0) == layout
    assert stack.simulator("gpu-02").writes() == writes
    stack.wait_policies("train", "infer")


def test_an_agent_killed_while_it_prepares(installed: Stack) -> None:
    """The pod starts with the next agent; the claim is prepared once, and nobody else has its card."""
    stack = installed
    stack.apply(objects.pod("killed", "work", limits={"nvidia.com/gpu": 3}, node="gpu-01"))
    stack.kubectl(
        "delete",
        "pod",
        agent_pod(stack, "gpu-01")["metadata"]["name"],
        "-n",
        NAMESPACE,
        "--grace-period=0",
        "--force",
    )
    stack.wait_pods("work", 4, seconds=240)
    assert len(cards_of(stack, "killed")) == 3
    others = {line for name in ("whole", "meanwhile") for line in cards_of(stack, name)}
    assert not set(cards_of(stack, "killed")) & others


def test_a_second_installation_is_refused(installed: Stack) -> None:
    """The names are fixed, one installation a cluster: Helm says whose the objects are, and nothing is changed."""
    with pytest.raises(RuntimeError, match="invalid ownership metadata"):
        installed.helm(
            "install", "second", "charts/gpupolicy", "--namespace", "elsewhere", "--create-namespace"
        )


def test_uninstalling_under_running_pods(installed: Stack) -> None:
    """Classes, layouts, CRDs and policies stay, pods run on; no finalizer holds anything up."""
    stack = installed
    seen = cards_of(stack, "whole")
    layout = stack.simulator("gpu-02").layout(0)
    stack.helm("uninstall", "gpupolicy", "--namespace", NAMESPACE, "--wait", "--timeout", "240s")
    stack.wait(lambda: stack.get("pods", "-n", NAMESPACE) == [], "controller and agents to go")
    names = {c["metadata"]["name"] for c in stack.get("deviceclasses")}
    assert {"h100", "infer-1g-10gb"} <= names
    assert {p["metadata"]["name"] for p in stack.get("gpupolicies")} == {"train", "infer"}
    assert cards_of(stack, "whole") == seen
    assert stack.simulator("gpu-02").layout(0) == layout
    roles = stack.get("clusterroles,validatingadmissionpolicies", "-l", "app.kubernetes.io/part-of=gpupolicy")
    assert roles == []


def test_what_the_documentation_says_about_pods_that_end_without_an_agent(installed: Stack) -> None:
    """Its containers stop, but the kubelet cannot give the claim back; with an agent again the pod goes by itself."""
    stack = installed
    stack.kubectl("delete", "pod", "whole", "-n", "work", "--wait=false")
    stack.kubectl("delete", "pod", "killed", "-n", "work", "--force", "--grace-period=0")
    assert "killed" not in {p["metadata"]["name"] for p in stack.get("pods", "-n", "work")}
    stack.install_pods()
    stack.wait(
        lambda: "whole" not in {p["metadata"]["name"] for p in stack.get("pods", "-n", "work")},
        "the pod that ended meanwhile to go",
        240,
    )
    stack.wait_policies("train", "infer")
    # A claim goes a moment after its pod.
    stack.wait(lambda: stack.policy_row("train")[4:6] == ["8", "1"], "their cards to be free again")
    stack.apply(objects.pod("after", "work", limits={"nvidia.com/gpu": 7}, node="gpu-01"))
    stack.wait(lambda: is_ready(stack.get("pod", "after", "-n", "work")), "a pod on all of them", 240)
    assert not set(cards_of(stack, "after")) & set(cards_of(stack, "meanwhile"))


def test_deleting_everything_leaves_nothing_that_hangs(installed: Stack) -> None:
    """Pods first, then policies, then the release, then the CRDs: the order of the documentation."""
    stack = installed
    stack.kubectl("delete", "pods", "--all", "-n", "work", "--timeout=150s")
    stack.kubectl("delete", "gpupolicies", "--all", "--timeout=150s")
    stack.wait(lambda: stack.get("deviceclasses") == [], "the classes to go")
    stack.helm("uninstall", "gpupolicy", "--namespace", NAMESPACE, "--wait", "--timeout", "240s")
    stack.kubectl("delete", "crd", "gpupolicies.gpupolicy.dev", "gpunodes.gpupolicy.dev", "--timeout=150s")
    assert json.loads(stack.kubectl("get", "crds", "-o", "json"))["items"] == []
