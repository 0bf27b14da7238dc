"""The CRDs on a real API server: what is refused when a policy is applied, and in which words (R6)."""

import json
from typing import Any

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.control_plane import KubectlError
from tests.cluster.definitions import install_definitions
from tests.paths import ROOT

pytestmark = pytest.mark.cluster

MIG = {"strategy": "MIG", "mig": {"layout": [{"profile": "1g.10gb", "count": 2}]}}


@pytest.fixture(scope="module", autouse=True)
def _definitions(cluster: Cluster) -> None:
    """The CRDs as committed, known to everybody."""
    install_definitions(cluster, ROOT / "crds")


def apply(cluster: Cluster, spec: dict[str, Any]) -> str:
    """Ask the API server, and let nothing stay."""
    policy = {
        "apiVersion": "gpupolicy.dev/v1alpha1",
        "kind": "GpuPolicy",
        "metadata": {"name": "candidate"},
        "spec": spec,
    }
    return cluster.kubectl(
        "create", "--dry-run=server", "--validate=strict", "-o", "json", "-f", "-", stdin=json.dumps(policy)
    )


REFUSED: list[Any] = [
    pytest.param(
        {"sharing": {"strategy": "MIG", "mig": {"layout": [{"profile": "3g.40gb", "count": 3}]}}},
        ["spec.sharing.mig.layout", "at most 8; an H100 has 7"],
        id="more-slices-than-any-card",
    ),
    pytest.param(
        {"sharing": {"strategy": "MIG", "mig": {"layout": [{"profile": "1g.10gb+me", "count": 2}]}}},
        ["spec.sharing.mig.layout", "+me"],
        id="media-engines-twice",
    ),
    pytest.param(
        {"sharing": {"strategy": "MIG", "mig": {"layout": [{"profile": "banana", "count": 1}]}}},
        ["spec.sharing.mig.layout[0].profile", '"banana"', "1g.10gb"],
        id="profile-is-no-profile",
    ),
    pytest.param(
        {"sharing": {"strategy": "MIG", "mig": {"layout": [{"profile": "1g.10gb", "count": 0}]}}},
        ["spec.sharing.mig.layout[0].count", "greater than or equal to 1"],
        id="count-zero",
    ),
    pytest.param(
        {"sharing": {"strategy": "MIG", "mig": {"layout": [{"profile": "1g.10gb", "count": 1}] * 2}}},
        ["spec.sharing.mig.layout[1]", "Duplicate value"],
        id="profile-listed-twice",
    ),
    pytest.param(
        {"sharing": {"strategy": "MIG"}}, ["spec.sharing", "needs sharing.mig"], id="mig-without-layout"
    ),
    pytest.param(
        {"sharing": {"strategy": "MIG", "mig": {"mode": "Static"}}},
        ["spec.sharing.mig", "needs at least one entry"],
        id="static-without-entries",
    ),
    pytest.param(
        {"sharing": {"strategy": "MIG", "mig": {"mode": "OnDemand", "layout": MIG["mig"]["layout"]}}},  # type: ignore[index]
        ["spec.sharing.mig", "leave layout out"],
        id="on-demand-with-layout",
    ),
    pytest.param(
        {"sharing": {"strategy": "Exclusive", "mig": MIG["mig"]}},
        ["spec.sharing", "set strategy: MIG"],
        id="layout-without-mig",
    ),
    pytest.param(
        {"sharing": {"strategy": "TimeSlicing", "timeSlicing": {"maxShares": 0}}},
        ["spec.sharing.timeSlicing.maxShares", "greater than or equal to 1"],
        id="no-shares",
    ),
    pytest.param(
        {"sharing": {"strategy": "TimeSlicing", "timeSlicing": {"maxShares": 4, "interval": "UltraFast"}}},
        ["spec.sharing.timeSlicing.interval", '"Default", "Short", "Medium", "Long"'],
        id="interval-unknown",
    ),
    pytest.param(
        {"sharing": {"strategy": "Magic"}},
        ["spec.sharing.strategy", '"Exclusive", "MIG", "TimeSlicing", "MPS"'],
        id="strategy-unknown",
    ),
    pytest.param({"sharing": {"strategy": "MPS"}}, ["spec.sharing", "mps:"], id="mps-without-settings"),
    pytest.param(
        {"gpuSelector": {"minMemory": "lots"}},
        ["spec.gpuSelector.minMemory", '"lots"', "e.g. 79Gi"],
        id="memory-is-no-quantity",
    ),
    pytest.param({"gpuSelector": {"minMemory": "0"}}, ["minMemory", "positive quantity"], id="memory-zero"),
    pytest.param(
        {"gpuSelector": {"minComputeCapability": "nine"}},
        ["spec.gpuSelector.minComputeCapability", '"nine"', "major.minor"],
        id="capability-is-no-version",
    ),
    pytest.param(
        {"gpuSelector": {"minComputeCapability": 9.0}},
        ["spec.gpuSelector.minComputeCapability", "must be of type string"],
        id="capability-unquoted",
    ),
    pytest.param(
        {"gpuSelector": {"cel": "x" * 10241}},
        ["spec.gpuSelector.cel", "may not be more than 10240"],
        id="cel-long",
    ),
    pytest.param({"gpusPerNode": 0}, ["spec.gpusPerNode", "greater than or equal to 1"], id="no-cards"),
    pytest.param({"priority": -1}, ["spec.priority", "greater than or equal to 0"], id="priority-negative"),
    pytest.param({"sharing": {"stategy": "MIG"}}, ['unknown field "spec.sharing.stategy"'], id="typo"),
    pytest.param(
        {"offers": [{"deviceClassName": "Not_A_Name"}]},
        ["spec.offers[0].deviceClassName"],
        id="class-name-malformed",
    ),
    pytest.param(
        {"offers": [{"deviceClassName": "a", "extendedResourceName": "kubernetes.io/gpu"}]},
        ["spec.offers[0].extendedResourceName", "outside kubernetes.io"],
        id="name-reserved",
    ),
    pytest.param(
        {"offers": [{"deviceClassName": "a", "extendedResourceName": "nvidia.com/" + "x" * 64}]},
        ["spec.offers[0].extendedResourceName", "at most 63"],
        id="name-long",
    ),
    pytest.param(
        {"offers": [{"deviceClassName": "a", "profile": "1g.10gb"}]},
        ["offers", "names its profile, others must not"],
        id="profile-of-a-whole-card",
    ),
    pytest.param(
        {"sharing": MIG, "offers": [{"deviceClassName": "a"}]},
        ["offers", "names its profile"],
        id="slice-unnamed",
    ),
    pytest.param(
        {"sharing": MIG, "offers": [{"deviceClassName": "a", "profile": "2g.20gb"}]},
        ["offers", "must be part of sharing.mig.layout"],
        id="profile-not-cut",
    ),
    pytest.param(
        {"rollout": {"window": {"start": "25:00", "durationMinutes": 10}}},
        ["spec.rollout.window.start", '"25:00"', "02:00"],
        id="window-at-no-time",
    ),
    pytest.param(
        {"nodeSelector": {"matchExpressions": [{"key": "a", "operator": "Near"}]}},
        ["spec.nodeSelector.matchExpressions[0].operator"],
        id="selector-operator-unknown",
    ),
]


@pytest.mark.parametrize(("spec", "words"), REFUSED)
def test_a_bad_value_is_refused_at_apply(cluster: Cluster, spec: dict[str, Any], words: list[str]) -> None:
    """The refusal names field, value and remedy, before anything is stored."""
    with pytest.raises(KubectlError) as refusal:
        apply(cluster, spec)
    assert [word for word in words if word not in refusal.value.stderr] == [], refusal.value.stderr


ACCEPTED: list[Any] = [
    pytest.param({}, id="empty"),
    pytest.param({"sharing": MIG}, id="mig"),
    pytest.param(
        {"sharing": {"strategy": "MIG", "mig": {"layout": [{"profile": "1g.10gb", "count": 7}]}}},
        id="seven-slices",
    ),
    pytest.param(
        {"sharing": {"strategy": "MIG", "mig": {"layout": [{"profile": "1c.3g.40gb", "count": 2}]}}},
        id="compute-instance-profile",
    ),
    pytest.param({"sharing": {"strategy": "MIG", "mig": {"mode": "OnDemand"}}}, id="on-demand"),
    pytest.param(
        {"sharing": {"strategy": "MPS", "mps": {"maxClients": 8}, "mig": MIG["mig"]}}, id="mps-inside-mig"
    ),
    pytest.param({"gpuSelector": {"minMemory": "79Gi", "minComputeCapability": "9.0"}}, id="typed-selector"),
    pytest.param(
        {"nodeSelector": {"matchExpressions": [{"key": "a", "operator": "Exists"}]}}, id="expression"
    ),
]


@pytest.mark.parametrize("spec", ACCEPTED)
def test_a_good_policy_is_accepted(cluster: Cluster, spec: dict[str, Any]) -> None:
    """The other side of the table, so that no rule refuses everything."""
    assert json.loads(apply(cluster, spec))["kind"] == "GpuPolicy"


@pytest.mark.parametrize("name", ["train", "infer", "short"])
def test_the_examples_are_accepted(cluster: Cluster, name: str) -> None:
    """What the documentation shows can be applied as it stands."""
    cluster.kubectl(
        "create", "--dry-run=server", "--validate=strict", "-f", str(ROOT / f"examples/{name}.yaml")
    )


def test_a_name_without_a_slash_is_refused_once(cluster: Cluster) -> None:
    """The rule on the part after the slash does not fail on a name that has none."""
    with pytest.raises(KubectlError) as refusal:
        apply(cluster, {"offers": [{"deviceClassName": "a", "extendedResourceName": "gpu"}]})
    assert "spec.offers[0].extendedResourceName" in refusal.value.stderr
    assert "index out of bounds" not in refusal.value.stderr


def test_defaults_say_what_an_empty_policy_means(cluster: Cluster) -> None:
    """An admin who reads the object back sees the strategy and the rollout that apply."""
    spec = json.loads(apply(cluster, {}))["spec"]
    assert (spec["sharing"]["strategy"], spec["rollout"]["mode"], spec["onDelete"], spec["priority"]) == (
        "Exclusive",
        "Apply",
        "Retain",
        0,
    )


def undocumented(schema: dict[str, Any], path: str) -> list[str]:
    """Return the paths of fields below a schema that have no description."""
    found = []
    for name, inner in schema.get("properties", {}).items():
        here = f"{path}.{name}"
        if not inner.get("description") and path:
            found.append(here)
        found += undocumented(inner, here)
    if "items" in schema:
        found += undocumented(schema["items"], f"{path}[]")
    return found


@pytest.mark.parametrize("kind", ["gpupolicies", "gpunodes"])
def test_every_field_is_explained(cluster: Cluster, kind: str) -> None:
    """`kubectl explain` reads like a manual: no field without a text."""
    definition = json.loads(cluster.kubectl("get", "crd", f"{kind}.gpupolicy.dev", "-o", "json"))
    schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    assert undocumented(schema["spec"], "spec") + undocumented(schema["status"], "status") == []


def test_explain_shows_the_text(cluster: Cluster) -> None:
    """The text reaches the person who asks for it."""
    shown = " ".join(cluster.kubectl("explain", "gpupolicy.spec.rollout.onBusy").split())
    assert "instances in use are left alone until their claims are gone" in shown


def test_the_columns_of_the_table(cluster: Cluster) -> None:
    """The table of the documentation, before anything has reported."""
    cluster.kubectl("apply", "-f", str(ROOT / "examples/train.yaml"))
    try:
        header = cluster.kubectl("get", "gpupolicies").splitlines()[0].split()
        wide = cluster.kubectl("get", "gpol", "-o", "wide").splitlines()[0].split()
    finally:
        cluster.kubectl("delete", "gpupolicy", "train")
    assert header == ["NAME", "STRATEGY", "NODES", "GPUS", "DEVICES", "ALLOCATED", "FREE", "READY", "AGE"]
    assert wide[len(header) :] == ["PRIORITY", "REASON", "MESSAGE"]
