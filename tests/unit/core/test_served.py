"""What is not served is refused by name, value and remedy; what no schema can refuse is refused here."""

from typing import Any

import pytest

from gpupolicy.api.conditions import Reason
from gpupolicy.api.policy import GpuPolicy
from gpupolicy.core import served
from tests.unit.core.wire import MIG, policy

SERVED: list[Any] = [
    pytest.param({}, id="empty"),
    pytest.param({"sharing": {"strategy": "Exclusive"}}, id="exclusive"),
    pytest.param({"sharing": MIG}, id="static-mig"),
    pytest.param({"rollout": {"mode": "Plan"}}, id="plan-only"),
    pytest.param({"rollout": {"onBusy": "Wait", "maxUnavailableNodes": 1}}, id="defaults-written-out"),
    pytest.param({"onDelete": "Retain", "adopt": False}, id="retain"),
    pytest.param({"offers": [{"deviceClassName": "a"}, {"deviceClassName": "b"}]}, id="offers-without-names"),
    pytest.param({"gpusPerNode": 4, "priority": 7, "gpuSelector": {"cel": "true"}}, id="selection"),
]

UNSERVED: list[Any] = [
    pytest.param(
        {"sharing": {"strategy": "TimeSlicing", "timeSlicing": {"maxShares": 4}}},
        ["spec.sharing.strategy: TimeSlicing is not served", "use Exclusive or MIG"],
        id="time-slicing",
    ),
    pytest.param(
        {"sharing": {"strategy": "MPS", "mps": {"maxClients": 4}}}, ["spec.sharing.strategy: MPS"], id="mps"
    ),
    pytest.param(
        {"sharing": {"strategy": "MIG", "mig": {"mode": "OnDemand"}}},
        ["spec.sharing.mig.mode: OnDemand", "use Static"],
        id="on-demand",
    ),
    pytest.param({"rollout": {"onBusy": "Evict"}}, ["spec.rollout.onBusy: Evict", "use Wait"], id="evict"),
    pytest.param(
        {"rollout": {"window": {"start": "02:00", "durationMinutes": 60}}},
        ["spec.rollout.window: 02:00 for 60 minutes", "remove it"],
        id="window",
    ),
    pytest.param({"rollout": {"maxUnavailableNodes": 3}}, ["maxUnavailableNodes: 3"], id="several-nodes"),
    pytest.param({"onDelete": "Restore"}, ["spec.onDelete: Restore", "use Retain"], id="restore"),
    pytest.param({"adopt": True}, ["spec.adopt: true", "nvidia-smi mig"], id="adopt"),
]


@pytest.mark.parametrize("spec", SERVED)
def test_what_is_served_passes(spec: dict[str, Any]) -> None:
    assert served.refusal(policy(**spec)) is None


@pytest.mark.parametrize(("spec", "texts"), UNSERVED)
def test_what_is_not_served_is_refused_with_field_value_and_remedy(
    spec: dict[str, Any], texts: list[str]
) -> None:
    refusal = served.refusal(policy(**spec))

    assert refusal is not None
    assert refusal.reason is Reason.NOT_IMPLEMENTED
    assert [text for text in texts if text not in refusal.message] == []


def test_every_unserved_field_of_a_policy_is_named() -> None:
    refusal = served.refusal(policy(adopt=True, onDelete="Restore"))

    assert refusal is not None
    assert "spec.onDelete" in refusal.message
    assert "spec.adopt" in refusal.message


def test_every_row_has_a_case_of_its_own() -> None:
    """A row that no case reaches could be wrong in silence."""
    messages = [served.refusal(policy(**case.values[0])).message for case in UNSERVED]  # type: ignore[union-attr]

    assert [row.field for row in served.UNSERVED if not any(row.field in m for m in messages)] == []


@pytest.mark.parametrize(("length", "refused"), [(63, False), (64, True)])
def test_a_name_that_is_no_label_is_refused(length: int, refused: bool) -> None:
    refusal = served.refusal(policy("a" * length))

    assert (refusal is not None) is refused
    if refusal is not None:
        assert refusal.reason is Reason.INVALID_POLICY
        assert "metadata.name" in refusal.message
        assert "63" in refusal.message


def test_one_extended_name_for_two_offers_is_refused() -> None:
    offers = [
        {"deviceClassName": "a", "extendedResourceName": "nvidia.com/gpu"},
        {"deviceClassName": "b", "extendedResourceName": "nvidia.com/gpu"},
    ]

    refusal = served.refusal(policy(offers=offers))

    assert refusal is not None
    assert refusal.reason is Reason.INVALID_POLICY
    assert "nvidia.com/gpu is the extendedResourceName of a and of b" in refusal.message


@pytest.mark.parametrize("row", served.UNSERVED, ids=lambda row: row.field)
def test_explain_says_what_is_not_served(row: served.Unserved) -> None:
    """Who reads `kubectl explain` before writing a policy must not learn it from the refusal."""
    schema: Any = GpuPolicy.model_json_schema(by_alias=True)
    field: Any = schema
    for name in row.field.split("."):
        target = field.get("$ref") or next((o["$ref"] for o in field.get("anyOf", ()) if "$ref" in o), None)
        field = (schema["$defs"][target.rpartition("/")[2]] if target else field)["properties"][name]

    assert "not served yet" in field["description"].lower()
