"""In what an object of `spec.access` differs from what is wanted: what servers fill in is no difference, all else is."""

import copy
from collections.abc import Callable
from typing import Any

import pytest

from gpupolicy.api.policy import Access
from gpupolicy.core import access, access_objects
from gpupolicy.core.access_objects import LiveObject
from gpupolicy.core.classes import DesiredClass

ACCESS = Access.model_validate(
    {
        "namespaces": {"matchLabels": {"team": "a"}},
        "quotas": [{"namespace": n, "deviceClassName": "c", "devices": 1000} for n in ("b", "a")],
    }
)
WISH = DesiredClass(
    name="c", policy="p", profile=None, published=(), extended_resource_name=None, take_over=False
)
WANTED = access.objects("p", "uid-p", ACCESS, [WISH])
POLICY, BINDING, QUOTA, _ = WANTED


def stored(wanted: Any) -> dict[str, Any]:
    """What an API server makes of it."""
    body: dict[str, Any] = copy.deepcopy(dict(wanted))
    body["metadata"] |= {"uid": "u", "resourceVersion": "7", "creationTimestamp": "t"}
    body["metadata"]["labels"]["team"] = "x"
    body["status"] = {}
    if body["kind"] == access_objects.POLICY_KIND:
        constraints = body["spec"]["matchConstraints"]
        constraints |= {"matchPolicy": "Equivalent", "namespaceSelector": {}, "objectSelector": {}}
        for rule in constraints["resourceRules"]:
            rule["scope"] = "*"
    if body["kind"] == access_objects.QUOTA_KIND:
        body["spec"]["hard"] = dict.fromkeys(body["spec"]["hard"], "1k")
    return body


def live(wanted: Any, change: Callable[[dict[str, Any]], object] = lambda _: None) -> LiveObject:
    body = stored(wanted)
    change(body)
    return LiveObject.of(wanted["kind"], body)


def test_they_are_written_with_the_fence_first() -> None:
    assert [access_objects.key_of(body) for body in WANTED] == [
        ("ValidatingAdmissionPolicy", "", "gpupolicy-access-p"),
        ("ValidatingAdmissionPolicyBinding", "", "gpupolicy-access-p"),
        ("ResourceQuota", "a", "gpupolicy-access-p"),
        ("ResourceQuota", "b", "gpupolicy-access-p"),
    ]
    assert {access.policy_of(body["metadata"]["name"]) for body in WANTED} == {"p"}
    assert access.policy_of("other") == ""
    assert access.objects("p", "uid-p", None, [WISH]) == ()


@pytest.mark.parametrize("wanted", WANTED, ids=lambda body: body["kind"])
def test_what_a_server_fills_in_is_no_difference(wanted: Any) -> None:
    found = live(wanted)
    assert access_objects.drift(wanted, found) == ()
    assert found.key == access_objects.key_of(wanted)
    assert (found.uid, found.resource_version) == ("u", "7")


CHANGES: list[Any] = [
    pytest.param(
        POLICY, lambda b: b["spec"].update(failurePolicy="Ignore"), ("spec.failurePolicy",), id="changed"
    ),
    pytest.param(POLICY, lambda b: b["spec"].pop("validations"), ("spec.validations",), id="removed"),
    pytest.param(
        POLICY,
        lambda b: b["spec"]["validations"].append({"expression": "true"}),
        ("spec.validations",),
        id="longer",
    ),
    pytest.param(
        POLICY,
        lambda b: b["spec"].update(matchConditions=[{"name": "n"}]),
        ("spec.matchConditions",),
        id="added",
    ),
    pytest.param(POLICY, lambda b: b["spec"].update(matchConditions=[]), (), id="added-and-empty"),
    pytest.param(
        POLICY,
        lambda b: b["spec"]["matchConstraints"]["resourceRules"][0].update(scope="Cluster"),
        ("spec.matchConstraints",),
        id="not-the-default",
    ),
    pytest.param(
        POLICY,
        lambda b: b["spec"]["matchConstraints"].update(namespaceSelector={"matchLabels": {"a": "b"}}),
        ("spec.matchConstraints",),
        id="narrower",
    ),
    pytest.param(
        BINDING,
        lambda b: b["spec"].update(validationActions=["Audit"]),
        ("spec.validationActions",),
        id="audit",
    ),
    pytest.param(QUOTA, lambda b: b["spec"]["hard"].update(pods="0"), ("spec.hard",), id="limit-more"),
    pytest.param(QUOTA, lambda b: b["spec"]["hard"].clear(), ("spec.hard",), id="limit-less"),
    pytest.param(
        QUOTA,
        lambda b: b["spec"]["hard"].update({"c.deviceclass.resource.k8s.io/devices": "2k"}),
        ("spec.hard",),
        id="limit-other",
    ),
    pytest.param(
        QUOTA,
        lambda b: b["spec"]["hard"].update({"c.deviceclass.resource.k8s.io/devices": "many"}),
        ("spec.hard",),
        id="limit-unreadable",
    ),
    pytest.param(QUOTA, lambda b: b["spec"].update(scopes=["Terminating"]), ("spec.scopes",), id="scoped"),
    pytest.param(
        QUOTA,
        lambda b: b["metadata"]["labels"].pop("gpupolicy.dev/policy"),
        ("metadata.labels",),
        id="unlabelled",
    ),
    pytest.param(
        QUOTA,
        lambda b: b["metadata"].pop("ownerReferences"),
        ("metadata.ownerReferences",),
        id="orphaned",
    ),
    pytest.param(
        QUOTA, lambda b: b["metadata"]["ownerReferences"].append({"uid": "x"}), (), id="another-owner"
    ),
    pytest.param(BINDING, lambda b: b.pop("spec"), ("spec.policyName", "spec.validationActions"), id="empty"),
]


@pytest.mark.parametrize(("wanted", "change", "fields"), CHANGES)
def test_differences_are_named(wanted: Any, change: Any, fields: tuple[str, ...]) -> None:
    assert access_objects.drift(wanted, live(wanted, change)) == fields


def test_what_goes_is_ours_and_a_binding_goes_before_its_policy() -> None:
    """What bears our name and not our owner reference is somebody else's."""
    foreign = live(QUOTA, lambda b: b["metadata"].update(ownerReferences=[{"uid": "other"}]))
    found = [live(POLICY), live(BINDING), live(QUOTA), foreign]
    gone = access_objects.obsolete([QUOTA], found, "uid-p")
    assert [o.kind for o in gone] == ["ValidatingAdmissionPolicyBinding", "ValidatingAdmissionPolicy"]
    assert access_objects.obsolete((), found, "uid-q") == ()
