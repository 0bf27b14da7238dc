"""What goes wrong around a node: a second agent, an agent that is killed while it works, tokens, ports.

One node with four cards, its agent and the controller as processes beside the cluster, so that a test can kill them.
"""

import datetime as dt
import itertools
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster.node import Node
from tests.cluster.process import Daemon
from tests.stack import NAMESPACE, GpuNodeOptions, Stack
from tests.stories import objects

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

NAME = "gpu-01"
_numbers = itertools.count(1)


_ports: dict[str, int] = {}


def port_of(stack: Stack, name: str = NAME) -> int:
    """Return the port of an agent, out of those that no connection is given while its agent is away."""
    if name not in _ports:
        (_ports[name],) = stack.cluster.run.reserve_ports(1)
    return _ports[name]


@pytest.fixture(scope="module")
def node(stack: Stack) -> Iterator[Node]:
    """The node, its agent and the controller, with a policy for whole cards that is Ready."""
    controller = stack.start_controller()
    option = GpuNodeOptions(name=NAME, pool="train", gpus=4)
    (made,) = stack.add_nodes(option, agents=False)
    stack.make_cards(option, made)
    stack.start_agent(made, f"--health-port={port_of(stack)}")
    stack.apply(
        objects.policy(
            "train",
            pool="train",
            offers=[{"deviceClassName": "h100", "extendedResourceName": "nvidia.com/gpu"}],
        )
    )
    stack.wait_policies("train")
    yield made
    stack.kubectl("delete", "gpupolicies", "--all")
    stack.wait(lambda: stack.devices() == [], "the devices withdrawn")
    stack.agent(NAME).stop()
    made.stop()
    stack.kubectl("delete", "gpunode", NAME, "--ignore-not-found")
    controller.stop()


@pytest.fixture
def namespace(stack: Stack, node: Node) -> Iterator[str]:
    """A namespace whose pods go with the test; afterwards no claim is held."""
    with stack.cluster.namespace(f"faults-{next(_numbers)}") as name:
        yield name
        stack.simulator(NAME).clear_faults()
        if not stack.agent(NAME).alive:
            stack.agent(NAME).start()
            # A pod that came before the kubelet knows the driver would wait for a minute.
            stack.wait(lambda: readyz(port_of(stack)) == (200, "ok"), "the agent back")
        stack.kubectl("delete", "pods", "--all", "-n", name, "--grace-period=0", "--force")
        stack.wait(lambda: stack.policy_row("train")[4:6] == ["4", "0"], "every card free", 240)


def readyz(port: int) -> tuple[int, str]:
    """Ask whether an agent is ready; (0, "") while it does not listen."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5.0) as answer:
            return answer.status, answer.read().decode().strip()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode().strip()
    except urllib.error.URLError:
        return 0, ""


def sockets(node: Node) -> set[str]:
    """Return the names of the driver's sockets on a node."""
    plugins = node.directory / "plugins/gpu.gpupolicy.dev"
    registry = node.directory / "plugins_registry"
    return {p.name for p in (*plugins.glob("*.sock"), *registry.glob("gpu.gpupolicy.dev*"))}


def slice_versions(stack: Stack) -> dict[str, str]:
    """Return the resource version of every slice."""
    return {s["metadata"]["name"]: s["metadata"]["resourceVersion"] for s in stack.get("resourceslices")}


def starts(stack: Stack) -> int:
    """Return how often NVML was started on the node."""
    return sum(n for name, n in stack.simulator(NAME).calls().items() if name.startswith("nvmlInit"))


def runs(stack: Stack, namespace: str, name: str) -> None:
    """Have a pod with one card, and wait until it runs."""
    running = len([p for p in stack.get("pods", "-n", namespace) if p["status"].get("phase") == "Running"])
    stack.apply(objects.pod(name, namespace, limits={"nvidia.com/gpu": 1}))
    stack.wait_pods(namespace, running + 1, seconds=240)


@pytest.mark.parametrize("end", ["kill", "stop"])
def test_a_second_agent_waits_and_takes_over(stack: Stack, node: Node, namespace: str, end: str) -> None:
    """It says whom it waits for, writes nothing anywhere, and is there as soon as the first has ended."""
    first = stack.agent(NAME)
    runs(stack, namespace, "before")
    before = sockets(node), slice_versions(stack), stack.simulator(NAME).writes()
    started = starts(stack)
    assert started > 0
    port = port_of(stack, f"{end}-second")
    second = stack.start_agent(
        node, f"--health-port={port}", "--pod-uid=22222222-0000", name=f"{NAME}-{end}-second"
    )
    try:
        stack.wait(lambda: readyz(port)[0] == 503, "the second to answer")
        stack.wait(lambda: "another agent runs on this node" in readyz(port)[1], "the second to say so")
        assert f"process {first.pid}" in readyz(port)[1]
        assert second.log_tail().count("another agent runs on this node") == 1
        # It never asked the cards anything: only one process has ever started NVML.
        assert starts(stack) == started
        assert (sockets(node), slice_versions(stack), stack.simulator(NAME).writes()) == before
        runs(stack, namespace, "beside")

        getattr(first, end)()
        stack.wait(lambda: readyz(port) == (200, "ok"), "the second to take over")
        assert {name for name in sockets(node) if "22222222" not in name} == set()
        assert slice_versions(stack).keys() == before[1].keys()
        runs(stack, namespace, "after")
        # What the first prepared the second gives back.
        stack.kubectl("delete", "pod", "before", "-n", namespace, "--timeout=150s")
    finally:
        second.stop()


def ends(daemon: Daemon, seconds: float = 60.0) -> None:
    """Ask a process to end; it must do so by itself."""
    assert daemon.identity is not None
    daemon.identity.signal(signal.SIGTERM)
    assert daemon.wait(seconds), f"process {daemon.pid} would have to be killed"


def test_an_agent_that_waits_can_be_stopped(stack: Stack, node: Node, namespace: str) -> None:
    """Neither it nor the one that works minds."""
    second = stack.start_agent(node, name=f"{NAME}-stopped")
    stack.wait(lambda: "another agent runs" in second.log_tail(), "the second to wait")
    ends(second)
    assert "Traceback" not in second.log_tail(100)
    runs(stack, namespace, "still")


def test_a_taken_port_costs_no_card(stack: Stack, node: Node, namespace: str) -> None:
    """The agent says which port and which value, prepares claims all the same, and takes the port when it is free."""
    stack.agent(NAME).stop()
    port = port_of(stack, "taken")
    with socket.create_server(("0.0.0.0", port)) as other:
        agent = stack.start_agent(node, f"--health-port={port}", name=f"{NAME}-port")
        try:
            stack.wait(lambda: "has registered the driver" in agent.log.read_text(), "the agent to be of use")
            runs(stack, namespace, "without-probes")
            log = agent.log.read_text()
            assert log.count(f"port {port} of /healthz, /readyz and /metrics cannot be used") == 1
            assert "agent.healthPort" in log
            other.close()
            stack.wait(lambda: readyz(port) == (200, "ok"), "the port to be used")
        finally:
            agent.stop()


ACCOUNTS = ("gpupolicy-controller", "gpupolicy-agent")
REFUSED_SECONDS = 45.0
MOST_LINES = 12
"""The lease, the work and each watch say it once; nobody says it at every attempt."""


def test_tokens_that_end(stack: Stack, node: Node, namespace: str) -> None:
    """Both accounts are made anew: 401 to everything, for longer than any read-again period; then the files are replaced.

    Nobody restarts, nobody fills the log, what was prepared stays, and all goes on with the new tokens.
    """
    runs(stack, namespace, "before")
    daemons = [stack.cluster.find_daemon("controller"), stack.agent(NAME)]
    pids = [daemon.pid for daemon in daemons]
    marks = [len(daemon.log.read_text()) for daemon in daemons]
    for account in ACCOUNTS:
        stack.kubectl("delete", "serviceaccount", account, "-n", NAMESPACE)
        stack.kubectl("create", "serviceaccount", account, "-n", NAMESPACE)

    def log(index: int) -> str:
        return daemons[index].log.read_text()[marks[index] :]

    # The agent asks for little at rest; a pod makes it ask.
    stack.apply(objects.pod("meanwhile", namespace, limits={"nvidia.com/gpu": 1}))
    stack.wait(lambda: all("Unauthorized" in log(i) for i in (0, 1)), "both to be refused", 120)
    time.sleep(REFUSED_SECONDS)
    for index, daemon in enumerate(daemons):
        told = [line for line in log(index).splitlines() if '"level": "info"' not in line]
        assert len(told) <= MOST_LINES, f"{daemon.name} says {len(told)} times that it is refused"

    access = stack.cluster.service_account_kubeconfig
    access(NAMESPACE, "gpupolicy-controller", expiration_seconds=24 * 3600).rotate()
    access(NAMESPACE, "gpupolicy-agent", node=NAME, expiration_seconds=24 * 3600).rotate()
    stack.wait_pods(namespace, 2, seconds=240)
    stack.wait(lambda: stack.policy_row("train")[4:6] == ["4", "2"], "the controller to count again", 240)
    runs(stack, namespace, "after")
    assert [daemon.pid for daemon in daemons] == pids
    assert all(daemon.alive for daemon in daemons)


def card(stack: Stack, index: int) -> dict[str, Any]:
    """Return what the node says of the card at an index."""
    cards = stack.get("gpunode", NAME)["status"]["gpus"]
    return next(c for c in cards if c["index"] == index)


def restart_and_look(stack: Stack, end: str) -> None:
    """End the agent and start it again; wait until the new one has reported, and has looked at the cards once more."""

    def reported() -> str:
        return str(stack.get("gpunode", NAME)["status"]["lastObservedTime"])

    def looks() -> int:
        calls = stack.simulator(NAME).calls()
        return sum(n for name, n in calls.items() if name.startswith("nvmlDeviceGetCount"))

    before = reported()
    # Reports are dated to the second, and the new agent's must differ.
    stack.wait(lambda: f"{dt.datetime.now(dt.UTC):%Y-%m-%dT%H:%M:%SZ}" > before, "the next second")
    agent = stack.agent(NAME)
    getattr(agent, end)()
    agent.start()
    stack.wait(lambda: readyz(port_of(stack)) == (200, "ok"), "the agent back")
    stack.wait(lambda: reported() != before, "the report of the new agent")
    seen = looks()
    # One may have been under way, the next is complete when the one after it begins.
    stack.wait(lambda: looks() >= seen + 2, "more looks at the cards")


def test_r47_a_sick_card_stays_sick_over_restarts_until_it_is_reset(
    stack: Stack, node: Node, namespace: str
) -> None:
    """An XID comes once. FREE drops and stays down, whatever happens to the agent; a reset brings the card back."""
    simulator = stack.simulator(NAME)

    def report() -> bool:
        simulator.xid(0, 79)
        return card(stack, 0)["health"] == "Unhealthy"

    stack.wait(report, "the XID to be told", every=1.0)
    stack.wait(lambda: stack.policy_row("train")[6] == "3", "FREE to drop")
    for end in ("kill", "stop"):
        restart_and_look(stack, end)
        assert card(stack, 0)["health"] == "Unhealthy"
        assert "XID 79" in card(stack, 0)["healthMessage"]
        assert stack.policy_row("train")[6] == "3"
    simulator.reset(0)
    stack.wait(lambda: card(stack, 0)["health"] == "Healthy", "the reset to be noticed")
    stack.wait(lambda: stack.policy_row("train")[6] == "4", "FREE to come back")
    restart_and_look(stack, "stop")
    assert card(stack, 0)["health"] == "Healthy"


def test_r46_a_foreign_instance_beside_ours_is_told(stack: Stack, node: Node, namespace: str) -> None:
    """Made with the vendor's tool where nothing of ours lies: told at the next look, and left alone."""
    stack.apply(
        objects.policy(
            "slices", pool="train", priority=10, gpusPerNode=1, sharing=objects.mig({"3g.40gb": 1})
        )
    )
    stack.wait_policies("slices")
    cards = stack.get("gpunode", NAME)["status"]["gpus"]
    ours = next(c for c in cards if c.get("policy") == "slices")
    simulator = stack.simulator(NAME)

    def by_hand(*words: str) -> None:
        done = subprocess.run(
            [str(simulator.nvidia_smi_path), "mig", "-i", str(ours["index"]), *words],
            env=simulator.environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr

    before = simulator.layout(ours["index"])
    by_hand("-cgi", "1g.10gb", "-C")
    stack.wait(lambda: card(stack, ours["index"])["reason"] == "OwnershipConflict", "the foreign instance")
    assert "1g.10gb@" in card(stack, ours["index"])["message"]
    assert len(simulator.layout(ours["index"])) == len(before) + 1
    (foreign,) = [i["id"] for i in simulator.gpu(ours["index"])["gpu_instances"] if i["profile"] == "1g.10gb"]
    by_hand("-dci", "-gi", str(foreign))
    by_hand("-dgi", "-gi", str(foreign))
    stack.wait(lambda: card(stack, ours["index"])["reason"] == "Applied", "the conflict over")
    stack.wait_policies("slices")
    assert simulator.layout(ours["index"]) == before
    stack.kubectl("delete", "gpupolicy", "slices", "--timeout=120s")
    stack.wait_policies("train", seconds=240)
