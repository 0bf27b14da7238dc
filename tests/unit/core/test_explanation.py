"""The one answer for a pod: state, rows, what it holds, and notes."""

from typing import Any

import pytest

from gpupolicy.adapters.cel import engine
from gpupolicy.api import names
from gpupolicy.core import explanation
from gpupolicy.core.explanation import Explanation, Objects
from gpupolicy.core.sieve import Cause
from tests.unit.core import wire

ENGINE = engine.Engine()
NAME = "nvidia.com/gpu"
CLAIM = {"name": "gpu", "resourceClaimName": "x"}


def device_class(name: str, policy: str, extended: str | None = None) -> dict[str, Any]:
    expression = (
        f'device.driver == "{wire.DRIVER}" && device.attributes["{wire.DRIVER}"].policy == "{policy}"'
    )
    labels = {names.MANAGED_BY_LABEL: names.MANAGED_BY, names.POLICY_LABEL: policy}
    return {
        "metadata": {"name": name, "labels": labels, "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"selectors": [{"cel": {"expression": expression}}], "extendedResourceName": extended},
    }


def pod(
    *claims: dict[str, Any], limits: dict[str, str] | None = None, phase: str = "Pending", **spec: Any
) -> dict[str, Any]:
    resources = {"limits": limits} if limits else {}
    return {
        "metadata": {"name": "p", "namespace": "team"},
        "spec": {
            "resourceClaims": list(claims),
            "containers": [{"name": "c", "resources": resources}],
            **spec,
        },
        "status": {"phase": phase},
    }


def node(name: str, **labels: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": labels}}


def claim(*class_names: str, name: str = "x", namespace: str = "team", **devices: Any) -> dict[str, Any]:
    requests = [
        {"name": f"r{n}", "exactly": {"deviceClassName": class_name}}
        for n, class_name in enumerate(class_names)
    ]
    return {
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"devices": {"requests": requests, **devices}},
    }


CLUSTER: dict[str, Any] = {
    "slices": (
        wire.resource_slice("n1", *(wire.gpu(f"a{n}", "train", f"GPU-a{n}") for n in range(2))),
        wire.resource_slice("n2", wire.gpu("b0", "infer", "GPU-b0")),
    ),
    "classes": (device_class("h100", "train", NAME), device_class("small", "infer")),
    "nodes": (node("n1", zone="1"), node("n2", zone="2")),
}


def explain(asking: dict[str, Any], *claims: dict[str, Any], **objects: Any) -> Explanation:
    return explanation.explain(asking, Objects(**{**CLUSTER, "claims": claims, **objects}), ENGINE)


HELD = wire.claim("held", ("n1", "a0"), ("n1", "a1"))


@pytest.mark.parametrize(
    ("asking", "claims", "summary", "causes"),
    [
        pytest.param(pod(), [], "Pending: the pod asks for no devices of a claim", [], id="nothing"),
        pytest.param(
            pod(limits={NAME: "2"}),
            [],
            "Pending: enough devices are free; if the pod goes on waiting, something else is in the way",
            [Cause.FREE],
            id="free",
        ),
        pytest.param(
            pod(limits={NAME: "1"}),
            [HELD],
            "Pending: its request cannot be satisfied now",
            [Cause.NONE_FREE],
            id="none free",
        ),
        pytest.param(
            pod(CLAIM),
            [HELD, claim("small", "h100", "gone")],
            "Pending: 2 of its 3 requests cannot be satisfied now",
            [Cause.FREE, Cause.NONE_FREE, Cause.CLASS_MISSING],
            id="two of three",
        ),
        pytest.param(
            pod(CLAIM),
            [claim("small", "h100")],
            "Pending: each request can be satisfied, but no node has devices for all of them at once",
            [Cause.FREE, Cause.FREE],
            id="not together",
        ),
        pytest.param(
            pod(CLAIM),
            [],
            "Pending: ResourceClaim x does not exist: create it, or make the pod again",
            [],
            id="no claim",
        ),
        pytest.param(
            pod(CLAIM),
            [claim("h100", namespace="other")],
            "Pending: ResourceClaim x does not exist: create it, or make the pod again",
            [],
            id="claim of another namespace",
        ),
        pytest.param(
            pod(limits={NAME: "1"}, schedulingGates=[{"name": "kueue.x-k8s.io/admission"}]),
            [],
            "Pending: nothing is allocated while scheduling gates stand: kueue.x-k8s.io/admission",
            [Cause.FREE],
            id="gated",
        ),
        pytest.param(
            pod(limits={NAME: "1"}, nodeSelector={"zone": "2"}),
            [],
            "Pending: its request cannot be satisfied now",
            [Cause.NODES_EXCLUDED],
            id="wrong nodes",
        ),
        pytest.param(
            pod(limits={NAME: "1"}, phase="Succeeded"),
            [],
            "Succeeded: the pod has ended and waits for nothing",
            [],
            id="ended",
        ),
        pytest.param(
            pod(CLAIM, phase="Running", nodeName="n1"),
            [wire.claim("x", ("n1", "a0"))],
            "Running: on node n1, the pod has all its devices",
            [],
            id="runs",
        ),
        pytest.param(
            pod(CLAIM),
            [wire.claim("x", ("n1", "a0"))],
            "Pending: the pod has all its devices",
            [],
            id="allocated and not placed",
        ),
    ],
)
def test_states(asking: dict[str, Any], claims: list[Any], summary: str, causes: list[Cause]) -> None:
    found = explain(asking, *claims)
    assert (found.summary, [row.cause for row in found.rows]) == (summary, causes)


def test_alternatives_are_one_request() -> None:
    """One that fits is enough, and what fits together is not judged then."""
    wanted = claim()
    wanted["spec"]["devices"]["requests"] = [
        {
            "name": "any",
            "firstAvailable": [
                {"name": "first", "deviceClassName": "h100", "count": 3},
                {"name": "then", "deviceClassName": "small"},
            ],
        },
        {"name": "other", "exactly": {"deviceClassName": "h100"}},
    ]
    found = explain(pod(CLAIM), wanted)
    assert [(row.alternative.name, row.cause) for row in found.rows] == [
        ("any/first", Cause.TOO_FEW_FREE),
        ("any/then", Cause.FREE),
        ("other", Cause.FREE),
    ]
    assert found.summary.startswith("Pending: enough devices are free")


def test_what_the_pod_holds_has_its_node() -> None:
    """Also a device that is no longer published."""
    found = explain(pod(CLAIM, phase="Running", nodeName="n1"), wire.claim("x", ("n1", "a0"), ("n1", "gone")))
    assert [(held.device, where) for held, where in found.held] == [("a0", "n1"), ("gone", "")]


def test_a_claim_that_is_allocated_ties_the_others_to_its_node() -> None:
    second = {"name": "second", "resourceClaimName": "y"}
    found = explain(pod(CLAIM, second), wire.claim("x", ("n1", "a0")), claim("small", name="y"))
    (row,) = found.rows
    assert row.cause is Cause.NODES_EXCLUDED
    assert row.message.endswith("n2 (a claim of the pod is allocated on n1)")


def policy(name: str = "train", *, access: Any = None, conditions: Any = None) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {"access": access}, "status": {"conditions": conditions}}


WAITS = {"type": "Ready", "status": "False", "reason": "WaitingForClaims", "message": "card 3 is in use"}
TEAM_A = {"namespaces": {"matchLabels": {"team": "a"}}}


@pytest.mark.parametrize(
    ("policies", "labels", "notes"),
    [
        pytest.param([policy()], {}, [], id="open and ready"),
        pytest.param(
            [policy(conditions=[WAITS])],
            {},
            ["GpuPolicy train is not Ready: WaitingForClaims: card 3 is in use"],
            id="not ready",
        ),
        pytest.param([policy(conditions=[{**WAITS, "status": "True"}])], {}, [], id="ready"),
        pytest.param([policy(conditions=[{**WAITS, "type": "Reviewed"}])], {}, [], id="another condition"),
        pytest.param([policy("infer", conditions=[WAITS])], {}, [], id="a policy that is not asked"),
        pytest.param(
            [policy(access=TEAM_A)],
            {"team": "b"},
            [
                "GpuPolicy train admits namespaces with team=a, and this is none; new claims are refused",
            ],
            id="fenced off",
        ),
        pytest.param([policy(access=TEAM_A)], {"team": "a"}, [], id="admitted"),
        pytest.param([policy(access=TEAM_A)], None, [], id="labels not known"),
        pytest.param([policy(access={"quotas": []})], {"team": "b"}, [], id="no fence"),
    ],
)
def test_notes_of_the_policy(
    policies: list[dict[str, Any]], labels: dict[str, str] | None, notes: list[str]
) -> None:
    found = explain(pod(limits={NAME: "1"}), policies=policies, namespace_labels=labels)
    assert list(found.notes) == notes


def test_the_schedulers_words_and_constraints() -> None:
    """What the scheduler said last, and what is not judged here; in this order."""
    asking = pod(CLAIM)
    waiting = {"type": "PodScheduled", "status": "False", "message": "0/2 nodes are available"}
    asking["status"]["conditions"] = [{"type": "Ready", "status": "False", "message": "no"}, waiting]
    found = explain(asking, claim("h100", constraints=[{"matchAttribute": "a/b"}]))
    assert found.notes == (
        "the scheduler says: 0/2 nodes are available",
        "the claim has constraints between its devices, which are not judged here",
    )
    waiting["status"] = "True"
    assert len(explain(asking, claim("h100", constraints=[{"matchAttribute": "a/b"}])).notes) == 1


def test_a_cluster_without_anything() -> None:
    """No slices, no classes, no nodes: still an answer that names what is missing."""
    found = explain(pod(limits={NAME: "1"}), slices=(), classes=(), nodes=())
    assert found.summary.startswith(f"Pending: no DeviceClass has the extendedResourceName {NAME}")
    assert found.problems == (found.summary.removeprefix("Pending: "),)


def test_an_object_as_bare_as_can_be() -> None:
    assert explain({"metadata": {"name": "p"}}).summary == "Unknown: the pod asks for no devices of a claim"
