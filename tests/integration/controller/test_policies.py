"""Policies on a real API server: classes, assignments, counts, and what a person reads (R5, R7, R22, R25, R27, R44)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.integration.controller.conftest import POLICIES, World
from tests.integration.controller.stand_in import GPUNODES, h100

pytestmark = pytest.mark.cluster

TRAIN = {
    "priority": 100,
    "nodeSelector": {"matchLabels": {"gpu-pool": "train"}},
    "gpuSelector": {"products": ["NVIDIA H100*"], "minMemory": "79Gi", "minComputeCapability": "9.0"},
    "offers": [{"deviceClassName": "h100", "extendedResourceName": "nvidia.com/gpu"}],
}
LAYOUT = [
    {"profile": "3g.40gb", "count": 1},
    {"profile": "2g.20gb", "count": 1},
    {"profile": "1g.10gb", "count": 2},
]
INFER = {
    "nodeSelector": {"matchLabels": {"gpu-pool": "infer"}},
    "sharing": {"strategy": "MIG", "mig": {"layout": LAYOUT}},
}
SHORT = {"nodeSelector": {"matchLabels": {"gpu-pool": "short"}}}


def wait_columns(world: World, policy: str, *expected: str, first: int = 0) -> None:
    """Wait until the row of `kubectl get gpupolicies` holds these words, from the column `first` on.

    What a row is made of comes by several watches, so it may be right in one column before it is in the next.
    """
    seen: list[str] = []

    def shown() -> bool:
        seen[:] = world.cluster.kubectl("get", "gpupolicies", policy, "--no-headers").split()
        return seen[first : first + len(expected)] == list(expected)

    try:
        world.wait(f"the row of {policy}", shown)
    finally:
        assert seen[first : first + len(expected)] == list(expected)


def test_three_policies_on_eight_nodes_tell_the_truth_also_while_they_roll_out(world: World) -> None:
    """R44, R8, R23, R27: the table equals a hand count of slices and claims at every step."""
    world.pools()
    world.start_controller()
    for name, spec in (("train", TRAIN), ("infer", INFER), ("short", SHORT)):
        world.policy(name, spec)
    for number in range(1, 9):
        policy = "train" if number <= 4 else "infer" if number <= 7 else "short"
        world.assigned(f"gpu-{number:02}", policy, 8)

    for number in (1, 2, 3, 5, 6, 7, 8):
        world.nodes[f"gpu-{number:02}"].converge()
    world.wait_reason("infer", "Ready")
    assert world.wait_counts("train") == (24, 0, 24)
    wait_columns(world, "train", "train", "Exclusive", "3/4", "24/32", "24", "0", "24", "False")
    assert world.wait_reason("train", "RolloutPending")["message"].startswith(
        "RolloutPending on gpu-04: cards 0-7"
    )

    world.claim("job-1", [("gpu-01", f"gpu-{i}") for i in range(8)], class_name="h100")
    world.claim("job-2", [("gpu-02", f"gpu-{i}") for i in range(8)], class_name="h100")
    world.claim("one", [("gpu-08", "gpu-3")], class_name="short")
    for number in range(61):
        device = (f"gpu-{5 + number // 32:02}", f"mig-{number % 32 // 4}-{number % 4}")
        world.claim(f"slice-{number}", [device], class_name="infer-1g-10gb")
    assert world.wait_counts("train") == (24, 16, 8)
    assert world.wait_counts("infer") == (96, 61, 35)
    wait_columns(world, "train", "train", "Exclusive", "3/4", "24/32", "24", "16", "8", "False")
    wait_columns(world, "infer", "infer", "MIG", "3/3", "24/24", "96", "61", "35", "True")
    wait_columns(world, "short", "short", "Exclusive", "1/1", "8/8", "8", "1", "7", "True")

    per_class = {c["name"]: c["devices"] for c in world.status("infer")["deviceClasses"]}
    assert per_class == {"infer-3g-40gb": 24, "infer-2g-20gb": 24, "infer-1g-10gb": 48}

    world.nodes["gpu-04"].carry_out()
    world.wait_reason("train", "WaitingForSlices")
    world.nodes["gpu-04"].publish()
    world.wait_reason("train", "Ready")
    assert world.wait_counts("train") == (32, 16, 16)
    for number in range(0, 61, 7):
        world.release(f"slice-{number}")
    assert world.wait_counts("infer") == (96, 52, 44)


def test_stale_slices_keep_a_policy_from_being_ready(world: World) -> None:
    """R27: also when the agent says that all is well."""
    world.add_node("gpu-01", cards=2, gpu_pool="short")
    world.start_controller()
    world.policy("short", SHORT)
    world.assigned("gpu-01", "short", 2)
    node = world.nodes["gpu-01"]
    node.converge()
    world.wait_reason("short", "Ready")

    node.publish(node.devices()[:1])

    world.wait_reason("short", "WaitingForSlices")
    wait_columns(world, "short", "0/1", "1/2", first=2)


def test_who_is_in_the_way_of_a_layout_is_told_card_by_card(world: World) -> None:
    """R25: the agent names claims and pods, the policy shows them; idle cards go on."""
    world.add_node("gpu-01", cards=2, gpu_pool="infer")
    world.start_controller()
    world.policy("infer", INFER)
    world.assigned("gpu-01", "infer", 2)
    node = world.nodes["gpu-01"]
    node.carry_out(only={1})
    node.cards[0] |= {
        "reason": "WaitingForClaims",
        "message": "waits for 1g.10gb@6:1 used by claim a/b (pod a/web-0)",
    }
    node.report()
    node.publish()

    ready = world.wait_reason("infer", "WaitingForClaims")

    assert (
        "WaitingForClaims on gpu-01: card 0: waits for 1g.10gb@6:1 used by claim a/b (pod a/web-0)"
        in ready["message"]
    )
    # Cards are told by the agent, devices by the slices, which are another watch.
    world.wait(
        "the devices", lambda: (world.status("infer")["gpus"], world.counted("infer")[0]) == ("1/2", 4)
    )
    (line,) = world.status("infer")["plan"]
    assert (line["selected"], line["applied"], line["reason"]) == (2, 1, "WaitingForClaims")


def test_a_selector_that_matches_nothing_lists_what_exists(world: World) -> None:
    """R5."""
    world.add_node("gpu-01", cards=2, gpu_pool="train")
    world.start_controller()

    world.policy("typo", {"gpuSelector": {"products": ["NVIDIA H200*"]}})
    world.policy("lost", {"nodeSelector": {"matchLabels": {"gpu-pool": "trian"}}})

    typo = world.wait_reason("typo", "NoMatchingDevices")
    assert "products: NVIDIA H100 80GB HBM3" in typo["message"]
    wait_columns(world, "typo", "0/0", "0/0", first=2)
    assert "gpu-pool: train" in world.wait_reason("lost", "NoMatchingNodes")["message"]


@pytest.mark.parametrize(
    ("spec", "reason", "texts"),
    [
        pytest.param(
            {"gpuSelector": {"cel": "device.nope"}},
            "InvalidSelector",
            ["spec.gpuSelector.cel", "ERROR: <input>:1:7: undefined field 'nope'"],
            id="expression-that-the-api-server-refuses",
        ),
        pytest.param(
            {"sharing": {"strategy": "MIG", "mig": {"layout": [{"profile": "1g.5gb", "count": 7}]}}},
            "InvalidLayout",
            ['no profile "1g.5gb"', "1g.10gb (up to 7)"],
            id="profile-of-another-card",
        ),
        pytest.param(
            {
                "sharing": {
                    "strategy": "MIG",
                    "mig": {
                        "layout": [{"profile": "3g.40gb", "count": 2}, {"profile": "1g.10gb", "count": 1}]
                    },
                }
            },
            "InvalidLayout",
            ["3g.40gb x2", "it would fit with"],
            id="layout-that-never-fits",
        ),
        pytest.param(
            {"sharing": {"strategy": "TimeSlicing", "timeSlicing": {"maxShares": 4}}},
            "NotImplemented",
            ["spec.sharing.strategy: TimeSlicing"],
            id="not-served",
        ),
    ],
)
def test_a_refused_policy_says_why_and_touches_nothing(
    world: World, spec: dict[str, Any], reason: str, texts: list[str]
) -> None:
    world.add_node("gpu-01", cards=2)
    world.start_controller()

    world.policy("wrong", spec)

    ready = world.wait_reason("wrong", reason)
    assert [t for t in texts if t not in ready["message"]] == []
    assert world.condition("wrong", "Accepted")["status"] == "False"
    assert world.classes() == {}
    assert world.nodes["gpu-01"].assignments() == {}


def test_an_own_expression_selects_cards(world: World) -> None:
    """R20: an attribute that a card lacks is no match, and no error."""
    world.add_node("gpu-01", cards=2)
    world.nodes["gpu-01"].cards[1].pop("memory")
    world.nodes["gpu-01"].report()
    world.start_controller()

    memory = 'device.capacity["gpu.gpupolicy.dev"].memory.compareTo(quantity("79Gi")) >= 0'
    world.policy("large", {"gpuSelector": {"cel": memory}})
    world.assigned("gpu-01", "large", 1)
    world.policy(
        "typo", {"priority": 1, "gpuSelector": {"cel": 'device.attributes["gpu.gpupolicy.dev"].nope == 1'}}
    )

    assert set(world.nodes["gpu-01"].assignments()) == {"GPU-gpu-01-0"}
    # The node's spec is written before the status of the policy.
    world.wait(
        "the failing card in the status",
        lambda: "on 1 card, the CEL expression fails" in world.condition("large", "Accepted")["message"],
    )
    assert "no such key: nope" in world.wait_reason("typo", "InvalidSelector")["message"]
    world.assigned("gpu-01", "large", 1)


def test_an_edit_that_is_refused_leaves_what_stands(world: World) -> None:
    world.add_node("gpu-01", cards=2)
    world.start_controller()
    world.policy("infer", INFER | {"nodeSelector": {}})
    world.assigned("gpu-01", "infer", 2)
    node = world.nodes["gpu-01"]
    node.converge()
    world.wait_reason("infer", "Ready")
    before, classes = node.assignments(), world.classes()

    world.policy("infer", INFER | {"nodeSelector": {}, "adopt": True})
    world.policy("younger", {})

    world.wait_reason("infer", "NotImplemented")
    world.wait_reason("younger", "DeviceConflict")
    assert node.assignments() == before
    assert {n: c["spec"] for n, c in world.classes().items() if n in classes} == {
        n: c["spec"] for n, c in classes.items()
    }
    assert world.status("infer")["devices"] == 8
    world.policy("infer", INFER | {"nodeSelector": {}})
    world.wait_reason("infer", "Ready")


def test_of_two_policies_for_the_same_cards_the_older_keeps_them(world: World) -> None:
    """R7, also after a restart; and with a priority the other one takes them."""
    world.add_node("gpu-01", cards=2)
    first = world.start_controller()
    world.policy("older", {})
    world.assigned("gpu-01", "older", 2)
    world.policy("younger", INFER | {"nodeSelector": {}})

    message = world.wait_reason("younger", "DeviceConflict")["message"]
    assert "on gpu-01, cards 0-1 belong to policy older" in message
    world.wait(
        "the older to be told",
        lambda: "which the younger policy younger also" in world.condition("older", "Accepted")["message"],
    )
    assert world.condition("older", "Accepted")["status"] == "True"
    wait_columns(world, "younger", "0/1", "0/2", first=2)

    first.stop()
    before = world.nodes["gpu-01"].assignments()
    world.start_controller()
    world.wait("a new event of the restarted one", lambda: _is_leader(world, "test-2"))
    world.policy("third", {"nodeSelector": {"matchLabels": {"no": "where"}}})
    world.wait_reason("third", "NoMatchingNodes")
    assert world.condition("younger")["reason"] == "DeviceConflict"
    assert world.nodes["gpu-01"].assignments() == before

    world.policy("younger", INFER | {"nodeSelector": {}, "priority": 10})
    world.assigned("gpu-01", "younger", 2)
    assert "higher priority 10" in world.wait_reason("older", "DeviceConflict")["message"]
    world.wait(
        "the winner says so",
        lambda: "takes cards 0-1 from policy older" in world.condition("younger", "Accepted")["message"],
    )


def _is_leader(world: World, identity: str) -> bool:
    lease = world.admin.get(
        "/apis/coordination.k8s.io/v1/namespaces/gpupolicy-system/leases/gpupolicy-controller"
    )
    return lease["spec"]["holderIdentity"] == identity


def test_a_deleted_policy_lets_go_and_names_the_claims_that_still_hold(world: World) -> None:
    """R22, and the bad input 'policy deleted while claims are allocated'."""
    world.add_node("gpu-01", cards=2)
    world.start_controller()
    world.policy("train", {})
    world.assigned("gpu-01", "train", 2)
    world.nodes["gpu-01"].converge()
    world.wait_reason("train", "Ready")
    world.claim("job", [("gpu-01", "gpu-1")], class_name="train")
    assert world.wait_counts("train") == (2, 1, 1)

    world.admin.delete(f"{POLICIES}/train")

    world.wait("the class to go", lambda: "train" not in world.classes())
    world.wait("the cards to be let go", lambda: world.nodes["gpu-01"].assignments() == {})
    world.wait(
        "the event", lambda: [e for e in world.events("GpuNode", "gpu-01") if e["reason"] == "PolicyGone"]
    )
    (event,) = [e for e in world.events("GpuNode", "gpu-01") if e["reason"] == "PolicyGone"]
    assert "policy train is gone; 2 card(s) are let go; still held by default/job" in event["note"]
    assert event["type"] == "Warning"
    held = world.admin.get("/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/job")
    assert held["status"]["allocation"]["devices"]["results"][0]["device"] == "gpu-1"


def test_claims_from_before_a_change_of_the_class_are_counted(world: World) -> None:
    """R22."""
    world.add_node("gpu-01", cards=2)
    world.start_controller()
    layout = [{"profile": "1g.10gb", "count": 2}, {"profile": "2g.20gb", "count": 1}]
    sharing = {"strategy": "MIG", "mig": {"layout": layout}}
    world.policy("p", {"sharing": sharing, "offers": [{"deviceClassName": "c", "profile": "1g.10gb"}]})
    world.assigned("gpu-01", "p", 2)
    world.nodes["gpu-01"].converge()
    world.wait_reason("p", "Ready")
    world.claim("old", [("gpu-01", "mig-0-0")], class_name="c")
    world.wait_counts("p")
    assert world.status("p")["deviceClasses"][0]["claimsOnPreviousRevision"] == 0
    # Times of allocation have whole seconds.
    before = world.classes()["c"]["metadata"]["annotations"]["gpupolicy.dev/changed-at"]

    def changed() -> bool:
        world.policy("p", {"sharing": sharing, "offers": [{"deviceClassName": "c", "profile": "1g.10gb"}]})
        world.policy("p", {"sharing": sharing, "offers": [{"deviceClassName": "c", "profile": "2g.20gb"}]})
        annotations = world.classes()["c"]["metadata"]["annotations"]
        created = world.admin.get("/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/old")
        return annotations["gpupolicy.dev/changed-at"] > max(before, created["metadata"]["creationTimestamp"])

    world.wait("a change of the class in a later second", changed)
    world.wait("the count", lambda: world.status("p")["deviceClasses"][0]["claimsOnPreviousRevision"] == 1)


def test_a_policy_that_only_plans_writes_nothing_and_shows_all(world: World) -> None:
    """R4, as far as this release goes."""
    world.add_node("gpu-01", cards=2)
    world.start_controller()
    before = world.cluster.control_plane.audit_position()

    world.policy("infer", INFER | {"nodeSelector": {}, "rollout": {"mode": "Plan"}})

    world.wait_reason("infer", "Planned")
    world.wait("the plan", lambda: world.status("infer")["plan"][0]["actions"])
    (line,) = world.status("infer")["plan"]
    assert line["selected"] == 2
    assert line["actions"][0].startswith(
        "card 0: becomes 2x1g.10gb 1x2g.20gb 1x3g.40gb; MIG mode on; create "
    )
    shown = [e["manifest"] for e in world.status("infer")["examples"] if e["name"].startswith("DeviceClass ")]
    assert len(shown) == 3
    assert 'name: "infer-3g-40gb"' in shown[0]
    world.wait_quiet()
    written = world.written(after=before)
    assert {(w["objectRef"]["resource"], w["objectRef"].get("subresource")) for w in written} == {
        ("gpupolicies", "status"),
        ("events", None),
    }

    world.policy("infer", INFER | {"nodeSelector": {}, "rollout": {"mode": "Apply"}})
    world.assigned("gpu-01", "infer", 2)
    world.wait("the classes", lambda: len(world.classes()) == 3)


def test_a_replaced_card_is_an_event_and_nothing_else(world: World) -> None:
    """R21: the class stays, the other cards stay."""
    world.add_node("gpu-01", cards=2)
    world.start_controller()
    world.policy("train", {})
    world.assigned("gpu-01", "train", 2)
    node = world.nodes["gpu-01"]
    node.converge()
    world.wait_reason("train", "Ready")
    before = world.classes()["train"]["metadata"]["resourceVersion"]

    node.cards[1] = h100("gpu-01", 1) | {"uuid": "GPU-new"}
    node.report()

    world.wait("the new card", lambda: set(node.assignments()) == {"GPU-gpu-01-0", "GPU-new"})
    world.wait(
        "the event", lambda: any("no longer there" in e["note"] for e in world.events("GpuNode", "gpu-01"))
    )
    node.converge()
    world.wait_reason("train", "Ready")
    assert world.classes()["train"]["metadata"]["resourceVersion"] == before


def test_a_blind_agent_loses_no_assignment(world: World) -> None:
    """An NVML outage shows no cards; what the node is to be stays."""
    world.add_node("gpu-01", cards=2)
    world.start_controller()
    world.policy("train", {})
    world.assigned("gpu-01", "train", 2)
    node = world.nodes["gpu-01"]
    node.converge()
    world.wait_reason("train", "Ready")

    cards, node.cards, node.observed = node.cards, [], "Unknown"
    node.report()

    world.wait_reason("train", "NvmlUnavailable")
    assert len(node.assignments()) == 2
    node.cards, node.observed = cards, "True"
    node.report()
    world.wait_reason("train", "Ready")


def test_an_agent_that_falls_silent_makes_ready_unknown(world: World) -> None:
    world.add_node("gpu-01", cards=2)
    node = world.nodes["gpu-01"]

    def wait_speaking(what: str, condition: Callable[[], bool]) -> None:
        """Wait while the agent goes on reporting: however slow all others are, it is not silent."""

        def holds() -> bool:
            node.report()
            return condition()

        world.wait(what, holds)

    world.start_controller("--stale-after-seconds", "8")
    world.policy("train", {})
    wait_speaking("the cards assigned", lambda: len(node.assignments()) == 2)
    node.converge()
    wait_speaking("train: Ready", lambda: bool(world.condition("train")["reason"] == "Ready"))

    world.wait_reason("train", "Stale")

    assert world.condition("train")["status"] == "Unknown"
    wait_speaking("train: Ready again", lambda: bool(world.condition("train")["reason"] == "Ready"))


def test_a_node_whose_labels_change_changes_hands(world: World) -> None:
    world.add_node("gpu-01", cards=2, gpu_pool="train")
    world.start_controller()
    world.policy("train", TRAIN)
    world.policy("infer", INFER)
    world.assigned("gpu-01", "train", 2)

    world.admin.patch("/api/v1/nodes/gpu-01", {"metadata": {"labels": {"gpu-pool": "infer"}}})

    world.assigned("gpu-01", "infer", 2)
    world.wait(
        "the event",
        lambda: any("cards 0-1: train -> infer" in e["note"] for e in world.events("GpuNode", "gpu-01")),
    )
    world.wait_reason("train", "NoMatchingNodes")


def test_a_card_selector_of_four_cards_a_node(world: World) -> None:
    world.add_node("gpu-01")
    world.start_controller()

    world.policy("half", {"gpusPerNode": 4, "priority": 1})
    world.policy("rest", {})

    world.assigned("gpu-01", "half", 4)
    world.assigned("gpu-01", "rest", 4)
    found = {a["uuid"][-1]: a["policy"] for a in world.nodes["gpu-01"].assignments().values()}
    assert [found[str(i)] for i in range(8)] == ["half"] * 4 + ["rest"] * 4
    assert "4 cards" not in world.admin.get(f"{GPUNODES}/gpu-01")["spec"]
    # Nodes and policies are worked on side by side.
    world.wait("the classes", lambda: world.classes().keys() == {"half", "rest"})
