"""What `spec.access` becomes, where no API server is needed to tell; its meaning is held to one elsewhere."""

from dataclasses import replace
from typing import Any

import pytest

from gpupolicy.api.policy import Access
from gpupolicy.core import access
from gpupolicy.core.classes import DesiredClass
from gpupolicy.core.labels import LabelSelector


def wish(name: str, extended: str | None = None) -> DesiredClass:
    return DesiredClass(
        name=name, policy="p", profile=None, published=(), extended_resource_name=extended, take_over=False
    )


WISHES = (wish("small", "example.com/small"), wish("large"))


def of(**fields: Any) -> Access:
    return Access.model_validate(fields)


@pytest.mark.parametrize(
    "given",
    [
        pytest.param(None, id="no-access"),
        pytest.param(of(), id="empty"),
        pytest.param(
            of(quotas=[{"namespace": "a", "deviceClassName": "small", "devices": 1}]), id="quotas-only"
        ),
    ],
)
def test_everybody_may_claim_unless_namespaces_are_selected(given: Access | None) -> None:
    assert access.fence("p", "u", given, WISHES) is None


def test_a_fence_without_classes_would_guard_nothing() -> None:
    assert access.fence("p", "u", of(namespaces={}), ()) is None


def test_all_objects_have_one_name_and_the_policy_as_owner() -> None:
    given = of(namespaces={}, quotas=[{"namespace": "a", "deviceClassName": "small", "devices": 1}])
    fence = access.fence("p", "uid-1", given, WISHES)
    assert fence is not None
    made = [fence.policy, fence.binding, *access.quotas("p", "uid-1", given, WISHES).values()]
    assert {m["metadata"]["name"] for m in made} == {"gpupolicy-access-p"}
    assert all(m["metadata"]["ownerReferences"][0]["uid"] == "uid-1" for m in made)
    assert fence.binding["spec"]["policyName"] == fence.policy["metadata"]["name"]


def test_only_creation_is_judged() -> None:
    """An update may be the last one of a claim that ends: its finalizer goes by it."""
    fence = access.fence("p", "u", of(namespaces={}), WISHES)
    assert fence is not None
    rules = fence.policy["spec"]["matchConstraints"]["resourceRules"]
    assert [rule["operations"] for rule in rules] == [["CREATE"], ["CREATE"]]


def test_one_quota_a_namespace_with_every_key_once() -> None:
    quotas = [
        {"namespace": "a", "deviceClassName": "small", "devices": 2},
        {"namespace": "a", "deviceClassName": "large", "devices": 0},
        {"namespace": "b", "deviceClassName": "large", "devices": 5},
    ]
    made = access.quotas("p", "u", of(quotas=quotas), WISHES)
    assert {namespace: quota["spec"]["hard"] for namespace, quota in made.items()} == {
        "a": {
            "small.deviceclass.resource.k8s.io/devices": "2",
            "requests.example.com/small": "2",
            "requests.deviceclass.resource.kubernetes.io/small": "2",
            "large.deviceclass.resource.k8s.io/devices": "0",
            "requests.deviceclass.resource.kubernetes.io/large": "0",
        },
        "b": {
            "large.deviceclass.resource.k8s.io/devices": "5",
            "requests.deviceclass.resource.kubernetes.io/large": "5",
        },
    }


@pytest.mark.parametrize(("length", "implicit"), [(63, True), (64, False)])
def test_a_name_that_no_pod_can_write_is_no_key(length: int, implicit: bool) -> None:
    """After the slash of a resource name stand at most 63 characters; the API server refuses a longer key."""
    name = "c" * length
    keys = access.quota_keys(name, "example.com/c")
    assert keys[:2] == (f"{name}.deviceclass.resource.k8s.io/devices", "requests.example.com/c")
    assert (keys[2:] == (f"requests.deviceclass.resource.kubernetes.io/{name}",)) is implicit
    assert len(keys) == 2 + implicit


@pytest.mark.parametrize(("length", "counted"), [(225, True), (226, False)])
def test_a_name_that_no_quota_can_count_is_no_key(length: int, counted: bool) -> None:
    """Before the slash of a key stand at most 253 characters."""
    name = "c" * length
    keys = access.quota_keys(name, "example.com/c")
    assert (f"{name}.deviceclass.resource.k8s.io/devices" in keys) is counted
    assert [len(key.partition("/")[0]) for key in keys if key.startswith(name)] == [253] * counted
    assert "requests.example.com/c" in keys
    given = of(quotas=[{"namespace": "a", "deviceClassName": name, "devices": 1}])
    refusal = access.refusal(given, [replace(WISHES[0], name=name)])
    assert (refusal is None) is counted
    if refusal is not None:
        assert "no quota can count a class whose name has more than 225 characters" in refusal.message


@pytest.mark.parametrize(("length", "counted"), [(244, True), (245, False)])
def test_an_extended_name_that_no_quota_can_count_is_no_key(length: int, counted: bool) -> None:
    """The API server refuses such a class; the status that says so has no room for the key."""
    extended = f"{'a.' * 121}{'b' * (length - 242)}/{'x' * 63}"
    keys = access.quota_keys("c", extended)
    assert (f"requests.{extended}" in keys) is counted
    assert len(keys) == 2 + counted
    assert max(map(len, keys)) <= 317


REFUSALS: list[Any] = [
    pytest.param(
        of(quotas=[{"namespace": "a", "deviceClassName": "x", "devices": 1}]),
        "class x; it offers small, large",
        id="class",
    ),
    pytest.param(
        of(namespaces={"matchExpressions": [{"key": "k", "operator": "Exists", "values": ["v"]}]}),
        "spec.access.namespaces: Exists on k takes no values",
        id="selector",
    ),
]


@pytest.mark.parametrize(("given", "words"), REFUSALS)
def test_what_no_schema_refuses_is_refused_in_words(given: Access, words: str) -> None:
    refusal = access.refusal(given, WISHES)
    assert refusal is not None
    assert words in refusal.message


@pytest.mark.parametrize("given", [None, of(), of(namespaces={}, quotas=[])])
def test_what_is_right_is_not_refused(given: Access | None) -> None:
    assert access.refusal(given, WISHES) is None


SELECTORS: list[Any] = [
    pytest.param({}, "any labels", id="all"),
    pytest.param({"matchLabels": {"b": "2", "a": "1"}}, "a=1,b=2", id="labels"),
    pytest.param(
        {"matchExpressions": [{"key": "k", "operator": "In", "values": ["x", "y"]}]}, "k in (x, y)", id="in"
    ),
    pytest.param(
        {"matchExpressions": [{"key": "k", "operator": "NotIn", "values": ["x"]}]}, "k notin (x)", id="notin"
    ),
    pytest.param({"matchExpressions": [{"key": "k", "operator": "Exists"}]}, "k", id="exists"),
    pytest.param({"matchExpressions": [{"key": "k", "operator": "DoesNotExist"}]}, "!k", id="absent"),
]


@pytest.mark.parametrize(("selector", "words"), SELECTORS)
def test_a_selector_is_told_in_the_words_of_kubectl(selector: dict[str, Any], words: str) -> None:
    given = of(namespaces=selector).namespaces
    assert given is not None
    assert access.describe(LabelSelector.of(given)) == words


def test_no_text_of_a_user_ends_a_literal() -> None:
    """Labels and names go into expressions as JSON strings."""
    selector = LabelSelector.of(
        of(namespaces={"matchLabels": {'a"b': "c'd\\"}}).namespaces or pytest.fail("no selector")
    )
    assert '"a\\"b"' in access.selector_expression(selector)
    assert '"c\'d\\\\"' in access.selector_expression(selector)
