"""An API server that behaves as 1.34: what it drops is told, and whole cards still work through claims."""

from collections.abc import Iterator

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.control_plane import ControlPlaneOptions
from tests.stack import GpuNodeOptions, Stack
from tests.stories import objects

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

DRA_GATES = (
    "DynamicResourceAllocation",
    "DRASchedulerFilterTimeout",
    "DRAPrioritizedList",
    "DRAAdminAccess",
)
"""The gate, and those that insist on it."""


@pytest.fixture(scope="module")
def older() -> Iterator[Stack]:
    """A cluster of release 1.34 with a controller and one node of two cards."""
    with Cluster.start(options=ControlPlaneOptions(emulated_version="1.34")) as cluster:
        stack = Stack(cluster)
        stack.install()
        stack.start_controller()
        stack.add_nodes(GpuNodeOptions(name="old-01", pool="train", gpus=2))
        stack.wait(lambda: len(stack.get("gpunodes")) == 1, "the agent's GpuNode")
        yield stack


def test_whole_cards_work_and_what_is_dropped_is_told(older: Stack) -> None:
    """A class keeps working without its extended name, and the policy says which field was not kept."""
    older.apply(
        objects.policy(
            "train",
            pool="train",
            offers=[{"deviceClassName": "h100", "extendedResourceName": "nvidia.com/gpu"}],
        )
    )
    older.wait(lambda: len(older.devices(policy="train")) == 2, "the cards published")

    def told() -> bool:
        conditions = older.get("gpupolicy", "train").get("status", {}).get("conditions", [])
        return any("extendedResourceName" in c["message"] for c in conditions)

    older.wait(told, "the dropped field told")
    with older.cluster.namespace("older") as namespace:
        older.apply(objects.template("one", namespace, "h100"), objects.pod("one", namespace, template="one"))
        older.wait_pods(namespace, 1)
        assert (
            older.kubectl("exec", "-n", namespace, "one", "--", "nvidia-smi", "-L").count("UUID: GPU-") == 1
        )
        older.kubectl("delete", "pod", "one", "-n", namespace, "--timeout=120s")


def test_a_server_without_the_kinds_of_dra() -> None:
    """Neither program crashes or keeps silent: the policy and the node say what is missing, and go on when it is there."""
    options = ControlPlaneOptions(
        emulated_version="1.34",
        feature_gates=dict.fromkeys(DRA_GATES, False),
        runtime_config={"resource.k8s.io/v1": "false"},
    )
    with Cluster.start(options=options) as cluster:
        stack = Stack(cluster)
        stack.install()
        controller = stack.start_controller()
        stack.add_nodes(GpuNodeOptions(name="bare-01", pool="train", gpus=1))
        stack.apply(objects.policy("train", pool="train"))
        stack.wait(
            lambda: stack.condition("gpupolicy", "train").get("reason") == "KubernetesTooOld",
            "the policy told",
        )
        row = stack.policy_row("train")
        assert row[-1] == "False"
        message = stack.condition("gpupolicy", "train")["message"]
        assert "does not serve" in message
        assert "deviceclasses" in message
        assert "Kubernetes 1.34 or later" in message
        stack.wait(lambda: "does not serve" in controller.log.read_text(), "the controller's log to say so")
        stack.wait(lambda: len(stack.get("gpunodes")) == 1, "the agent's GpuNode", 120)
        stack.wait(
            lambda: (
                "does not serve resourceslices" in stack.condition("gpunode", "bare-01").get("message", "")
            ),
            "the node told",
            120,
        )
        assert stack.condition("gpunode", "bare-01")["status"] == "False"
        assert controller.alive
        assert stack.agent("bare-01").alive
