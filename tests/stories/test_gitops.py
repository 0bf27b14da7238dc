"""Everything applied twice by a tool that compares all the time: no difference, and nothing moves (R51).

The chart is rendered and applied as Argo CD does, with server-side apply under a name of its own; Helm is not asked to
install anything. The tests of this module go on from each other.
"""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.cluster.cluster import Cluster
from tests.paths import ROOT
from tests.stack import NAMESPACE, GpuNodeOptions, Stack
from tests.stories import objects

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(600)]

MANAGER = "--field-manager=argocd-controller"

COMPARER = """
import difflib, pathlib, sys
import yaml

def read(folder):
    found = {}
    for path in pathlib.Path(folder).iterdir():
        document = yaml.safe_load(path.read_text())
        document.pop("status", None)
        document["metadata"].pop("resourceVersion", None)
        found[path.name] = yaml.safe_dump(document)
    return found

live, merged = map(read, sys.argv[1:3])
lines = [
    line
    for name in sorted(live.keys() | merged.keys())
    for line in difflib.unified_diff(live.get(name, "").split(), merged.get(name, "").split(), name)
]
print(*lines, sep=chr(10), end="")
sys.exit(bool(lines))
"""
"""Compares the two folders that `kubectl diff` makes, without statuses."""


def documented_policies() -> list[dict[str, Any]]:
    """Return the policies of examples/ and those of the pages, each name once."""
    texts = [path.read_text() for path in sorted((ROOT / "examples").glob("*.yaml"))]
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        texts += re.findall(r"```yaml\n(.*?)```", page.read_text(), re.DOTALL)
    found: dict[str, dict[str, Any]] = {}
    for text in texts:
        for document in yaml.safe_load_all(text):
            if isinstance(document, dict) and document.get("kind") == "GpuPolicy":
                found.setdefault(document["metadata"]["name"], document)
    return list(found.values())


class Repository:
    """What a GitOps tool holds, and how it brings it to the cluster."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        first = stack.cluster.nodes[0].name
        settings = (
            "simulator.enabled=true",
            "simulator.gpus=1",
            "image.pullPolicy=Never",
            f"controller.nodeSelector.kubernetes\\.io/hostname={first}",
        )
        words = [word for setting in settings for word in ("--set", setting)]
        self.chart = stack.helm(
            "template", "gpupolicy", str(ROOT / "charts/gpupolicy"), "-n", NAMESPACE, *words
        )
        self.policies = json.dumps({"apiVersion": "v1", "kind": "List", "items": documented_policies()})

    def sync(self, manifests: str) -> None:
        """Apply manifests."""
        self.stack.kubectl("apply", "--server-side", MANAGER, "-n", NAMESPACE, "-f", "-", stdin=manifests)

    def difference(self, manifests: str, *, status: bool = True) -> str:
        """Return what `kubectl diff` prints; empty where there is no difference.

        Args:
            manifests: what is wanted.
            status: whether statuses count. They may move between its two reads, so a tool leaves them out.

        Raises:
            RuntimeError: it failed.
        """
        plane = self.stack.cluster.control_plane
        environment = plane.environment()
        if not status:
            comparer = plane.run.directory / "compare-without-status"
            comparer.write_text(f"#!{sys.executable}\n{COMPARER}")
            comparer.chmod(0o755)
            environment["KUBECTL_EXTERNAL_DIFF"] = str(comparer)
        done = subprocess.run(
            [str(plane.programs / "kubectl"), "diff", "--server-side", MANAGER, "-n", NAMESPACE, "-f", "-"],
            env=environment,
            input=manifests,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode > 1:
            raise RuntimeError(done.stderr)
        assert bool(done.stdout) == bool(done.returncode)
        return done.stdout


@pytest.fixture(scope="module")
def repository() -> Iterator[Repository]:
    """Three nodes with one card each, and the rendered chart applied."""
    with Cluster.start() as cluster:
        stack = Stack(cluster, pods=True)
        stack.add_nodes(
            *(GpuNodeOptions(name=f"gpu-{pool}", pool=pool) for pool in ("infer", "short", "train"))
        )
        stack.kubectl("create", "namespace", NAMESPACE)
        made = Repository(stack)
        definitions = [d for d in made.chart.split("\n---\n") if "kind: CustomResourceDefinition" in d]
        assert len(definitions) == 2
        made.sync(made.chart)
        stack.kubectl("wait", "--for=condition=Established", "--timeout=120s", "-f", str(ROOT / "crds"))
        stack.wait_rollout(200)
        yield made


def versions(stack: Stack, manifests: str) -> dict[str, str]:
    """Return the resource version of every object of manifests that nobody but its author writes to."""
    live = json.loads(stack.kubectl("get", "-n", NAMESPACE, "-f", "-", "-o", "json", stdin=manifests))
    items = live["items"] if live["kind"] == "List" else [live]
    return {
        f"{item['kind']}/{item['metadata']['name']}": (
            # A status moves the version, and whatever is asked for moves the generation.
            str(item["metadata"]["generation"])
            if "generation" in item["metadata"]
            else item["metadata"]["resourceVersion"]
        )
        for item in items
    }


def test_the_chart_applied_twice(repository: Repository) -> None:
    stack = repository.stack
    before = versions(stack, repository.chart)
    pods = {p["metadata"]["uid"] for p in stack.get("pods", "-n", NAMESPACE)}
    for _ in range(2):
        assert repository.difference(repository.chart, status=False) == ""
        # The statuses of what was rolled out a moment ago may still move.
        stack.wait(lambda: repository.difference(repository.chart) == "", "no difference at rest", every=2)
        repository.sync(repository.chart)
    assert versions(stack, repository.chart) == before
    assert {p["metadata"]["uid"] for p in stack.get("pods", "-n", NAMESPACE)} == pods


def test_every_documented_policy_applied_twice(repository: Repository) -> None:
    """Controller and agents write statuses only, so the tool sees no difference while they work and afterwards."""
    stack = repository.stack
    repository.sync(repository.policies)
    assert repository.difference(repository.policies, status=False) == ""
    stack.wait_policies("infer", "short", "train", seconds=240)
    repository.sync(repository.policies)
    assert repository.difference(repository.policies, status=False) == ""
    stack.wait(lambda: repository.difference(repository.policies) == "", "no difference at rest", every=2)
    stack.wait(lambda: all("status" in policy for policy in stack.get("gpupolicies")), "a status of each")
    for policy in json.loads(stack.kubectl("get", "gpupolicies", "-o", "json", "--show-managed-fields"))[
        "items"
    ]:
        assert policy["metadata"]["generation"] == 1
        writers = {(f["manager"], f.get("subresource", "")) for f in policy["metadata"]["managedFields"]}
        assert writers == {("argocd-controller", ""), ("gpupolicy-controller", "status")}
        assert "finalizers" not in policy["metadata"]
        assert "annotations" not in policy["metadata"]


def test_a_real_difference_is_seen(repository: Repository) -> None:
    """The comparisons above could fail."""
    edited = repository.policies.replace('"priority": 100', '"priority": 101', 1)
    assert edited != repository.policies
    assert "101" in repository.difference(edited, status=False)


def test_what_is_generated_says_whose_it_is(repository: Repository) -> None:
    """So that a GitOps tool leaves it alone, and an admin finds it."""
    stack = repository.stack
    stack.kubectl("create", "namespace", "team-a")
    guarded = objects.policy(
        "guarded",
        pool="short",
        priority=500,
        access={
            "namespaces": {"matchLabels": {"team": "a"}},
            "quotas": [{"namespace": "team-a", "deviceClassName": "guarded", "devices": 1}],
        },
    )
    repository.sync(json.dumps(guarded))
    # A status comes after everything that it tells of.
    stack.wait_policies("guarded")
    assert repository.difference(json.dumps(guarded), status=False) == ""
    theirs = set(versions(stack, repository.chart))
    generated = {
        f"{item['kind']}/{item['metadata']['name']}": item["metadata"].get("labels", {})
        for item in stack.get(
            "deviceclasses,gpunodes,resourceslices,validatingadmissionpolicies,validatingadmissionpolicybindings"
        )
        + stack.get("resourcequotas", "-A")
    }
    generated = {name: labels for name, labels in generated.items() if name not in theirs}
    kinds = {name.partition("/")[0] for name in generated}
    assert kinds == {
        "DeviceClass", "GpuNode", "ResourceSlice", "ResourceQuota", "ValidatingAdmissionPolicy",
        "ValidatingAdmissionPolicyBinding",
    }  # fmt: skip
    unlabelled = [
        n for n, found in generated.items() if found.get("app.kubernetes.io/managed-by") != "gpupolicy"
    ]
    assert unlabelled == []
    of_policies = {
        n: found for n, found in generated.items() if not n.startswith(("GpuNode/", "ResourceSlice/"))
    }
    assert {found.get("gpupolicy.dev/policy") for found in of_policies.values()} == {
        "infer", "short", "train", "guarded",
    }  # fmt: skip
