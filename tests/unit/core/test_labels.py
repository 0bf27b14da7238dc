"""Label selectors mean what they mean everywhere in Kubernetes."""

import pytest

from gpupolicy.api import wire
from gpupolicy.core.labels import LabelRequirement, LabelSelector

LABELS = {"pool": "infer", "zone": ""}


@pytest.mark.parametrize(
    ("selector", "selects"),
    [
        pytest.param({}, True, id="empty-selects-all"),
        pytest.param({"matchLabels": {"pool": "infer"}}, True, id="label"),
        pytest.param({"matchLabels": {"pool": "train"}}, False, id="other-value"),
        pytest.param({"matchLabels": {"absent": ""}}, False, id="absent-is-not-empty"),
        pytest.param({"matchLabels": {"zone": ""}}, True, id="empty-value"),
        pytest.param({"matchLabels": {"pool": "infer", "zone": "b"}}, False, id="labels-are-anded"),
        *(
            pytest.param(
                {"matchExpressions": [{"key": key, "operator": operator, "values": values}]},
                expected,
                id=f"{operator}-{key}-{'-'.join(values)}",
            )
            for key, operator, values, expected in [
                ("pool", "In", ["train", "infer"], True),
                ("pool", "In", ["train"], False),
                ("absent", "In", ["x"], False),
                ("pool", "NotIn", ["train"], True),
                ("pool", "NotIn", ["infer"], False),
                ("absent", "NotIn", ["x"], True),
                ("pool", "Exists", [], True),
                ("absent", "Exists", [], False),
                ("pool", "DoesNotExist", [], False),
                ("absent", "DoesNotExist", [], True),
            ]
        ),
        pytest.param(
            {
                "matchLabels": {"pool": "infer"},
                "matchExpressions": [{"key": "zone", "operator": "DoesNotExist"}],
            },
            False,
            id="labels-and-expressions",
        ),
    ],
)
def test_selects(selector: dict, selects: bool) -> None:
    parsed = LabelSelector.of(wire.LabelSelector.model_validate(selector))

    assert parsed.selects(LABELS) is selects
    assert parsed.problem is None


@pytest.mark.parametrize(
    ("requirement", "problem"),
    [
        (LabelRequirement("pool", "In"), "In on pool needs values"),
        (LabelRequirement("pool", "NotIn"), "NotIn on pool needs values"),
        (LabelRequirement("pool", "Exists", ("x",)), "Exists on pool takes no values"),
        (
            LabelRequirement("pool", "Gt", ("1",)),
            'operator "Gt" on pool is none of In, NotIn, Exists, DoesNotExist',
        ),
    ],
    ids=lambda value: value.operator if isinstance(value, LabelRequirement) else "",
)
def test_malformed_requirements_are_named(requirement: LabelRequirement, problem: str) -> None:
    assert LabelSelector((requirement,)).problem == problem


def test_an_unknown_operator_selects_nothing() -> None:
    assert not LabelSelector((LabelRequirement("pool", "Gt", ("1",)),)).selects(LABELS)
