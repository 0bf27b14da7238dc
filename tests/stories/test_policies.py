"""The stories of the founding document on a real cluster of three nodes with simulated cards.

Each test owns the policies it applies and takes them away; the cards of the nodes are whole and idle between tests.
"""

import itertools
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster.node import Node
from tests.stack import GpuNodeOptions, Stack
from tests.stories import objects

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

_numbers = itertools.count(1)

NODES = (
    GpuNodeOptions(name="gpu-01", pool="train"),
    GpuNodeOptions(name="gpu-02", pool="train"),
    GpuNodeOptions(name="gpu-05", pool="infer"),
)


@pytest.fixture(scope="module")
def nodes(stack: Stack) -> Iterator[dict[str, Node]]:
    """A controller and three nodes of eight cards, their agents reporting."""
    controller = stack.start_controller()
    made = stack.add_nodes(*NODES)
    # An agent makes its object first and reports afterwards.
    stack.wait(
        lambda: [n.get("status", {}).get("gpuCount") for n in stack.get("gpunodes")] == [8] * len(NODES),
        "the agents' reports",
    )
    yield {node.name: node for node in made}
    for node in made:
        stack.agent(node.name).stop()
        node.stop()
        stack.kubectl("delete", "gpunode", node.name, "--ignore-not-found")
    controller.stop()


@pytest.fixture
def namespace(stack: Stack, nodes: dict[str, Node]) -> Iterator[str]:
    """A namespace whose pods and policies go with the test; afterwards every card is idle again."""
    with stack.cluster.namespace(f"story-{next(_numbers)}") as name:
        yield name
        stack.kubectl("delete", "pods", "--all", "-n", name, "--grace-period=0", "--force")
        stack.kubectl("delete", "gpupolicies", "--all")
        stack.wait(lambda: stack.devices() == [], "the devices withdrawn")
        stack.wait(lambda: not claims_held(stack), "the claims gone")


def claims_held(stack: Stack) -> list[str]:
    """The claims that any node still has."""
    held = []
    for node in stack.get("gpunodes"):
        for gpu in node.get("status", {}).get("gpus", []):
            for holder in [gpu, *gpu.get("instances", [])]:
                held += [claim["name"] for claim in holder.get("claims", [])]
    return held


def train(stack: Stack) -> None:
    """Policy `train` of the stories, Ready."""
    stack.apply(
        objects.policy(
            "train",
            pool="train",
            offers=[{"deviceClassName": "h100", "extendedResourceName": "nvidia.com/gpu"}],
        )
    )
    stack.wait_policies("train")


def infer(stack: Stack, layout: dict[str, int] = objects.H100_LAYOUT) -> None:
    """Policy `infer` of the stories, Ready."""
    offers = [
        {
            "deviceClassName": f"h100-{profile.replace('.', '-')}",
            "profile": profile,
            "extendedResourceName": f"nvidia.com/mig-{profile}",
        }
        for profile in layout
    ]
    stack.apply(objects.policy("infer", pool="infer", sharing=objects.mig(layout), offers=offers))
    stack.wait_policies("infer")


def seen_by(stack: Stack, namespace: str, pod: str) -> list[str]:
    """The UUIDs that `nvidia-smi -L` shows inside a pod."""
    shown = stack.kubectl("exec", "-n", namespace, pod, "--", "nvidia-smi", "-L")
    return re.findall(r"UUID: ([A-Za-z0-9-]+)", shown)


def allocated(stack: Stack, namespace: str, pod: str) -> list[dict[str, Any]]:
    """The allocation results of the claims of a pod."""
    results = []
    for claim in stack.get("resourceclaims", "-n", namespace):
        owners = [o["name"] for o in claim["metadata"].get("ownerReferences", [])]
        if pod in owners:
            results += claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", [])
    return results


def test_r03_inventory(stack: Stack, nodes: dict[str, Node]) -> None:
    """Per card model, memory, MIG mode, owner, health; per node driver and allocator."""
    status = stack.get("gpunode", "gpu-01")["status"]
    assert (status["gpuCount"], status["allocator"]) == (8, "None")
    assert len({gpu["uuid"] for gpu in status["gpus"]}) == 8
    card = status["gpus"][0]
    assert card["productName"].startswith("NVIDIA H100")
    assert (card["architecture"], card["health"], card["computeCapability"]) == ("Hopper", "Healthy", "9.0")
    assert {p["name"] for p in card["mig"]["profiles"]} >= {"1g.10gb", "3g.40gb", "7g.80gb"}


def test_r03_one_failing_card_hides_no_other(stack: Stack, nodes: dict[str, Node]) -> None:
    """A card falls off the bus; it is named, and the others stay."""
    simulator = stack.simulator("gpu-02")
    # Quiet, so that no XID stays behind: after one a card counts as sick until it was reset.
    simulator.lose(3, quiet=True)
    try:

        def told() -> bool:
            gpus = stack.get("gpunode", "gpu-02")["status"]["gpus"]
            return [g["health"] for g in gpus].count("Healthy") == 7 and len(gpus) == 8

        stack.wait(told, "the lost card told, the others well")
        assert stack.condition("gpunode", "gpu-02", "Healthy")["status"] == "False"
    finally:
        simulator.recover(3)
    stack.wait(lambda: stack.condition("gpunode", "gpu-02", "Healthy")["status"] == "True", "recovered")


def test_r05_no_match_is_loud(stack: Stack, namespace: str) -> None:
    """A product that does not exist: counts 0/0, and the message lists those that do."""
    stack.apply(objects.policy("wrong", pool="train", gpuSelector={"products": ["NVIDIA B300*"]}))
    stack.wait(
        lambda: stack.condition("gpupolicy", "wrong").get("reason") == "NoMatchingDevices",
        "NoMatchingDevices",
    )
    assert "NVIDIA H100" in stack.condition("gpupolicy", "wrong")["message"]
    assert stack.policy_row("wrong")[3] == "0/0"


@pytest.mark.parametrize(
    ("spec", "reason", "words"),
    [
        pytest.param(
            {"sharing": objects.mig({"1g.5gb": 1})}, "InvalidLayout", ["1g.5gb", "1g.10gb"], id="profile"
        ),
        pytest.param(
            {"sharing": objects.mig({"3g.40gb": 2, "1g.10gb": 1})},
            "InvalidLayout",
            ["3g.40gb"],
            id="placements",
        ),
        pytest.param(
            {"gpuSelector": {"cel": "device.nope == 1"}},
            "InvalidSelector",
            ["undefined field 'nope'"],
            id="cel",
        ),
        pytest.param(
            {"sharing": {"strategy": "TimeSlicing", "timeSlicing": {"maxShares": 4}}},
            "NotImplemented",
            ["sharing.strategy", "TimeSlicing"],
            id="not-served",
        ),
    ],
)
def test_r06_what_depends_on_the_cluster_is_refused(
    stack: Stack, namespace: str, spec: dict[str, Any], reason: str, words: list[str]
) -> None:
    """Accepted=False with a reason and the remedy; nothing is touched."""
    writes = stack.simulator("gpu-05").writes()
    stack.apply(objects.policy("bad", pool="infer", **spec))
    stack.wait(lambda: stack.condition("gpupolicy", "bad").get("reason") == reason, reason)
    message = stack.condition("gpupolicy", "bad")["message"]
    assert [word for word in words if word not in message] == [], message
    assert (stack.devices(), stack.simulator("gpu-05").writes()) == ([], writes)


def test_r07_overlap_by_age_and_priority(stack: Stack, namespace: str) -> None:
    """Same priority: the younger is refused and the older unchanged, also after a restart; higher takes over."""
    train(stack)
    stack.apply(objects.policy("younger", pool="train"))
    stack.wait(
        lambda: stack.condition("gpupolicy", "younger").get("reason") == "DeviceConflict", "DeviceConflict"
    )
    assert "train" in stack.condition("gpupolicy", "younger")["message"]
    controller = stack.cluster.find_daemon("controller")
    controller.kill()
    # What stands is no proof that the next one looked: it leads when the lease is over, and makes what is missing.
    stack.kubectl("delete", "deviceclass", "h100")
    controller.start()
    stack.wait(lambda: stack.get("deviceclasses") != [], "the class made again")
    stack.wait_policies("train")
    assert stack.condition("gpupolicy", "younger")["reason"] == "DeviceConflict"
    assert len(stack.devices(policy="train")) == 16

    stack.kubectl("patch", "gpupolicy", "younger", "--type=merge", "-p", '{"spec":{"priority":200}}')
    stack.wait(lambda: len(stack.devices(policy="younger")) == 16, "the higher priority took the cards")
    stack.wait(
        lambda: stack.condition("gpupolicy", "train").get("reason") == "DeviceConflict", "the older says so"
    )
    assert "younger" in stack.condition("gpupolicy", "train")["message"]


def test_r08_r09_a_pod_of_the_device_plugin_runs_unchanged(stack: Stack, namespace: str) -> None:
    """Eight whole cards of one node under the old name, and exactly those inside the container."""
    train(stack)
    assert len(stack.devices(policy="train", type="gpu")) == 16
    stack.apply(objects.pod("job", namespace, limits={"nvidia.com/gpu": 8}))
    stack.wait_pods(namespace, 1)
    job = stack.get("pod", "job", "-n", namespace)
    assert job["status"]["extendedResourceClaimStatus"]["resourceClaimName"]
    on_node = {gpu["uuid"] for gpu in stack.get("gpunode", job["spec"]["nodeName"])["status"]["gpus"]}
    inside = seen_by(stack, namespace, "job")
    assert (len(inside), set(inside)) == (8, on_node)
    environment = stack.kubectl("exec", "-n", namespace, "job", "--", "env")
    assert set(re.findall(r"GPU_DEVICE_\w+=(GPU-\S+)", environment)) == on_node
    stack.wait(lambda: stack.policy_row("train")[4:7] == ["16", "8", "8"], "the counts")


def test_r09_a_pod_sees_its_card_and_no_other(stack: Stack, namespace: str) -> None:
    """One card of eight: one device node, one UUID."""
    train(stack)
    stack.apply(objects.pod("one", namespace, limits={"nvidia.com/gpu": 1}))
    stack.wait_pods(namespace, 1)
    nodes = stack.kubectl("exec", "-n", namespace, "one", "--", "sh", "-c", "ls -d /dev/nvidia[0-9]*").split()
    (result,) = allocated(stack, namespace, "one")
    pool_node = result["pool"].split("/")[0]
    (device,) = [
        d for d in stack.devices(policy="train") if (d["name"], d["node"]) == (result["device"], pool_node)
    ]
    uuid = device["attributes"]["uuid"]["string"]
    assert (len(nodes), seen_by(stack, namespace, "one")) == (1, [uuid])


def test_r18_training_never_gets_slices(stack: Stack, namespace: str) -> None:
    """With MIG beside it, the training class matches whole cards only."""
    train(stack)
    infer(stack)
    stack.apply(
        objects.template("cards", namespace, "h100", count=8),
        objects.pod("a", namespace, template="cards"),
        objects.pod("b", namespace, template="cards"),
        objects.pod("c", namespace, template="cards"),
    )
    stack.wait_pods(namespace, 2)
    results = [r for name in "abc" for r in allocated(stack, namespace, name)]
    assert len(results) == 16
    assert all(r["device"].startswith("gpu-") for r in results)


def test_r20_a_selector_by_attributes(stack: Stack, namespace: str) -> None:
    """Memory and capability select cards; more memory than any card has selects none, without an error."""
    stack.apply(
        objects.policy("big", pool="train", gpuSelector={"minMemory": "79Gi", "minComputeCapability": "9.0"}),
        objects.policy("huge", pool="infer", gpuSelector={"minMemory": "200Gi"}),
    )
    stack.wait_policies("big")
    stack.wait(lambda: stack.condition("gpupolicy", "huge").get("reason") == "NoMatchingDevices", "no match")
    assert stack.policy_row("big")[3] == "16/16"


def test_r21_a_replaced_card(stack: Stack, namespace: str) -> None:
    """A new card in the slot joins the class; the pod on its neighbour does not notice."""
    train(stack)
    stack.apply(objects.pod("stays", namespace, limits={"nvidia.com/gpu": 1}, node="gpu-02"))
    stack.wait_pods(namespace, 1)
    held = seen_by(stack, namespace, "stays")[0]
    simulator = stack.simulator("gpu-02")
    number, old = next(
        (n, g["uuid"]) for n, g in enumerate(simulator.dump()["gpus"]) if g["uuid"] != held and n >= 5
    )
    simulator.swap(number)
    new = simulator.gpu(number)["uuid"]
    assert new != old

    def published() -> set[str]:
        return {
            d["attributes"]["uuid"]["string"] for d in stack.devices(policy="train") if d["node"] == "gpu-02"
        }

    stack.wait(lambda: new in published() and old not in published(), "the new card published")
    stack.wait_policies("train")
    assert len(stack.devices(policy="train")) == 16
    assert stack.get("pod", "stays", "-n", namespace)["status"]["phase"] == "Running"
    assert seen_by(stack, namespace, "stays") == [held]


def test_r22_edits_and_deletion_leave_running_pods_alone(stack: Stack, namespace: str) -> None:
    """A class that changes or goes takes nothing from a pod that runs, and it can end."""
    train(stack)
    stack.apply(objects.pod("runs", namespace, limits={"nvidia.com/gpu": 1}))
    stack.wait_pods(namespace, 1)
    held = seen_by(stack, namespace, "runs")
    stack.kubectl("delete", "gpupolicy", "train")
    stack.wait(lambda: stack.get("deviceclasses") == [], "the class gone")
    stack.wait(
        lambda: all(d["name"] for d in stack.devices()) and len(stack.devices()) <= 1, "free cards withdrawn"
    )
    assert stack.get("pod", "runs", "-n", namespace)["status"]["phase"] == "Running"
    assert seen_by(stack, namespace, "runs") == held
    stack.kubectl("delete", "pod", "runs", "-n", namespace, "--wait=true", "--timeout=120s")


def test_r23_r24_slices_under_the_old_names(stack: Stack, namespace: str) -> None:
    """One class per profile, 8 + 8 + 16 devices, and a pod gets exactly the slice it asked for."""
    infer(stack)
    found = {profile: len(stack.devices(policy="infer", profile=profile)) for profile in objects.H100_LAYOUT}
    assert found == {"3g.40gb": 8, "2g.20gb": 8, "1g.10gb": 16}
    assert stack.policy_row("infer")[1:7] == ["MIG", "1/1", "8/8", "32", "0", "32"]
    stack.apply(objects.pod("slice", namespace, limits={"nvidia.com/mig-1g.10gb": 1}))
    stack.wait_pods(namespace, 1)
    (result,) = allocated(stack, namespace, "slice")
    (device,) = [d for d in stack.devices(profile="1g.10gb") if d["name"] == result["device"]]
    shown = seen_by(stack, namespace, "slice")
    assert [uuid for uuid in shown if uuid.startswith("MIG-")] == [device["attributes"]["uuid"]["string"]]
    caps = stack.kubectl("exec", "-n", namespace, "slice", "--", "ls", "/dev/nvidia-caps").split()
    assert len(caps) == 2
    stack.wait(lambda: stack.policy_row("infer")[5] == "1", "the slice counted")


def test_r25_busy_cards_wait_and_idle_ones_go_on(stack: Stack, namespace: str) -> None:
    """A new layout: the card in use is named with its pod and not written to; the others have it at once."""
    infer(stack)
    stack.apply(objects.pod("busy", namespace, limits={"nvidia.com/mig-3g.40gb": 1}))
    stack.wait_pods(namespace, 1)
    (result,) = allocated(stack, namespace, "busy")
    simulator = stack.simulator("gpu-05")
    before = {
        g["uuid"]: [i for i in g["gpu_instances"] if i["profile"] == "3g.40gb"]
        for g in simulator.dump()["gpus"]
    }
    layout = {"1g.10gb": 7}
    stack.kubectl(
        "patch",
        "gpupolicy",
        "infer",
        "--type=merge",
        "-p",
        json.dumps(
            {
                "spec": {
                    "sharing": objects.mig(layout),
                    "offers": [{"deviceClassName": "h100-1g-10gb", "profile": "1g.10gb"}],
                }
            }
        ),
    )
    stack.wait(
        lambda: len([n for n in range(8) if len(simulator.layout(n)) == 7]) == 7, "seven cards changed"
    )
    stack.wait(
        lambda: stack.condition("gpupolicy", "infer").get("reason") == "WaitingForClaims",
        "the policy says why",
    )
    # The pod, not only a claim whose name begins with the pod's.
    named = re.compile(rf"pod {namespace}/busy\b(?!-)")
    assert named.search(stack.condition("gpupolicy", "infer")["message"])
    gpus = stack.get("gpunode", "gpu-05")["status"]["gpus"]
    (waiting,) = [g for g in gpus if g["reason"] == "WaitingForClaims"]
    assert named.search(waiting["message"])
    now = {
        g["uuid"]: [i for i in g["gpu_instances"] if i["profile"] == "3g.40gb"]
        for g in simulator.dump()["gpus"]
    }
    assert now[waiting["uuid"]] == before[waiting["uuid"]]
    # The busy device stays published, but nobody new gets it.
    (retiring,) = [d for d in stack.devices() if d["name"] == result["device"]]
    assert [t["key"] for t in retiring["taints"]] == ["gpupolicy.dev/retiring"]

    stack.kubectl("delete", "pod", "busy", "-n", namespace, "--grace-period=0", "--force")
    stack.wait_policies("infer")
    assert len(stack.devices(profile="1g.10gb")) == 56


def test_r27_ready_only_when_the_slices_show_it(stack: Stack, namespace: str) -> None:
    """The agent is away while the layout changes: not Ready until the API server shows the devices."""
    infer(stack)
    agent = stack.agent("gpu-05")
    agent.kill()
    stack.kubectl(
        "patch",
        "gpupolicy",
        "infer",
        "--type=merge",
        "-p",
        json.dumps({"spec": {"sharing": objects.mig({"1g.10gb": 7}), "offers": None}}),
    )
    stack.wait(lambda: stack.condition("gpupolicy", "infer").get("status") == "False", "not Ready")
    agent.start()
    stack.wait_policies("infer")
    assert len(stack.devices(profile="1g.10gb")) == 56


def healthy(stack: Stack, bad: str) -> list[dict[str, Any]]:
    """The devices of policy infer on all cards but one."""
    return [d for d in stack.devices(policy="infer") if d["attributes"]["parentUUID"]["string"] != bad]


def test_r28_no_stranded_card(stack: Stack, namespace: str) -> None:
    """Creation fails on one card: it is named, its neighbours are fine, and it heals when the fault is gone."""
    simulator = stack.simulator("gpu-05")
    simulator.add_fault("nvmlGpuInstanceCreateComputeInstance", code=999, gpu=2, count=-1)
    try:
        stack.apply(objects.policy("infer", pool="infer", sharing=objects.mig(objects.H100_LAYOUT)))
        bad = simulator.gpu(2)["uuid"]
        stack.wait(lambda: len(healthy(stack, bad)) == 28, "the other seven cards published")
        stack.wait(lambda: stack.condition("gpupolicy", "infer").get("reason") == "Degraded", "Degraded")

        def reasons() -> dict[str, str]:
            return {g["uuid"]: g["reason"] for g in stack.get("gpunode", "gpu-05")["status"]["gpus"]}

        # The others say so some time after their slices are there.
        stack.wait(lambda: list(reasons().values()).count("Applied") == 7, "the other seven cards done")
        assert reasons()[bad] == "Degraded"
    finally:
        simulator.clear_faults()
    stack.wait_policies("infer", seconds=240)
    assert len(stack.devices(policy="infer")) == 32


def test_r29_reboot(stack: Stack, namespace: str, nodes: dict[str, Node]) -> None:
    """The layout is back before anything is published, and the counts are."""
    infer(stack)
    agent = stack.agent("gpu-05")
    agent.kill()
    stack.simulator("gpu-05").reboot()
    assert stack.simulator("gpu-05").layout(0) == []
    agent.start()
    stack.wait(
        lambda: all(len(stack.simulator("gpu-05").layout(n)) == 4 for n in range(8)), "the layout is back"
    )
    live = {i["uuid"] for g in stack.simulator("gpu-05").dump()["gpus"] for i in migs(g)}
    # Until the agent has published them, slices and status tell of the boot before.
    stack.wait(
        lambda: {d["attributes"]["uuid"]["string"] for d in stack.devices(policy="infer")} == live,
        "the instances of this boot published",
    )
    stack.wait_policies("infer")
    found = {profile: len(stack.devices(policy="infer", profile=profile)) for profile in objects.H100_LAYOUT}
    assert found == {"3g.40gb": 8, "2g.20gb": 8, "1g.10gb": 16}


def migs(gpu: dict[str, Any]) -> list[dict[str, Any]]:
    """The MIG devices of a simulated card."""
    return [ci for gi in gpu["gpu_instances"] for ci in gi["compute_instances"]]


def prepares_refused(stack: Stack, namespace: str) -> list[str]:
    """What kubelets tell of claims that were not prepared when they asked for it."""
    events = stack.get("events", "-n", namespace)
    return [e.get("message", "") for e in events if e["reason"] == "FailedPrepareDynamicResources"]


def test_eight_pods_made_again_at_once(stack: Stack, namespace: str) -> None:
    """Delete eight one-card pods with grace period 0 and make them again: all run, and none waits for a kubelet retry."""
    train(stack)
    pods = [objects.pod(f"p{n}", namespace, limits={"nvidia.com/gpu": 1}, node="gpu-01") for n in range(8)]
    stack.apply(*pods)
    stack.wait_pods(namespace, 8)
    stack.kubectl("delete", "pods", "--all", "-n", namespace, "--grace-period=0", "--force")
    stack.apply(*pods)
    stack.wait_pods(namespace, 8, seconds=240)
    assert prepares_refused(stack, namespace) == []


def test_a_hostile_configuration_fails_its_claim_only(stack: Stack, namespace: str) -> None:
    """The pod's event names the field; a pod beside it runs."""
    train(stack)
    stack.apply(
        objects.template(
            "evil", namespace, "h100", config={"apiVersion": "x", "kind": "GpuConfig", "rm": "-rf /"}
        ),
        objects.template("good", namespace, "h100"),
        objects.pod("evil", namespace, template="evil"),
        objects.pod("good", namespace, template="good"),
    )
    stack.wait_pods(namespace, 1)

    def told() -> bool:
        events = stack.get("events", "-n", namespace)
        return any(
            "config[0]" in e.get("message", "")
            and e["regarding" if "regarding" in e else "involvedObject"]["name"] == "evil"
            for e in events
        )

    stack.wait(told, "the reason in the pod's events")
    assert prepares_refused(stack, namespace) != []
    stack.kubectl("delete", "pod", "evil", "-n", namespace, "--timeout=120s")


def test_the_kubelet_restarts(stack: Stack, namespace: str, nodes: dict[str, Node]) -> None:
    """It wipes the slices of its node; they come back, and pods start again."""
    train(stack)

    def uids() -> set[str]:
        return {
            s["metadata"]["uid"] for s in stack.get("resourceslices") if s["spec"].get("nodeName") == "gpu-01"
        }

    before = uids()
    nodes["gpu-01"].restart_kubelet()
    # On a busy machine it comes to that many seconds later.
    stack.wait(lambda: not before & uids(), "the slices wiped")
    stack.wait(lambda: len(stack.devices(policy="train")) == 16, "the slices are back")
    stack.apply(objects.pod("after", namespace, limits={"nvidia.com/gpu": 1}, node="gpu-01"))
    stack.wait_pods(namespace, 1)
    stack.wait(lambda: len(stack.devices(policy="train")) == 16, "they stay")


def test_the_agent_is_killed_under_running_pods(stack: Stack, namespace: str) -> None:
    """Kill -9, start again: the pod runs on with its card, nobody else gets it, and it ends normally."""
    train(stack)
    stack.apply(objects.pod("held", namespace, limits={"nvidia.com/gpu": 7}, node="gpu-01"))
    stack.wait_pods(namespace, 1)
    agent = stack.agent("gpu-01")
    agent.kill()
    agent.start()
    stack.apply(objects.pod("next", namespace, limits={"nvidia.com/gpu": 1}, node="gpu-01"))
    # A kubelet that found nobody at the socket asks again after 60 to 90 seconds.
    stack.wait_pods(namespace, 2, seconds=240)
    assert not set(seen_by(stack, namespace, "held")) & set(seen_by(stack, namespace, "next"))
    stack.kubectl("delete", "pods", "--all", "-n", namespace, "--timeout=120s")


def test_the_api_server_is_away_during_a_change(stack: Stack, namespace: str) -> None:
    """It comes back and everything converges."""
    infer(stack)
    stack.kubectl(
        "patch",
        "gpupolicy",
        "infer",
        "--type=merge",
        "-p",
        json.dumps({"spec": {"sharing": objects.mig({"1g.10gb": 7}), "offers": None}}),
    )
    server = stack.cluster.control_plane.api_server
    server.pause()
    try:
        server.wait(20)
    finally:
        server.resume()
    stack.cluster.control_plane.wait_ready()
    stack.wait_policies("infer", seconds=240)
    assert len(stack.devices(profile="1g.10gb")) == 56


@pytest.mark.slow
def test_the_api_server_is_away_for_a_minute_during_prepare(stack: Stack, namespace: str) -> None:
    """The prepare waits, is refused with a reason, and succeeds when the kubelet asks again."""
    train(stack)
    agent, server = stack.agent("gpu-01"), stack.cluster.control_plane.api_server
    # The agent sleeps while the pod is scheduled, so that its prepare falls into the outage.
    agent.pause()
    try:
        stack.apply(objects.pod("late", namespace, limits={"nvidia.com/gpu": 2}, node="gpu-01"))
        stack.wait(lambda: len(allocated(stack, namespace, "late")) == 2, "the claim allocated")
        server.pause()
        agent.resume()
        server.wait(60)
    finally:
        agent.resume()
        server.resume()
    stack.cluster.control_plane.wait_ready()
    stack.wait_pods(namespace, 1, seconds=300)
    assert len(seen_by(stack, namespace, "late")) == 2
    stack.wait_policies("train")
