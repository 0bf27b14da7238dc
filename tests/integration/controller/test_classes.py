"""DeviceClasses on a real API server: drift, names that others have, names that are handed on (R10, R46, R51)."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.control_plane import ControlPlaneOptions
from tests.integration.controller.conftest import CLASSES, POLICIES, World, install

pytestmark = pytest.mark.cluster

OFFER = {"deviceClassName": "h100", "extendedResourceName": "nvidia.com/gpu"}
TAKEN_BY = "gpupolicy.dev/name-taken-by"


def foreign(world: World, name: str, resource: str | None = None) -> dict[str, Any]:
    """Make a class of somebody else's."""
    spec: dict[str, Any] = {"selectors": [{"cel": {"expression": "true"}}]}
    if resource is not None:
        spec["extendedResourceName"] = resource
    made: dict[str, Any] = world.admin.create(CLASSES, {"metadata": {"name": name}, "spec": spec})
    return made


def drifts(world: World) -> list[str]:
    return [e["note"] for e in world.events("GpuPolicy", "p") if e["reason"] == "Drift"]


EDITS: list[Any] = [
    pytest.param({"spec": {"selectors": [{"cel": {"expression": "true"}}]}}, "spec.selectors", id="selector"),
    pytest.param(
        {"spec": {"extendedResourceName": "example.com/x"}}, "spec.extendedResourceName", id="renamed"
    ),
    pytest.param({"spec": {"extendedResourceName": None}}, "spec.extendedResourceName", id="name-removed"),
    pytest.param(
        {"spec": {"config": [{"opaque": {"driver": "gpu.gpupolicy.dev", "parameters": {"a": 1}}}]}},
        "spec.config",
        id="config",
    ),
    pytest.param({"metadata": {"labels": {"gpupolicy.dev/policy": "q"}}}, "metadata.labels", id="label"),
    pytest.param({"metadata": {"ownerReferences": []}}, "metadata.ownerReferences", id="owner"),
]


@pytest.mark.parametrize(("edit", "field"), EDITS)
def test_an_edited_class_is_put_right_with_an_event(world: World, edit: dict[str, Any], field: str) -> None:
    world.start_controller()
    world.policy("p", {"offers": [OFFER]})
    world.wait("the class", lambda: "h100" in world.classes())
    before = world.classes()["h100"]
    world.wait("a status", lambda: world.status("p")["deviceClasses"])

    world.admin.patch(f"{CLASSES}/h100", edit)

    def healed() -> bool:
        now = world.classes()["h100"]
        kept = ("labels", "annotations", "ownerReferences", "uid")
        return now["spec"] == before["spec"] and all(
            now["metadata"].get(k) == before["metadata"][k] for k in kept
        )

    world.wait("the class to be put right", healed)
    world.wait(
        "the event",
        lambda: any(f"h100 was changed by somebody else ({field})" in note for note in drifts(world)),
    )


def test_a_deleted_class_comes_back_with_an_event(world: World) -> None:
    world.start_controller()
    world.policy("p", {"offers": [OFFER]})
    world.wait("the class", lambda: "h100" in world.classes())
    before = world.classes()["h100"]
    world.wait("a status", lambda: world.status("p")["deviceClasses"])

    world.admin.delete(f"{CLASSES}/h100")

    world.wait(
        "another class", lambda: world.classes()["h100"]["metadata"]["uid"] != before["metadata"]["uid"]
    )
    assert world.classes()["h100"]["spec"] == before["spec"]
    world.wait("the event", lambda: any("was deleted by somebody else" in note for note in drifts(world)))


def test_what_others_add_to_a_class_stays(world: World) -> None:
    """R51: labels of a GitOps tool are none of our business, and nothing is written because of them."""
    world.start_controller()
    world.policy("p", {"offers": [OFFER]})
    world.wait("the class", lambda: "h100" in world.classes())

    world.admin.patch(f"{CLASSES}/h100", {"metadata": {"labels": {"team": "a"}}})
    version = world.classes()["h100"]["metadata"]["resourceVersion"]
    world.policy("q", {})
    world.wait("another policy's class", lambda: "q" in world.classes())
    world.wait_reason("q", "NoMatchingNodes")
    world.wait_quiet()

    assert world.classes()["h100"]["metadata"]["resourceVersion"] == version
    assert drifts(world) == []


def test_the_class_name_of_somebody_else_is_not_taken(world: World) -> None:
    standing = foreign(world, "h100")
    world.start_controller()

    world.policy("p", {"offers": [OFFER, {"deviceClassName": "other"}]})

    message = world.wait_reason("p", "ResourceNameConflict")["message"]
    assert "DeviceClass h100 exists and was not made by GpuPolicy" in message
    assert world.classes().keys() == {"h100"}
    assert world.classes()["h100"] == {k: v for k, v in standing.items() if k in ("metadata", "spec")}
    world.admin.delete(f"{CLASSES}/h100")
    world.wait("our classes", lambda: world.classes().keys() == {"h100", "other"})


def test_an_extended_name_that_is_taken_is_given_back(world: World) -> None:
    """R10, through to the end: taken only when asked, marked, and given back when the policy goes."""
    foreign(world, "legacy", "nvidia.com/gpu")
    world.start_controller()
    world.policy("p", {"offers": [OFFER]})

    message = world.wait_reason("p", "ResourceNameConflict")["message"]
    assert (
        "nvidia.com/gpu is the extendedResourceName of DeviceClass legacy (was not made by GpuPolicy)"
        in message
    )
    assert "h100 would be the newest and win it" in message
    assert "takeOver: true" in message
    assert world.classes().keys() == {"legacy"}

    world.policy("p", {"offers": [OFFER | {"takeOver": True}]})
    world.wait("our class", lambda: "h100" in world.classes())
    world.wait("the mark", lambda: world.classes()["legacy"]["metadata"]["annotations"][TAKEN_BY] == "h100")
    world.wait(
        "who wins and why",
        lambda: "h100 is the newest and wins it" in world.condition("p", "Accepted")["message"],
    )
    version = world.classes()["legacy"]["metadata"]["resourceVersion"]

    world.admin.delete(f"{POLICIES}/p")

    world.wait("our class to go", lambda: world.classes().keys() == {"legacy"})
    world.wait(
        "the mark to go", lambda: TAKEN_BY not in world.classes()["legacy"]["metadata"].get("annotations", {})
    )
    legacy = world.classes()["legacy"]
    assert legacy["metadata"]["resourceVersion"] != version
    assert legacy["spec"]["extendedResourceName"] == "nvidia.com/gpu"
    world.wait(
        "both events",
        lambda: (
            sorted(e["reason"] for e in world.events("DeviceClass", "legacy"))
            == ["NameReturned", "NameTaken"]
        ),
    )


def test_a_name_is_given_back_although_nobody_was_there_when_the_class_went(world: World) -> None:
    foreign(world, "legacy", "nvidia.com/gpu")
    first = world.start_controller()
    world.policy("p", {"offers": [OFFER | {"takeOver": True}]})
    world.wait("the mark", lambda: world.classes()["legacy"]["metadata"]["annotations"][TAKEN_BY] == "h100")
    first.kill()
    world.admin.delete(f"{POLICIES}/p")
    world.wait("our class to go", lambda: world.classes().keys() == {"legacy"})

    world.admin.call(
        "DELETE", "/apis/coordination.k8s.io/v1/namespaces/gpupolicy-system/leases/gpupolicy-controller"
    )
    world.start_controller()

    world.wait(
        "the mark to go", lambda: TAKEN_BY not in world.classes()["legacy"]["metadata"].get("annotations", {})
    )


def test_an_offer_that_is_renamed_hands_its_extended_name_on(world: World) -> None:
    world.start_controller()
    world.policy("p", {"offers": [OFFER]})
    world.wait("the class", lambda: "h100" in world.classes())

    world.policy("p", {"offers": [OFFER | {"deviceClassName": "renamed"}]})

    world.wait("the other class", lambda: world.classes().keys() == {"renamed"})
    assert world.classes()["renamed"]["spec"]["extendedResourceName"] == "nvidia.com/gpu"
    world.wait("the event", lambda: "ClassDeleted" in [e["reason"] for e in world.events("GpuPolicy", "p")])


def test_two_policies_that_want_one_class_name(world: World) -> None:
    world.start_controller()
    world.policy("p", {"offers": [OFFER]})
    world.wait("the class", lambda: "h100" in world.classes())
    version = world.classes()["h100"]["metadata"]["resourceVersion"]

    world.policy("q", {"offers": [{"deviceClassName": "h100"}]})

    assert "belongs to policy p" in world.wait_reason("q", "ResourceNameConflict")["message"]
    assert world.classes()["h100"]["metadata"]["resourceVersion"] == version


def test_a_class_that_the_api_server_refuses_is_told_in_its_words(world: World) -> None:
    """What no schema of ours refuses: a prefix that is too long for a name."""
    world.start_controller()
    long = ".".join(["a" * 60] * 5)

    world.policy("p", {"offers": [{"deviceClassName": "c", "extendedResourceName": f"{long}/gpu"}]})

    message = world.wait_reason("p", "InvalidPolicy")["message"]
    assert "the API server refuses a DeviceClass of this policy" in message
    assert "spec.extendedResourceName" in message
    world.policy("p", {"offers": [{"deviceClassName": "c"}]})
    world.wait("the class", lambda: "c" in world.classes())


def test_a_missing_right_is_told(world: World) -> None:
    """Somebody took deviceclasses out of the ClusterRole."""
    path = "/apis/rbac.authorization.k8s.io/v1/clusterroles/gpupolicy-controller"
    role = world.admin.get(path)
    rules = [r for r in role["rules"] if "deviceclasses" not in r["resources"]]
    read = {
        "apiGroups": ["resource.k8s.io"],
        "resources": ["deviceclasses"],
        "verbs": ["get", "list", "watch"],
    }
    world.admin.patch(path, {"rules": [*rules, read]})
    try:
        world.wait_right("gpupolicy-controller", "patch", "deviceclasses.resource.k8s.io", allowed=False)
        world.start_controller()
        world.policy("p", {})
        assert "check its ClusterRole" in world.wait_reason("p", "Degraded")["message"]
    finally:
        world.admin.patch(path, {"rules": role["rules"]})

    world.wait("the class", lambda: "p" in world.classes())


def test_an_api_server_that_drops_the_extended_name_is_told_of_once() -> None:
    """A class without the name would never serve the pods that the policy promises to serve."""
    with Cluster.start(options=ControlPlaneOptions(emulated_version="1.34")) as old:
        install(old)
        world = World(old)
        world.add_node("gpu-01", cards=1)
        world.start_controller()
        world.policy("p", {"offers": [OFFER]})
        world.assigned("gpu-01", "p", 1)
        world.nodes["gpu-01"].converge()

        message = world.wait_reason("p", "FieldsDropped")["message"]

        assert "DeviceClass h100: spec.extendedResourceName" in message
        assert "DRAExtendedResource" in message
        world.wait_quiet()
        before = old.control_plane.audit_position()
        for number in range(3):
            world.nodes["gpu-01"].cards[0]["healthMessage"] = f"{number} corrected errors"
            world.nodes["gpu-01"].report()
            time.sleep(1.0)
        time.sleep(1.0)
        assert world.written(after=before) == []
        world.clean()


def test_a_policy_that_only_planned_makes_its_classes_without_a_word_of_drift(world: World) -> None:
    """From Plan to Apply is the ordinary way; nobody deleted anything."""
    world.start_controller()
    world.policy("p", {"offers": [OFFER], "rollout": {"mode": "Plan"}})
    world.wait(
        "the plan", lambda: world.condition("p")["reason"] == "Planned" or world.status("p")["examples"]
    )

    world.policy("p", {"offers": [OFFER]})

    world.wait("the event", lambda: "ClassCreated" in [e["reason"] for e in world.events("GpuPolicy", "p")])
    assert drifts(world) == []


def test_a_name_that_became_free_is_taken_without_a_word_of_drift(world: World) -> None:
    foreign(world, "h100")
    world.start_controller()
    world.policy("p", {"offers": [OFFER]})
    world.wait_reason("p", "ResourceNameConflict")
    assert world.status("p").get("deviceClasses", []) == []

    world.admin.delete(f"{CLASSES}/h100")

    world.wait("the event", lambda: "ClassCreated" in [e["reason"] for e in world.events("GpuPolicy", "p")])
    assert drifts(world) == []
