"""The whole agent under a real API server and a real kubelet, without a controller: the test writes GpuNode.spec."""

import datetime as dt
import json
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.node import Node
from tests.simulator import Simulator
from tests.stack import GpuNodeOptions, Stack

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]

NAME = "gpu-01"
INFER = {"3g.40gb": 1, "2g.20gb": 1, "1g.10gb": 2}
SEVEN = {"1g.10gb": 7}


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with Cluster.start() as cluster:
        made = Stack(cluster)
        made.install()
        yield made


@pytest.fixture(scope="module")
def node(stack: Stack) -> Node:
    (made,) = stack.add_nodes(GpuNodeOptions(name=NAME, gpus=4))
    return made


class World:
    """The node, its cards and its agent."""

    def __init__(self, stack: Stack, node: Node) -> None:
        self.stack = stack
        self.node = node
        self.simulator: Simulator = stack.simulator(NAME)
        self.revision = 0

    @property
    def object(self) -> dict[str, Any]:
        found: dict[str, Any] = self.stack.get("gpunode", NAME)
        return found

    def cards(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.object.get("status", {}).get("gpus", [])
        return found

    def want(self, layout: dict[str, int] | None, *, cards: int = 4) -> str:
        """Assign the first cards; return the revision."""
        self.revision += 1
        revision = f"r{self.revision}-{time.monotonic_ns()}"
        sharing: dict[str, Any] = {"strategy": "Exclusive"}
        if layout:
            entries = [{"profile": p, "count": n} for p, n in layout.items()]
            sharing = {"strategy": "MIG", "mig": {"mode": "Static", "layout": entries}}
        gpus = [
            {"uuid": self.simulator.gpu(index)["uuid"], "policy": "p", "revision": revision, **sharing}
            for index in range(cards)
        ]
        patch = json.dumps({"spec": {"gpus": gpus}})
        self.stack.kubectl("patch", "gpunode", NAME, "--type=merge", "-p", patch)
        return revision

    def applied(self, revision: str) -> bool:
        # Before the agent has seen the wish, no card may have a policy.
        wanted = [c for c in self.cards() if c.get("policy")]
        return bool(wanted) and all(
            c.get("appliedRevision") == revision and c["reason"] == "Applied" for c in wanted
        )

    def wait_applied(self, revision: str) -> None:
        self.stack.wait(lambda: self.applied(revision), f"{revision} applied on {NAME}")

    def kinds(self) -> dict[str, int]:
        """How many devices of each profile (or `gpu`) the API server shows."""
        counts: dict[str, int] = {}
        for device in self.stack.devices():
            attributes = device["attributes"]
            kind = attributes.get("profile", attributes["type"])["string"]
            counts[kind] = counts.get(kind, 0) + 1
        return counts

    def condition(self, name: str) -> tuple[str, str]:
        found = self.stack.condition("gpunode", NAME, name)
        return found.get("status", ""), found.get("reason", "")


@pytest.fixture
def world(stack: Stack, node: Node) -> Iterator[World]:
    made = World(stack, node)
    stack.wait(lambda: bool(stack.get("gpunodes")) and len(made.cards()) == 4, "the agent's report")
    yield made
    made.simulator.clear_faults()
    if not stack.agent(NAME).alive:
        stack.agent(NAME).start()
    made.wait_applied(made.want(None))
    patch = json.dumps({"spec": {"gpus": []}})
    stack.kubectl("patch", "gpunode", NAME, "--type=merge", "-p", patch)
    stack.wait(lambda: stack.devices() == [], "nothing published")


def test_slices_follow_the_spec(world: World) -> None:
    world.wait_applied(world.want(None))
    assert world.kinds() == {"gpu": 4}
    world.wait_applied(world.want(INFER))
    assert world.kinds() == {"3g.40gb": 4, "2g.20gb": 4, "1g.10gb": 8}
    assert [len(world.simulator.layout(index)) for index in range(4)] == [4] * 4
    world.wait_applied(world.want(SEVEN, cards=2))
    assert world.kinds() == {"1g.10gb": 14}
    assert [len(world.simulator.layout(index)) for index in range(4)] == [7, 7, 4, 4], (
        "not assigned: left alone"
    )
    assert world.condition("Ready") == ("True", "Ready")


def test_what_is_reported_is_what_nvml_says(world: World) -> None:
    world.stack.wait(lambda: world.object["status"]["allocator"] == "None", "word that nothing is offered")
    status = world.object["status"]
    assert status["gpuCount"] == 4
    assert status["driverVersion"] == world.simulator.dump()["driver_version"]
    assert status["lastObservedTime"]
    owner = world.object["metadata"]["ownerReferences"][0]
    assert (owner["kind"], owner["name"]) == ("Node", NAME)
    truth = world.simulator.gpu(2)
    card = next(c for c in status["gpus"] if c["uuid"] == truth["uuid"])
    assert card["productName"] == "NVIDIA H100 80GB HBM3"
    assert {p["name"] for p in card["mig"]["profiles"]} >= {"1g.10gb", "7g.80gb"}


def test_the_end_of_the_agent_leaves_devices_and_no_sockets(world: World) -> None:
    world.wait_applied(world.want(INFER))
    agent = world.stack.agent(NAME)
    assert agent.identity is not None
    agent.identity.signal(signal.SIGTERM)
    assert agent.wait(60), "it does not end by itself"
    plugins = world.node.directory / "plugins/gpu.gpupolicy.dev"
    registry = world.node.directory / "plugins_registry"
    assert list(plugins.glob("*.sock")) + list(registry.glob("gpu.gpupolicy.dev*")) == []
    assert sum(world.kinds().values()) == 16
    writes, reported = world.simulator.writes(), world.object["status"]["lastObservedTime"]
    # Reports are dated to the second, and the next agent's must differ.
    world.stack.wait(lambda: f"{dt.datetime.now(dt.UTC):%Y-%m-%dT%H:%M:%SZ}" > reported, "the next second")
    world.stack.agent(NAME).start()
    world.stack.wait(
        lambda: world.object["status"]["lastObservedTime"] != reported, "the next agent's report"
    )
    world.stack.wait(lambda: world.condition("Ready") == ("True", "Ready"), "the agent back")
    assert world.simulator.writes() == writes
    assert sum(world.kinds().values()) == 16


@pytest.mark.parametrize("skip", [0, 3, 9, 17])
def test_killed_in_the_middle_of_a_change(world: World, skip: int) -> None:
    """The next agent knows what is ours; no device is shown that does not stand."""
    world.wait_applied(world.want(INFER))
    world.simulator.add_fault("writes", mode="hang", hang_ms=1500, skip=skip, count=1)
    writes = world.simulator.writes()
    revision = world.want(SEVEN)
    world.stack.wait(lambda: world.simulator.writes() > writes + skip, "the change under way", every=0.02)
    world.stack.agent(NAME).kill()
    world.stack.agent(NAME).start()
    world.wait_applied(revision)
    assert world.kinds() == {"1g.10gb": 28}
    assert {i["ownership"] for c in world.cards() for i in c["instances"]} == {"Owned"}
