"""Where a pod may run."""

from typing import Any

import pytest

from gpupolicy.core import pod_nodes

TAINT = {"key": "gpu", "effect": "NoSchedule"}


def node(name: str, *, labels: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": labels or {}}, "spec": spec}


def affinity(*terms: dict[str, Any]) -> dict[str, Any]:
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}
    return {"affinity": {"nodeAffinity": required}}


def expression(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


A = node("a", labels={"pool": "x", "disk": "ssd"})
FIELD_A = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["a"]}]}


@pytest.mark.parametrize(
    ("spec", "where", "reason"),
    [
        pytest.param({}, A, "", id="no wishes"),
        pytest.param({"nodeSelector": {"pool": "x"}}, A, "", id="selected"),
        pytest.param({"nodeSelector": {"pool": "y"}}, A, "nodeSelector pool=y", id="another value"),
        pytest.param({"nodeSelector": {"zone": "1"}}, A, "nodeSelector zone=1", id="no such label"),
        pytest.param(
            {"nodeSelector": {"zone": "1", "arch": "q"}}, A, "nodeSelector arch=q", id="the first by name"
        ),
        pytest.param(affinity(expression("pool", "In", "x", "y")), A, "", id="In"),
        pytest.param(affinity(expression("pool", "NotIn", "x")), A, "nodeAffinity", id="NotIn"),
        pytest.param(affinity(expression("disk", "Exists")), A, "", id="Exists"),
        pytest.param(affinity(expression("disk", "DoesNotExist")), A, "nodeAffinity", id="DoesNotExist"),
        pytest.param(
            affinity(expression("pool", "In", "y"), expression("disk", "Exists")),
            A,
            "",
            id="one of the terms",
        ),
        pytest.param(affinity({}), A, "nodeAffinity", id="an empty term holds nowhere"),
        pytest.param(affinity(expression("pool", "Gt", "1")), A, "", id="not judged, so not excluded"),
        pytest.param(affinity(FIELD_A), A, "", id="field"),
        pytest.param(affinity(FIELD_A), node("b"), "nodeAffinity", id="field of another"),
        pytest.param({"affinity": {"nodeAffinity": {}}}, A, "", id="wishes only"),
        pytest.param(
            {}, node("a", unschedulable=True), "taint node.kubernetes.io/unschedulable", id="cordoned"
        ),
        pytest.param(
            {"tolerations": [{"operator": "Exists"}]}, node("a", unschedulable=True), "", id="takes a cordon"
        ),
        pytest.param({}, node("a", taints=[TAINT]), "taint gpu", id="tainted"),
        pytest.param(
            {"tolerations": [{"key": "gpu", "operator": "Exists"}]},
            node("a", taints=[TAINT]),
            "",
            id="tolerated",
        ),
    ],
)
def test_reasons(spec: dict[str, Any], where: dict[str, Any], reason: str) -> None:
    expected = {where["metadata"]["name"]: reason} if reason else {}
    assert pod_nodes.exclusions({"spec": spec}, [where]) == expected


def test_every_node_has_its_own_reason() -> None:
    """A pod without spec, as no server shows one, is excluded by taints only."""
    nodes = [A, node("b", taints=[TAINT]), {"metadata": {"name": "c"}}]
    assert pod_nodes.exclusions({"spec": {"nodeSelector": {"disk": "ssd"}}}, nodes) == {
        "b": "nodeSelector disk=ssd",
        "c": "nodeSelector disk=ssd",
    }
    assert pod_nodes.exclusions({}, nodes) == {"b": "taint gpu"}
