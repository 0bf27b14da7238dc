"""Extended resource names as the scheduler maps them: a name must go on being served whatever becomes of its other holders.

The scheduler forgets a name as soon as any class that had it goes or gives it up, also where another one has it still.
"""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration.controller.conftest import CLASSES, World

pytestmark = pytest.mark.cluster

GPU = "nvidia.com/gpu"
OTHER = "example.com/card"
PODS = "/api/v1/namespaces/default/pods"
_numbers = itertools.count(1)


@pytest.fixture
def served(world: World) -> Iterator[World]:
    """A node of eight cards on which the scheduler can put pods, and a controller."""
    world.add_node("gpu-01", gpu_pool="a")
    room = {"cpu": "8", "memory": "32Gi", "pods": "110"}
    world.admin.patch("/api/v1/nodes/gpu-01/status", {"status": {"capacity": room, "allocatable": room}})
    world.start_controller()
    yield world
    for item in world.admin.get(PODS)["items"]:
        world.admin.call("DELETE", f"{PODS}/{item['metadata']['name']}", query={"gracePeriodSeconds": "0"})


def foreign(world: World, name: str, resource: str) -> None:
    """Make a class of somebody else's that has the name too; what is made afterwards is newer.

    Ages have whole seconds, and of classes of one second the scheduler takes the first by name.
    """
    spec = {"selectors": [{"cel": {"expression": "false"}}], "extendedResourceName": resource}
    made = world.admin.create(CLASSES, {"metadata": {"name": name}, "spec": spec})
    created = dt.datetime.fromisoformat(made["metadata"]["creationTimestamp"])
    world.wait("the second to be over", lambda: dt.datetime.now(dt.UTC) >= created + dt.timedelta(seconds=1))


def publish(world: World, policy: str) -> None:
    world.assigned("gpu-01", policy, 8)
    world.nodes["gpu-01"].converge()
    world.wait_reason(policy, "Ready")


def is_served(world: World, resource: str) -> bool:
    """Return whether a new pod that asks for the name is put on the node."""
    name = f"asks-{next(_numbers)}"
    spec = {
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 0,
        "tolerations": [{"operator": "Exists"}],
        "containers": [{"name": "c", "image": "i", "resources": {"limits": {resource: "1"}}}],
    }
    path = f"{PODS}/{name}"
    world.admin.create(PODS, {"metadata": {"name": name}, "spec": spec})
    found: dict[str, Any] = {}

    def decided() -> bool:
        found.update(world.admin.get(path))
        return "nodeName" in found["spec"] or bool(found["status"].get("conditions"))

    world.wait("the scheduler's word", decided)
    world.admin.call("DELETE", path, query={"gracePeriodSeconds": "0"})
    return "nodeName" in found["spec"]


def wait_served(world: World, resource: str = GPU) -> None:
    world.wait(f"{resource} to be served", lambda: is_served(world, resource))


def test_the_name_is_served_on_when_the_class_that_lost_it_is_deleted(served: World) -> None:
    """The end of every move: the old class has lost its name to ours, and the admin takes it away."""
    foreign(served, "legacy", GPU)
    served.policy("p", {"offers": [offer("ours", GPU) | {"takeOver": True}]})
    publish(served, "p")
    wait_served(served)
    wait_rivals(served, "ours", 1)

    served.admin.delete(f"{CLASSES}/legacy")

    wait_rivals(served, "ours", 0)
    wait_served(served)
    assert not [e for e in served.events("GpuPolicy", "p") if e["reason"] == "Drift"]


def test_the_name_is_served_on_when_a_newcomer_with_it_goes_again(served: World) -> None:
    """The policy is in conflict meanwhile and its class stands as it is; still it must not lose the name for good."""
    served.policy("p", {"offers": [offer("ours", GPU)]})
    publish(served, "p")
    wait_served(served)

    foreign(served, "newcomer", GPU)
    served.wait_reason("p", "ResourceNameConflict")
    wait_rivals(served, "ours", 1)
    served.admin.delete(f"{CLASSES}/newcomer")

    wait_rivals(served, "ours", 0)
    served.wait_reason("p", "Ready")
    wait_served(served)


HANDED_ON: list[Any] = [
    pytest.param([("a", GPU), ("b", OTHER)], [("a", OTHER), ("b", GPU)], id="swapped"),
    pytest.param([("b", GPU), ("a", None)], [("a", GPU), ("b", OTHER)], id="heir-is-written-first"),
]


@pytest.mark.parametrize(("before", "after"), HANDED_ON)
def test_names_that_classes_of_one_policy_hand_on_in_one_edit(
    served: World, before: list[tuple[str, str | None]], after: list[tuple[str, str | None]]
) -> None:
    served.policy("p", {"offers": [offer(*pair) for pair in before]})
    publish(served, "p")
    wait_served(served)

    served.policy("p", {"offers": [offer(*pair) for pair in after]})

    served.wait(
        "the names to be handed on",
        lambda: all(served.classes()[c]["spec"]["extendedResourceName"] == name for c, name in after),
    )
    for resource in (GPU, OTHER):
        wait_served(served, resource)


def test_a_name_that_somebody_put_on_another_class_of_the_policy_goes_back(served: World) -> None:
    served.policy("p", {"offers": [offer("a", GPU), offer("b", OTHER)]})
    publish(served, "p")
    wait_served(served)

    served.admin.patch(f"{CLASSES}/a", {"spec": {"extendedResourceName": OTHER}})

    served.wait("the name to go back", lambda: served.classes()["a"]["spec"]["extendedResourceName"] == GPU)
    for resource in (GPU, OTHER):
        wait_served(served, resource)
    notes = [e["note"] for e in served.events("GpuPolicy", "p") if e["reason"] == "Drift"]
    assert len(notes) == 1
    assert "a was changed by somebody else (spec.extendedResourceName)" in notes[0]


def offer(name: str, resource: str | None) -> dict[str, Any]:
    return {"deviceClassName": name, **({"extendedResourceName": resource} if resource else {})}


def wait_rivals(world: World, name: str, count: int) -> None:
    """Wait until a class lists so many others that have its extended name."""

    def listed() -> bool:
        text = world.classes()[name]["metadata"]["annotations"].get("gpupolicy.dev/name-rivals", "")
        return len([uid for uid in text.split(",") if uid]) == count

    world.wait(f"{count} rivals of {name}", listed)
