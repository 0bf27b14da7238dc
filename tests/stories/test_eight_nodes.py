"""The cluster of the documentation, made by the demo itself, and counted by hand (R44)."""

import json
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.cluster.cluster import Cluster
from tests.demo import __main__ as demo
from tests.stack import Stack
from tests.stories import objects

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

DRIVER = "gpu.gpupolicy.dev"
SLOW_MICROSECONDS = 2_000_000


@pytest.fixture(scope="module")
def shown() -> Iterator[Stack]:
    """Eight nodes of eight cards with the documented policies and workloads."""
    with Cluster.start() as cluster:
        stack = Stack(cluster, pods=True)
        demo.fill(stack, demo.Progress())
        yield stack


def hand_count(stack: Stack) -> dict[str, tuple[int, int]]:
    """Count devices and allocated devices per policy from slices and claims alone."""
    owner = {}
    for piece in stack.get("resourceslices"):
        if piece["spec"]["driver"] == DRIVER:
            for device in piece["spec"].get("devices", []):
                owner[piece["spec"]["pool"]["name"], device["name"]] = device["attributes"]["policy"][
                    "string"
                ]
    held = {
        (result["pool"], result["device"])
        for claim in stack.get("resourceclaims", "-A")
        for result in claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", [])
        if result["driver"] == DRIVER
    }
    devices = Counter(owner.values())
    allocated = Counter(owner[key] for key in held if key in owner)
    return {policy: (devices[policy], allocated[policy]) for policy in devices}


def table(stack: Stack) -> dict[str, tuple[int, int]]:
    """Read devices and allocated of every policy from `kubectl get gpupolicies`."""
    rows = [line.split() for line in stack.kubectl("get", "gpupolicies", "--no-headers").splitlines()]
    return {row[0]: (int(row[4]), int(row[5])) for row in rows}


def test_the_table_equals_a_hand_count(shown: Stack) -> None:
    """What `kubectl get gpupolicies` says is what slices and claims say, policy by policy."""
    shown.wait(lambda: table(shown) == hand_count(shown), "the table equals the hand count")
    assert hand_count(shown) == {"train": (32, 8), "infer": (96, 6), "short": (8, 1)}
    assert [shown.policy_row(p)[2:4] for p in ("train", "infer", "short")] == [
        ["4/4", "32/32"],
        ["3/3", "24/24"],
        ["1/1", "8/8"],
    ]

    def of_nodes() -> int:
        lines = shown.kubectl("get", "gpunodes", "--no-headers").splitlines()
        return sum(int(line.split()[3]) for line in lines)

    # An agent tells of its devices a moment after the API server shows them.
    shown.wait(lambda: of_nodes() == 136, "the nodes to count the same")


def test_the_table_is_true_while_a_layout_rolls(shown: Stack) -> None:
    """Half-way through a change the counts still follow slices and claims, and free is never negative."""
    layout = {"sharing": objects.mig({"1g.10gb": 7}), "offers": None}
    cards = [shown.simulator(node.name) for node in demo.nodes() if node.pool == "infer"]
    seen = set()

    def row() -> list[str]:
        found = shown.policy_row("infer")
        seen.add(tuple(found[2:4]))
        assert int(found[6]) >= 0
        return found

    def rolled() -> bool:
        return row()[3] == "24/24" and shown.condition("gpupolicy", "infer").get("status") == "True"

    # Cards that are slow to cut, so that nobody can be too slow to see one half-way.
    for simulator in cards:
        simulator.set_latency(SLOW_MICROSECONDS, symbol="nvmlDeviceCreateGpuInstanceWithPlacement")
    try:
        shown.kubectl("patch", "gpupolicy", "infer", "--type=merge", "-p", json.dumps({"spec": layout}))
        shown.wait(lambda: row()[3] != "24/24", "the roll-out begun", every=0.05)
    finally:
        for simulator in cards:
            simulator.clear_latency()
    shown.wait(rolled, "the roll-out done", 240)
    shown.wait(lambda: table(shown) == hand_count(shown), "the table equals the hand count")
    # Six slices in use stay where they are; the rest of each card is cut anew around them.
    assert hand_count(shown)["infer"] == (168, 6)
    assert len(seen) > 1, "no intermediate state was ever shown"
    shown.wait_pods("default", demo.PODS)


def test_whole_node_jobs_wait_for_one_node(shown: Stack) -> None:
    """The claim template that the status proposes: eight cards of one node, or Pending with a reason."""
    examples = shown.get("gpupolicy", "train")["status"]["examples"]
    assert examples
    with shown.cluster.namespace("whole") as namespace:
        shown.apply(
            objects.template("node", namespace, "h100", count=8),
            *(objects.pod(f"j{n}", namespace, template="node") for n in range(4)),
        )
        shown.wait_pods(namespace, 3)
        pools = [
            {r["pool"] for r in claim["status"]["allocation"]["devices"]["results"]}
            for claim in shown.get("resourceclaims", "-n", namespace)
            if "allocation" in claim.get("status", {})
        ]
        assert [len(pool) for pool in pools] == [1, 1, 1]

        def told() -> str:
            (waiting,) = [p for p in shown.get("pods", "-n", namespace) if p["status"]["phase"] == "Pending"]
            return str(waiting["status"].get("conditions", ()))

        shown.wait(lambda: "cannot allocate" in told(), "the scheduler to say why the fourth waits")
        shown.kubectl("delete", "pods", "--all", "-n", namespace, "--grace-period=0", "--force")
