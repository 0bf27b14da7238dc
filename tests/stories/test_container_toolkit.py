"""A node with NVIDIA's container toolkit: the container gets what `nvidia-ctk` generates, and sees it."""

import re
from collections.abc import Iterator

import pytest

from tests.stack import GpuNodeOptions, Stack
from tests.stories import objects

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

NODE = "ctk-01"


@pytest.fixture(scope="module")
def node(stack: Stack) -> Iterator[str]:
    """A controller and a node of four cards whose agent uses the toolkit."""
    controller = stack.start_controller("toolkit-controller")
    (made,) = stack.add_nodes(GpuNodeOptions(name=NODE, pool="toolkit", gpus=4), agents=False)
    stack.start_agent(made, toolkit=True)
    stack.wait(lambda: NODE in stack.kubectl("get", "gpunodes"), "the agent's GpuNode")
    yield NODE
    stack.kubectl("delete", "gpupolicies", "--all")
    stack.wait(lambda: stack.devices() == [], "the devices withdrawn")
    stack.agent(NODE).stop()
    made.stop()
    stack.kubectl("delete", "gpunode", NODE, "--ignore-not-found")
    controller.stop()


@pytest.mark.parametrize(
    ("sharing", "device_class", "capabilities"),
    [
        pytest.param({"strategy": "Exclusive"}, "ctk", 0, id="whole-card"),
        pytest.param(objects.mig({"3g.40gb": 1, "1g.10gb": 1}), "ctk-1g-10gb", 2, id="slice"),
    ],
)
def test_a_container_sees_what_the_toolkit_injects(
    stack: Stack, node: str, sharing: dict[str, object], device_class: str, capabilities: int
) -> None:
    """Libraries, programs and control nodes of the driver, and of the devices only its own."""
    stack.apply(objects.policy("ctk", pool="toolkit", sharing=sharing))
    stack.wait_policies("ctk")
    with stack.cluster.namespace(f"ctk-{capabilities}") as namespace:
        stack.apply(
            objects.template("one", namespace, device_class), objects.pod("one", namespace, template="one")
        )
        stack.wait_pods(namespace, 1)

        def inside(script: str) -> list[str]:
            return stack.kubectl("exec", "-n", namespace, "one", "--", "sh", "-c", script).split()

        assert len(inside("ls -d /dev/nvidia[0-9]*")) == 1
        assert set(inside("ls -d /dev/nvidiactl /dev/nvidia-uvm")) == {"/dev/nvidiactl", "/dev/nvidia-uvm"}
        assert len(inside("ls /dev/nvidia-caps 2>/dev/null || true")) == capabilities
        assert inside(
            "find / -xdev -name 'libnvidia-ml.so.*' -size +0 2>/dev/null; grep -o 'libnvidia-ml.so[.0-9]*' /proc/mounts"
        )
        shown = stack.kubectl("exec", "-n", namespace, "one", "--", "nvidia-smi", "-L")
        uuids = re.findall(r"UUID: ([A-Za-z0-9-]+)", shown)
        wanted = {d["attributes"]["uuid"]["string"] for d in stack.devices(policy="ctk")}
        assert len(wanted & set(uuids)) == 1, shown
        stack.kubectl("delete", "pod", "one", "-n", namespace, "--timeout=120s")
