"""Devices out of whatever a user hands over."""

from typing import Any

import pytest

from gpupolicy.core.selection import Device
from gpupolicy.core.slice_devices import collect

BODY = {"attributes": {"type": {"string": "gpu"}}, "capacity": {"memory": {"value": "80Gi"}}}


def resource_slice(*devices: Any, name: str = "s", generation: int = 1, **more: Any) -> dict[str, Any]:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": name},
        "spec": {
            "driver": "d.example.com",
            "nodeName": "node-1",
            "pool": {"name": "pool-1", "generation": generation, "resourceSliceCount": 1},
            "devices": list(devices),
            **more,
        },
    }


def device(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, **BODY, **more}


def found(*documents: Any) -> list[str]:
    """Return the names of the devices in documents that are wholly readable."""
    collected = collect(documents)
    assert not collected.problems
    return [one.name for one in collected.devices]


@pytest.mark.parametrize(
    "documents",
    [
        pytest.param([resource_slice(device("a"), device("b"))], id="one slice"),
        pytest.param(
            [resource_slice(device("a")), None, resource_slice(device("b"), name="t")], id="several documents"
        ),
        pytest.param(
            [{"kind": "List", "items": [resource_slice(device("a")), resource_slice(device("b"))]}], id="list"
        ),
        pytest.param(
            [
                {
                    "apiVersion": "resource.k8s.io/v1",
                    "kind": "ResourceSliceList",
                    "items": [{"spec": resource_slice(device("a"), device("b"))["spec"]}],
                }
            ],
            id="typed list whose items do not repeat the kind",
        ),
        pytest.param([[resource_slice(device("a")), resource_slice(device("b"))]], id="bare array"),
        pytest.param([{"a": {"driver": "x"}, "b": {"driver": "y"}}], id="map of devices"),
        pytest.param(
            [{"devices": {"a": {"driver": "x"}, "b": {"driver": "y"}}, "more": 1}], id="under devices"
        ),
        pytest.param(
            [resource_slice({"name": "a", "basic": BODY}, {"name": "b", "basic": {}})], id="before v1beta2"
        ),
    ],
)
def test_forms(documents: list[Any]) -> None:
    assert found(*documents) == ["a", "b"]


def test_everything_a_selector_sees_is_kept() -> None:
    document = resource_slice(device("a", allowMultipleAllocations=True), device("b", nodeName="node-2"))
    a, b = collect([document]).devices
    assert a == Device(
        driver="d.example.com",
        attributes=BODY["attributes"],
        capacity=BODY["capacity"],
        allow_multiple_allocations=True,
        name="a",
        node="node-1",
        pool="pool-1",
    )
    assert (b.node, b.allow_multiple_allocations) == ("node-2", False)
    assert collect([resource_slice({"name": "c", "basic": BODY})]).devices[0].attributes == BODY["attributes"]


def test_fields_of_the_future_are_passed_over() -> None:
    document = resource_slice(
        device("a", someday={"deep": [1]}, taints=None), perDeviceNodeSelection=True, someday="x"
    )
    document["someday"] = 1
    assert found(document) == ["a"]


def test_only_the_newest_generation_of_a_pool_counts() -> None:
    other = resource_slice(device("other"), name="o")
    other["spec"]["pool"] = {"name": "pool-2", "generation": 1}
    assert found(
        resource_slice(device("old"), generation=3),
        resource_slice(device("new-1"), generation=4),
        resource_slice(device("new-2"), name="t", generation=4),
        other,
    ) == ["new-1", "new-2", "other"]


@pytest.mark.parametrize(
    ("document", "words"),
    [
        pytest.param("text", "document 1 is a str", id="text"),
        pytest.param([7], "document 1[0] is a int", id="number in an array"),
        pytest.param({"kind": "Pod"}, "is a Pod, not a ResourceSlice", id="another kind"),
        pytest.param(
            {"kind": "List", "items": [{"kind": "Pod"}]}, "items[0] is a Pod", id="another kind in a list"
        ),
        pytest.param(
            {"kind": "ResourceSliceList", "items": [{"kind": "Pod"}]}, "items[0] is a Pod", id="typed list"
        ),
        pytest.param({"kind": "ResourceSliceList", "items": ["x"]}, "items[0] is a str", id="odd item"),
        pytest.param({"apiVersion": "v1"}, "is a None", id="no kind"),
        pytest.param({"kind": "ResourceSlice"}, "has no spec.driver", id="no spec"),
        pytest.param({"kind": "ResourceSlice", "spec": {"driver": 1}}, "has no spec.driver", id="odd driver"),
        pytest.param({"kind": "ResourceSlice", "spec": []}, "has no spec.driver", id="odd spec"),
        pytest.param(resource_slice("x"), "spec.devices[0] is a str", id="odd device"),
        pytest.param({}, "holds no devices", id="empty map"),
        pytest.param({"devices": 5}, "holds no devices", id="odd devices"),
        pytest.param({"a": {"attributes": {}}}, "a is no device", id="device without a driver"),
        pytest.param({"a": None}, "a is no device", id="null device"),
    ],
)
def test_what_is_no_device_is_told_and_its_neighbours_stay(document: Any, words: str) -> None:
    collected = collect([document, resource_slice(device("good"))])
    assert len(collected.problems) == 1
    assert words in collected.problems[0]
    assert [one.name for one in collected.devices] == ["good"]


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param({"devices": 5}, id="devices"),
        pytest.param({"devices": None, "pool": "x"}, id="pool"),
        pytest.param({"devices": [{"name": 5, "attributes": [], "capacity": "x"}]}, id="values"),
        pytest.param({"pool": {"name": "p", "generation": "many"}}, id="generation"),
    ],
)
def test_odd_fields_of_a_slice_do_not_break_the_others(spec: dict[str, Any]) -> None:
    collected = collect([resource_slice(**spec), resource_slice(device("good"), name="t", generation=1)])
    assert "good" in [one.name for one in collected.devices]


def test_metadata_that_is_no_map() -> None:
    document = resource_slice(device("a"))
    document["metadata"] = "x"
    del document["spec"]["pool"]
    assert collect([document]).devices[0].pool == "document 1"
