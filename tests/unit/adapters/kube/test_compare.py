"""What the server dropped, and whether an apply would change anything; the server's own view is tested elsewhere."""

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpupolicy.adapters import kube

EMPTY = (None, "", 0, False, [], {})
SCALARS = st.one_of(st.integers(1, 9), st.text("ab", min_size=1, max_size=3), st.just(value=True))
NAMES = st.sampled_from(["spec", "devices", "capacity", "dev.io/memory", "a"])


def trees(leaves):
    return st.recursive(
        leaves,
        lambda inner: (
            st.dictionaries(NAMES, inner, min_size=1, max_size=3) | st.lists(inner, min_size=1, max_size=3)
        ),
        max_leaves=12,
    )


OBJECTS = st.dictionaries(NAMES, trees(SCALARS), min_size=1, max_size=3)


def leaves(value, path=()):
    """Yield (path of keys, is the last step a key of a mapping) of everything that can be taken out of an object."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield (*path, key)
            yield from leaves(inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from leaves(inner, (*path, index))


def written(path):
    """Return a path of keys in the notation of `dropped_fields`."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        elif "." in step:
            text += f'["{step}"]'
        else:
            text += f".{step}" if text else step
    return text


@given(OBJECTS)
def test_nothing_is_dropped_from_what_came_back_whole(sent):
    assert kube.dropped_fields(sent, copy.deepcopy(sent)) == []


@given(OBJECTS, OBJECTS)
def test_what_the_server_adds_is_no_difference(sent, added):
    returned = {**{f"new-{key}": value for key, value in added.items()}, **sent}
    assert kube.dropped_fields(sent, returned) == []


@given(st.data())
def test_a_missing_field_is_named_by_its_path(data):
    sent = data.draw(OBJECTS)
    path = data.draw(st.sampled_from(list(leaves(sent))))
    returned = copy.deepcopy(sent)
    holder = returned
    for step in path[:-1]:
        holder = holder[step]
    del holder[path[-1]]
    assert kube.dropped_fields(sent, returned) == [written(path)]


@given(OBJECTS, st.sampled_from([value for value in EMPTY if value is not None]))
def test_empty_values_are_not_missed(sent, empty):
    assert kube.dropped_fields({**sent, "empty": empty}, sent) == []


@pytest.mark.parametrize(
    ("sent", "returned", "paths"),
    [
        pytest.param({"a": 10}, {"a": "10"}, [], id="a-number-becomes-a-quantity"),
        pytest.param({"a": "1024Mi"}, {"a": "1Gi"}, [], id="another-notation"),
        pytest.param({"a": {"b": 1}}, {"a": None}, ["a"], id="a-structure-becomes-null"),
        pytest.param({"a": [1]}, {"a": {}}, ["a"], id="a-list-becomes-something-else"),
        pytest.param({"a": [1, 2]}, {"a": [1]}, ["a[1]"], id="an-element-is-missing"),
        pytest.param(
            {"d": [{"name": "x", "t": 1}, {"name": "y", "t": 2}]},
            {"d": [{"name": "y", "t": 2}, {"name": "z"}, {"name": "x"}]},
            ["d[0].t"],
            id="elements-are-found-by-name",
        ),
        pytest.param(
            {"d": [{"name": "x"}, {"name": "y"}]},
            {"d": [{"name": "x"}]},
            ["d[1]"],
            id="a-named-element-is-missing",
        ),
        pytest.param(
            {"d": [{"name": "x", "t": 1}, {"name": "x", "t": 2}]},
            {"d": [{"name": "x", "t": 1}, {"name": "x"}]},
            ["d[1].t"],
            id="names-that-do-not-tell-apart-count-by-position",
        ),
        pytest.param(
            {"d": [{"driver": "a", "device": "1", "data": {"x": 1}}, {"driver": "a", "device": "2"}]},
            {"d": [{"driver": "a", "device": "2"}, {"driver": "a", "device": "1"}]},
            ["d[0].data"],
            id="devices-of-a-claim",
        ),
        pytest.param(
            {"capacity": {"gpu.example.com/memory": {"value": "1Gi", "requestPolicy": {"default": "1"}}}},
            {"capacity": {"gpu.example.com/memory": {"value": "1Gi"}}},
            ['capacity["gpu.example.com/memory"].requestPolicy'],
            id="qualified-names",
        ),
    ],
)
def test_dropped_fields(sent, returned, paths):
    assert kube.dropped_fields(sent, returned) == paths


def live(spec, owned, *, manager="us", operation="Apply", subresource=None, metadata=None):
    entry = {"manager": manager, "operation": operation, "fieldsType": "FieldsV1", "fieldsV1": owned}
    if subresource:
        entry["subresource"] = subresource
    return {
        "apiVersion": "v1",
        "kind": "K",
        "metadata": {"name": "x", "uid": "u", **(metadata or {}), "managedFields": [entry]},
        "spec": spec,
    }


def desired(spec, **metadata):
    return {"apiVersion": "v1", "kind": "K", "metadata": {"name": "x", **metadata}, "spec": spec}


OWNED = {
    "f:spec": {
        "f:a": {},
        "f:list": {'k:{"name":"n"}': {".": {}, "f:name": {}, "f:v": {}}},
        "f:set": {'v:"s"': {}},
    }
}
SPEC = {"a": 1, "list": [{"name": "n", "v": 2}], "set": ["s"]}


def with_(**changes):
    return {**SPEC, **changes}


def without(key):
    return {k: v for k, v in SPEC.items() if k != key}


@pytest.mark.parametrize(
    ("wanted", "there", "applied"),
    [
        pytest.param(SPEC, SPEC, True, id="the-same"),
        pytest.param(SPEC, {**SPEC, "default": 1}, True, id="defaults-are-added"),
        pytest.param(
            SPEC, with_(list=[{"name": "m"}, {"name": "n", "v": 2, "w": 3}]), True, id="others-add-elements"
        ),
        pytest.param(with_(none=None), SPEC, True, id="none-is-absent"),
        pytest.param(with_(a=2), SPEC, False, id="we-changed-a-value"),
        pytest.param(SPEC, with_(a=2), False, id="another-changed-a-value"),
        pytest.param(with_(a=True), SPEC, False, id="true-is-not-one"),
        pytest.param(with_(b=1), {**SPEC, "b": 1}, False, id="a-field-that-is-not-ours-yet"),
        pytest.param(without("a"), SPEC, False, id="we-dropped-a-field"),
        pytest.param(with_(list=[]), SPEC, False, id="we-dropped-an-element"),
        pytest.param(with_(list=[{"name": "n"}]), SPEC, False, id="we-dropped-a-field-of-an-element"),
        pytest.param(
            with_(list=[{"name": "n", "v": 2}, {"name": "m"}]),
            with_(list=[{"name": "n", "v": 2}, {"name": "m"}]),
            False,
            id="an-element-that-is-not-ours-yet",
        ),
        pytest.param(with_(set=["s", "t"]), with_(set=["s", "t"]), False, id="a-member-that-is-not-ours-yet"),
        pytest.param(SPEC, without("a"), False, id="another-removed-a-field"),
    ],
)
def test_is_applied(wanted, there, applied):
    assert kube.is_applied(desired(wanted), live(there, OWNED), "us") is applied


@pytest.mark.parametrize(
    "entry",
    [
        pytest.param({"manager": "them"}, id="another-manager"),
        pytest.param({"operation": "Update"}, id="an-update-is-no-apply"),
        pytest.param({"subresource": "status"}, id="another-subresource"),
    ],
)
def test_what_we_never_applied_is_not_applied(entry):
    assert kube.is_applied(desired(SPEC), live(SPEC, OWNED, **entry), "us") is False


def test_the_subresource_has_an_owner_of_its_own():
    assert kube.is_applied(desired(SPEC), live(SPEC, OWNED, subresource="status"), "us", "status") is True


def test_without_managed_fields_the_answer_is_no():
    there = live(SPEC, OWNED)
    del there["metadata"]["managedFields"]
    assert kube.is_applied(desired(SPEC), there, "us") is False


def test_an_atomic_list_is_owned_as_a_whole():
    spec = {"selectors": [{"cel": {"expression": "a"}}]}
    owned = {"f:spec": {"f:selectors": {}}}
    assert kube.is_applied(desired(spec), live(spec, owned), "us") is True
    assert (
        kube.is_applied(
            desired({"selectors": [*spec["selectors"], *spec["selectors"]]}), live(spec, owned), "us"
        )
        is False
    )


def test_labels_are_compared_and_names_are_not_owned():
    owned = {"f:metadata": {"f:labels": {"f:a": {}}}, **OWNED}
    there = live(SPEC, owned, metadata={"labels": {"a": "b", "theirs": "c"}})
    assert kube.is_applied(desired(SPEC, labels={"a": "b"}), there, "us") is True
    assert kube.is_applied(desired(SPEC, labels={"a": "c"}), there, "us") is False
    assert kube.is_applied(desired(SPEC), there, "us") is False


@pytest.mark.parametrize(
    "owned",
    [
        {},
        {".": {}},
        {"f:spec": {"k:nonsense": {}}},
        {"f:spec": {"i:0": {}}},
        "text",
        None,
        {"f:spec": {"v:": {}}},
    ],
)
def test_odd_managed_fields_mean_no(owned):
    assert kube.is_applied(desired(SPEC), live(SPEC, owned), "us") is False
