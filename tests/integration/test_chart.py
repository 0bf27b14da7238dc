"""What Helm makes of the chart: held to golden files, to the API server's strict validation, and to bad values.

`UPDATE_GOLDEN=1 pytest tests/integration/test_chart.py` writes the golden files anew; read the diff.
"""

import json
import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster import build
from tests.cluster.cluster import Cluster
from tests.paths import ROOT

pytestmark = pytest.mark.cluster

CHART = ROOT / "charts/gpupolicy"
GOLDEN = ROOT / "tests/golden/chart"

SETTINGS: dict[str, tuple[str, ...]] = {
    "default": (),
    "simulator": ("simulator.enabled=true",),
    "driver-container": ("agent.hostPaths.driver=/run/nvidia/driver", "agent.nvidiaContainerToolkit.ctk="),
    "rights-only": ("agent.enabled=false", "controller.replicas=0", "crds.install=false"),
    "monitoring": ("monitoring.enabled=true",),
    "cleanup": ("cleanup=true",),
    "custom": (
        "image.registry=registry.example.com/team",
        "image.tag=1.2.3",
        "image.pullSecrets={pull}",
        "controller.replicas=2",
        "controller.nodeSelector.zone=a",
        "controller.podLabels.team=infra",
        "controller.extraArgs={--stale-after-seconds=90}",
        "agent.hostPaths.kubelet=/data/kubelet",
        "agent.nodeSelector.zone=a",
        "agent.podAnnotations.note=x",
        "crds.keep=false",
    ),
}


def helm(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the pinned Helm."""
    (tool,) = [tool for tool in build.TOOLS if tool.name == "helm"]
    program = build.bin_directory([tool]) / "helm"
    return subprocess.run([program, *arguments], capture_output=True, text=True, check=False)


def render(*settings: str) -> str:
    """Return what `helm template` prints for settings."""
    words = [word for setting in settings for word in ("--set", setting)]
    done = helm("template", "gpupolicy", str(CHART), "--namespace", "gpupolicy-system", *words)
    assert done.returncode == 0, done.stderr
    return done.stdout


def objects(*settings: str) -> dict[tuple[str, str], Any]:
    """Return the rendered objects by kind and name."""
    documents = [d for d in yaml.safe_load_all(render(*settings)) if d]
    found = {(d["kind"], d["metadata"]["name"]): d for d in documents}
    assert len(found) == len(documents)
    return found


@pytest.mark.parametrize("name", SETTINGS)
def test_the_rendered_objects_are_as_they_were(name: str) -> None:
    """A change of what is installed shows up in review; the CRDs are held elsewhere."""
    shown = {
        key: value for key, value in objects(*SETTINGS[name]).items() if key[0] != "CustomResourceDefinition"
    }
    text = yaml.safe_dump_all([shown[key] for key in sorted(shown)], sort_keys=False, width=110)
    path = GOLDEN / f"{name}.yaml"
    if os.environ.get("UPDATE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text()


MONITORING_KINDS = {"PodMonitor", "PrometheusRule"}
"""Kinds of the Prometheus operator, whose CRDs the test cluster has not."""


@pytest.mark.parametrize("name", SETTINGS)
def test_the_api_server_accepts_every_object_as_it_is(cluster: Cluster, name: str) -> None:
    """Strict validation: no field that the API server would drop, nothing it would refuse."""
    documents = [d for key, d in objects(*SETTINGS[name]).items() if key[0] not in MONITORING_KINDS]
    for document in documents:
        if "namespace" in document["metadata"]:
            document["metadata"]["namespace"] = "default"
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": documents})
    cluster.kubectl("apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", "-", stdin=text)


BAD_VALUES = [
    pytest.param("agnet.enabled=true", "agnet", id="unknown-section"),
    pytest.param("agent.enable=true", "enable", id="unknown-name"),
    pytest.param("agent.hostPaths.kublet=/x", "kublet", id="unknown-nested-name"),
    pytest.param("agent.hostPaths.kubelet=var/lib", "/agent/hostPaths/kubelet", id="relative-path"),
    pytest.param("agent.healthPort=0", "/agent/healthPort", id="port-zero"),
    pytest.param("agent.nodeLabels=null", "/agent", id="no-labels"),
    pytest.param("agent.maxUnavailable=0", "/agent/maxUnavailable", id="none-may-be-unavailable"),
    pytest.param("controller.replicas=-1", "/controller/replicas", id="negative-replicas"),
    pytest.param("controller.logLevel=loud", "/controller/logLevel", id="unknown-level"),
    pytest.param("image.pullPolicy=Sometimes", "/image/pullPolicy", id="unknown-pull-policy"),
    pytest.param("image.registry=", "/image/registry", id="empty-registry"),
    pytest.param("image.registry=a b", "/image/registry", id="registry-with-a-space"),
    pytest.param("image.registry=null", "/image", id="no-registry"),
    pytest.param("image.tag=a b", "/image/tag", id="tag-with-a-space"),
    pytest.param("agent.imageTag=registry/agent:1", "/agent/imageTag", id="an-image-for-a-tag"),
    pytest.param("agent.imageTag=1", "/agent/imageTag", id="a-number-for-a-tag"),
    pytest.param("agent.healthPort=null", "/agent", id="no-port"),
    pytest.param("agent.hostPaths.cdi=null", "/agent/hostPaths", id="no-path"),
    pytest.param("simulator.gpus=99", "/simulator/gpus", id="too-many-cards"),
    pytest.param("simulator.model=H100 80GB", "/simulator/model", id="no-model"),
    pytest.param("monitoring.podMonitor.interval=soon", "/monitoring/podMonitor/interval", id="no-duration"),
    pytest.param("cleanup=yes", "/cleanup", id="no-boolean-for-cleanup"),
    pytest.param("cleanupSeconds=0", "/cleanupSeconds", id="no-time-to-clean-up"),
    pytest.param(
        "cleanup=true,cleanupSeconds=null", "cleanup=true needs cleanupSeconds", id="null-time-to-clean-up"
    ),
    pytest.param("crds.keep=maybe", "/crds/keep", id="no-boolean"),
]


@pytest.mark.parametrize(("setting", "words"), BAD_VALUES)
def test_a_bad_value_is_refused_by_name(setting: str, words: str) -> None:
    done = helm("template", "x", str(CHART), "--set", setting)
    assert done.returncode != 0, "Helm took it"
    assert words in done.stderr.replace("'", "").replace(".", "/")


def leaves(values: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Return the paths of all values that are no sections of their own."""
    for key, value in values.items():
        if isinstance(value, dict) and value and key not in ("resources", "labels"):
            yield from leaves(value, (*path, key))
        else:
            yield (*path, key)


VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
TEMPLATES = "\n".join(path.read_text() for path in sorted((CHART / "templates").rglob("*")) if path.is_file())


@pytest.mark.parametrize("path", list(leaves(VALUES)), ids=".".join)
def test_every_value_is_used_and_in_the_schema(path: tuple[str, ...]) -> None:
    """A value that no template reads, or that the schema does not know, would be a promise that nobody keeps."""
    assert re.search(rf"\.{path[-1]}\b", TEMPLATES)
    schema = json.loads((CHART / "values.schema.json").read_text())
    place = schema
    for key in path:
        place = place["properties"][key]
        if "$ref" in place:
            place = schema["definitions"][place["$ref"].rpartition("/")[2]]
    assert place


def pod(objects_: Mapping[tuple[str, str], Any], kind: str, name: str) -> dict[str, Any]:
    """Return the spec of a workload's pods."""
    found: dict[str, Any] = objects_[kind, name]["spec"]["template"]["spec"]
    return found


def test_the_controller_has_no_privilege_at_all() -> None:
    """It meets the restricted pod security standard."""
    spec = pod(objects(), "Deployment", "gpupolicy-controller")
    (container,) = spec["containers"]
    assert spec["securityContext"]["runAsNonRoot"]
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert not [v for v in spec["volumes"] if "hostPath" in v]
    assert "hostNetwork" not in spec
    assert "hostPID" not in spec


def test_only_real_cards_need_a_privileged_agent() -> None:
    real = pod(objects(), "DaemonSet", "gpupolicy-agent")["containers"][0]["securityContext"]
    spec = pod(objects("simulator.enabled=true"), "DaemonSet", "gpupolicy-agent")
    simulated = spec["containers"][0]["securityContext"]
    assert real["privileged"]
    assert real["readOnlyRootFilesystem"]
    assert "privileged" not in simulated
    assert simulated["capabilities"] == {"drop": ["ALL"], "add": ["DAC_OVERRIDE"]}
    assert spec["initContainers"][0]["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["MKNOD"]}


def test_what_the_agent_writes_outside_itself_is_listed_here() -> None:
    """A host path more is a decision, not an accident."""
    spec = pod(objects(), "DaemonSet", "gpupolicy-agent")
    paths = {v["name"]: v["hostPath"]["path"] for v in spec["volumes"] if "hostPath" in v}
    writable = {
        paths[m["name"]]
        for m in spec["containers"][0]["volumeMounts"]
        if m["name"] in paths and not m.get("readOnly")
    }
    assert writable == {
        "/dev",
        "/var/lib/kubelet/plugins/gpu.gpupolicy.dev",
        "/var/lib/kubelet/plugins_registry",
        "/var/run/cdi",
    }


@pytest.mark.parametrize("kept", [True, False])
def test_crds_are_kept_unless_told_otherwise(kept: bool) -> None:
    found = objects(f"crds.keep={str(kept).lower()}")
    definitions = [d for key, d in found.items() if key[0] == "CustomResourceDefinition"]
    assert len(definitions) == 2
    policies = {d["metadata"].get("annotations", {}).get("helm.sh/resource-policy") for d in definitions}
    assert policies == ({"keep"} if kept else {None})


def test_the_notes_name_the_next_command() -> None:
    """They stand at the end of what a dry run of an installation prints."""
    done = helm("install", "gpupolicy", str(CHART), "--dry-run=client", "--namespace", "gp", "--hide-secret")
    assert done.returncode == 0, done.stderr
    notes = done.stdout.partition("NOTES:")[2]
    assert "kubectl -n gp rollout status deployment/gpupolicy-controller" in notes
    assert "kubectl get gpunodes" in notes


def test_a_clean_up_needs_the_rights_that_the_chart_makes() -> None:
    done = helm("template", "x", str(CHART), "--set", "cleanup=true", "--set", "rbac.create=false")
    assert done.returncode != 0
    assert "cleanup=true needs rbac.create=true" in done.stderr


def test_what_only_a_clean_up_needs_exists_only_while_it_runs() -> None:
    """Every object of it is a hook that Helm removes; the job holds no privilege."""
    plain, cleaning = objects(), objects("cleanup=true")
    more = {key: d for key, d in cleaning.items() if key not in plain}
    assert {kind for kind, _ in more} == {
        "Job", "ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding",
    }  # fmt: skip
    for key, document in more.items():
        annotations = document["metadata"]["annotations"]
        assert annotations["helm.sh/hook"] == "pre-delete", key
        assert annotations["helm.sh/hook-delete-policy"] == "before-hook-creation,hook-succeeded", key
    assert {key: d for key, d in cleaning.items() if key in plain} == plain
    assert more["ClusterRole", "gpupolicy-cleanup"]["rules"] == [
        {"apiGroups": ["gpupolicy.dev"], "resources": ["gpunodes"], "verbs": ["get", "list", "patch"]}
    ]
    spec = pod(cleaning, "Job", "gpupolicy-cleanup")
    controller = pod(plain, "Deployment", "gpupolicy-controller")
    assert spec["securityContext"] == controller["securityContext"]
    (container,), (other,) = spec["containers"], controller["containers"]
    assert container["securityContext"] == other["securityContext"]
    assert container["image"] == other["image"]


def test_a_cluster_that_is_too_old_is_refused_by_helm() -> None:
    done = helm("template", "x", str(CHART), "--kube-version", "1.33.9")
    assert done.returncode != 0
    assert "kubeVersion: >=1.34.0-0" in done.stderr
    assert helm("template", "x", str(CHART), "--kube-version", "1.34.0-rc.1").returncode == 0


def test_labels_of_every_object() -> None:
    """What Helm and an admin look for; CRDs are shared by releases and carry only the product's."""
    for (kind, name), document in objects("monitoring.enabled=true", "cleanup=true").items():
        labels = document["metadata"]["labels"]
        assert labels["app.kubernetes.io/part-of"] == "gpupolicy", (kind, name)
        if kind != "CustomResourceDefinition":
            assert labels["app.kubernetes.io/instance"] == "gpupolicy", (kind, name)


def test_workloads_are_found_by_labels_that_never_change() -> None:
    for kind, name in (("Deployment", "gpupolicy-controller"), ("DaemonSet", "gpupolicy-agent")):
        selector = objects()[kind, name]["spec"]["selector"]["matchLabels"]
        assert set(selector) == {
            "app.kubernetes.io/name",
            "app.kubernetes.io/instance",
            "app.kubernetes.io/component",
        }


def chart_version() -> str:
    """Return the version in pyproject.toml."""
    match = re.search(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert match
    return match[1]


def test_the_chart_installs_the_version_of_this_package() -> None:
    chart = yaml.safe_load((Path(CHART) / "Chart.yaml").read_text())
    assert chart["appVersion"] == chart_version()
