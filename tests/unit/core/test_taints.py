"""Which taints keep newcomers off."""

from typing import Any

import pytest

from gpupolicy.core import taints

TAINT = {"key": "a", "value": "v", "effect": "NoSchedule"}


@pytest.mark.parametrize(
    ("taint", "expected"),
    [
        pytest.param(TAINT, ("a",), id="NoSchedule"),
        pytest.param({"key": "a", "effect": "NoExecute"}, ("a",), id="NoExecute"),
        pytest.param({"key": "a", "effect": "PreferNoSchedule"}, (), id="a wish only"),
        pytest.param({"key": "a", "effect": "None"}, (), id="no effect"),
    ],
)
def test_effects(taint: dict[str, Any], expected: tuple[str, ...]) -> None:
    assert taints.keeping_off([taint]) == expected


@pytest.mark.parametrize(
    ("toleration", "takes"),
    [
        pytest.param({"key": "a", "operator": "Equal", "value": "v"}, True, id="equal"),
        pytest.param({"key": "a", "value": "v"}, True, id="equal is the default"),
        pytest.param({"key": "a", "operator": "Equal", "value": "w"}, False, id="another value"),
        pytest.param({"key": "a", "operator": "Equal"}, False, id="no value"),
        pytest.param({"key": "b", "operator": "Exists"}, False, id="another key"),
        pytest.param({"key": "a", "operator": "Exists"}, True, id="exists"),
        pytest.param({"operator": "Exists"}, True, id="everything"),
        pytest.param({"operator": "Exists", "effect": "NoExecute"}, False, id="another effect"),
        pytest.param({"operator": "Exists", "effect": "NoSchedule"}, True, id="this effect"),
        pytest.param({"key": "a", "operator": "Gt", "value": "v"}, False, id="operator that is not known"),
    ],
)
def test_tolerations(toleration: dict[str, Any], takes: bool) -> None:
    assert taints.keeping_off([TAINT], [toleration]) == (() if takes else ("a",))


def test_each_taint_needs_a_toleration() -> None:
    """In their order, whatever the tolerations are; one toleration may take several."""
    three = [TAINT, {"key": "b", "effect": "NoExecute"}, {"key": "c", "effect": "NoSchedule"}]
    assert taints.keeping_off(three, [{"key": "b", "operator": "Exists"}]) == ("a", "c")
    assert taints.keeping_off(three, iter([{"operator": "Exists", "effect": "NoSchedule"}])) == ("b",)
