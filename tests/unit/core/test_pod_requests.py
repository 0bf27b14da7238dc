"""What a pod asks for, whichever way it asks."""

from typing import Any

import pytest

from gpupolicy.core import pod_requests
from gpupolicy.core.classes import LiveClass
from gpupolicy.core.pod_requests import Alternative, Asked, Source
from tests.unit.core import wire

NAME = "nvidia.com/gpu"
IMPLICIT = "deviceclass.resource.kubernetes.io/h100"
EXACT = {"name": "r", "exactly": {"deviceClassName": "h100", "count": 2}}


def container(limits: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return {"name": "c", "resources": {"limits": limits} if limits else {}, **more}


def pod(*claims: dict[str, Any], status: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "p", "namespace": "team"},
        "spec": {"resourceClaims": list(claims), **spec},
        "status": status or {},
    }


def body(*requests: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"devices": {"requests": list(requests), **more}}


def claim(*requests: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"metadata": {"name": "x", "namespace": "team"}, "spec": body(*requests, **more)}


def read(asking: dict[str, Any], **source: Any) -> Asked:
    return pod_requests.read(
        asking, Source(**{"claims": {}, "templates": {}, "classes": (), "nodes": (), **source})
    )


CLAIM = {"name": "gpu", "resourceClaimName": "x"}
TEMPLATE = {"name": "gpu", "resourceClaimTemplateName": "t"}
MADE = {"resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": "x"}]}


@pytest.mark.parametrize(
    ("request_body", "expected"),
    [
        pytest.param(EXACT, [Alternative("r", "h100", 2)], id="exactly"),
        pytest.param(
            {"name": "r", "exactly": {"deviceClassName": "h100"}}, [Alternative("r", "h100", 1)], id="one"
        ),
        pytest.param(
            {"name": "r", "exactly": {"deviceClassName": "h100", "allocationMode": "All"}},
            [Alternative("r", "h100", None)],
            id="all",
        ),
        pytest.param(
            {
                "name": "r",
                "exactly": {
                    "deviceClassName": "h100",
                    "selectors": [{"cel": {"expression": "a"}}, {"cel": {"expression": "b"}}],
                    "tolerations": [{"operator": "Exists"}],
                    "adminAccess": True,
                },
            },
            [Alternative("r", "h100", 1, ("a", "b"), ({"operator": "Exists"},), is_admin=True)],
            id="with everything",
        ),
        pytest.param(
            {
                "name": "r",
                "firstAvailable": [
                    {"name": "big", "deviceClassName": "h100", "count": 2},
                    {"name": "small", "deviceClassName": "h100-1g-10gb"},
                ],
            },
            [Alternative("r/big", "h100", 2), Alternative("r/small", "h100-1g-10gb", 1)],
            id="firstAvailable",
        ),
    ],
)
def test_requests_of_a_claim(request_body: dict[str, Any], expected: list[Alternative]) -> None:
    asked = read(pod(CLAIM), claims={"x": claim(request_body)})
    (request,) = asked.requests
    assert (request.name, request.origin) == ("r", "ResourceClaim x")
    assert list(request.alternatives) == expected
    assert (asked.held, asked.problems, asked.notes) == ((), (), ())


@pytest.mark.parametrize(
    ("asking", "source", "origins", "problem", "note"),
    [
        pytest.param(pod(), {}, [], "", "", id="nothing"),
        pytest.param(pod(CLAIM), {}, [], "ResourceClaim x does not exist: create it", "", id="no claim"),
        pytest.param(
            pod(TEMPLATE), {}, [], "ResourceClaimTemplate t does not exist: create it", "", id="no template"
        ),
        pytest.param(
            pod(TEMPLATE),
            {"templates": {"t": {"spec": {"spec": body(EXACT)}}}},
            ["ResourceClaimTemplate t"],
            "",
            "no ResourceClaim has been made from template t yet",
            id="not made yet",
        ),
        pytest.param(
            pod(TEMPLATE, status=MADE),
            {"claims": {"x": claim(EXACT)}},
            ["ResourceClaim x"],
            "",
            "",
            id="made from a template that has gone since",
        ),
        pytest.param(
            pod(TEMPLATE, status=MADE), {}, [], "ResourceClaim x does not exist", "", id="made and deleted"
        ),
        pytest.param(
            pod(TEMPLATE, status={"resourceClaimStatuses": [{"name": "gpu"}]}),
            {},
            [],
            "",
            "makes no claim for this pod",
            id="no claim needed",
        ),
    ],
)
def test_claims_and_templates(
    asking: dict[str, Any], source: dict[str, Any], origins: list[str], problem: str, note: str
) -> None:
    asked = read(asking, **source)
    assert [request.origin for request in asked.requests] == origins
    assert [problem in told for told in asked.problems] == ([True] if problem else [])
    assert [note in told for told in asked.notes] == ([True] if note else [])


def test_an_allocated_claim_is_held_and_no_longer_asked_for() -> None:
    other = {"name": "second", "resourceClaimName": "y"}
    asked = read(pod(CLAIM, other), claims={"x": wire.claim("x", ("n", "a"), ("n", "b")), "y": claim(EXACT)})
    assert [held.device for held in asked.held] == ["a", "b"]
    assert [request.origin for request in asked.requests] == ["ResourceClaim y"]


def test_constraints_are_told() -> None:
    assert not read(pod(CLAIM), claims={"x": claim(EXACT)}).has_constraints
    assert read(
        pod(CLAIM), claims={"x": claim(EXACT, constraints=[{"matchAttribute": "a/b"}])}
    ).has_constraints


def live(name: str, extended: str | None = NAME, created: str = "2026-01-01T00:00:00Z") -> LiveClass:
    return LiveClass(name=name, created=created, extended_resource_name=extended)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        pytest.param({"containers": [container()]}, [], id="nothing"),
        pytest.param({"containers": [container({NAME: "2"})]}, [("h100", 2)], id="one container"),
        pytest.param(
            {"containers": [container({NAME: "2"}), container({NAME: "1"})]}, [("h100", 3)], id="sum"
        ),
        pytest.param({"containers": [container({NAME: "0"})]}, [], id="zero"),
        pytest.param(
            {"containers": [container({NAME: "1"})], "initContainers": [container({NAME: "1"})]},
            [("h100", 1)],
            id="init containers share",
        ),
        pytest.param(
            {
                "containers": [container({NAME: "1"})],
                "initContainers": [container({NAME: "3"}), container({NAME: "2"})],
            },
            [("h100", 3)],
            id="most of the init containers",
        ),
        pytest.param(
            {
                "containers": [container({NAME: "1"})],
                "initContainers": [container({NAME: "1"}, restartPolicy="Always")],
            },
            [("h100", 2)],
            id="sidecar",
        ),
        pytest.param({"containers": [container({IMPLICIT: "1"})]}, [("h100", 1)], id="implicit name"),
        pytest.param(
            {"containers": [container({NAME: "1", IMPLICIT: "2"})]},
            [("h100", 1), ("h100", 2)],
            id="both names",
        ),
        pytest.param(
            {
                "containers": [
                    container({"cpu": "1", "hugepages-2Mi": "2", "x.kubernetes.io/y": "1", "memory": "1"})
                ]
            },
            [],
            id="native resources",
        ),
    ],
)
def test_extended_names(spec: dict[str, Any], expected: list[tuple[str, int]]) -> None:
    asked = read(pod(**spec), classes=[live("h100")])
    found = [(a.class_name, a.count) for request in asked.requests for a in request.alternatives]
    assert (found, asked.problems) == (expected, ())


@pytest.mark.parametrize(
    ("classes", "expected"),
    [
        pytest.param([live("old"), live("new", created="2026-01-02T00:00:00Z")], "new", id="newest"),
        pytest.param([live("b"), live("a")], "a", id="by name"),
        pytest.param([live("a", "other.com/x"), live("b"), live("c", None)], "b", id="the only one"),
    ],
)
def test_the_class_of_a_name(classes: list[LiveClass], expected: str) -> None:
    (request,) = read(pod(containers=[container({NAME: "1"})]), classes=classes).requests
    assert [alternative.class_name for alternative in request.alternatives] == [expected]


@pytest.mark.parametrize("allocatable", [None, {}, {NAME: "0"}], ids=str)
def test_a_name_that_nobody_has(allocatable: Any) -> None:
    node = {"metadata": {"name": "n"}, "status": {"allocatable": allocatable}}
    asked = read(pod(containers=[container({NAME: "1"})]), nodes=[node])
    assert asked.requests == asked.notes == ()
    assert f"no DeviceClass has the extendedResourceName {NAME}" in asked.problems[0]


def test_a_name_that_a_device_plugin_has() -> None:
    """Such a node serves it without any class, and that is no problem."""
    node = {"metadata": {"name": "n"}, "status": {"allocatable": {NAME: "8"}}}
    asked = read(pod(containers=[container({NAME: "1"})]), nodes=[node])
    assert asked.problems == ()
    assert f"{NAME} is also a resource of node n, from a device plugin" in asked.notes[0]


def test_the_claim_that_the_scheduler_made() -> None:
    """Once it is there it says what the pod has; when it is gone, the limits say again what is asked."""
    status = {"extendedResourceClaimStatus": {"resourceClaimName": "x"}}
    asking = pod(containers=[container({NAME: "1"})], status=status)
    asked = read(asking, claims={"x": wire.claim("x", ("n", "a"))}, classes=[live("h100")])
    assert ([held.device for held in asked.held], asked.requests) == (["a"], ())
    assert [request.name for request in read(asking, classes=[live("h100")]).requests] == [NAME]
