"""Two versions at a time: controller, agents and CRDs of 0.0.9 and of this release in every order (R49).

There is no release before this one. So its predecessor is this one under another number, from a chart of that number
whose CRDs lack some later fields and columns. The tests of this module go on from each other; after each step the same
has to hold: policies Ready, the pods of before run and have their devices, no card was written to.
"""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import images
from tests.cluster.cluster import Cluster
from tests.cluster.control_plane import KubectlError
from tests.paths import ROOT
from tests.stack import NAMESPACE, GpuNodeOptions, Stack
from tests.stories import objects

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(900)]

OLD, NEW = "0.0.9", "0.1.0"
LATER_FIELDS = {
    "gpupolicy.dev_gpunodes.yaml": ("releases", "agentVersion"),
    "gpupolicy.dev_gpupolicies.yaml": ("access", "preview"),
}
COMMON = ("simulator.gpus=2", "agent.maxUnavailable=1")


def without(text: str, field: str) -> str:
    """Return a CRD without the schema of one field, wherever it stands."""
    pattern = re.compile(rf"^(?P<indent> +){field}:\n(?:(?P=indent) +.*\n)+", re.MULTILINE)
    shorter, count = pattern.subn("", text)
    assert count, field
    return shorter


def older_chart(folder: Path) -> Path:
    """Return a chart as the release before had it."""
    chart = folder / "gpupolicy"
    shutil.copytree(ROOT / "charts/gpupolicy", chart)
    about = chart / "Chart.yaml"
    about.write_text(about.read_text().replace(f"ersion: {NEW}", f"ersion: {OLD}"))
    for name, fields in LATER_FIELDS.items():
        path = chart / "templates/crds" / name
        text = path.read_text()
        for field in fields:
            text = without(text, field)
        # Its table had no column for the age yet.
        text = re.sub(r"    - name: Age\n(?:      .*\n)+", "", text)
        path.write_text(text)
    return chart


class World:
    """The cluster, and what must not change on it."""

    def __init__(self, stack: Stack, old_chart: Path) -> None:
        self.stack = stack
        self.old_chart = old_chart
        self.facts: dict[str, Any] = {}

    def look(self) -> dict[str, Any]:
        """Return what no upgrade may change."""
        stack = self.stack
        pods = {p["metadata"]["name"]: p for p in stack.get("pods", "-n", "work")}
        return {
            "pods": {
                name: (pod["metadata"]["uid"], pod["status"]["containerStatuses"][0]["restartCount"])
                for name, pod in pods.items()
                if name in ("whole", "slice")
            },
            "devices": {
                name: stack.kubectl("exec", "-n", "work", name, "--", "nvidia-smi", "-L")
                for name in ("whole", "slice")
            },
            "claims": sorted(
                (c["metadata"]["uid"], str(c["status"]["allocation"]["devices"]["results"]))
                for c in stack.get("resourceclaims", "-n", "work")
                if c["metadata"]["ownerReferences"][0]["name"] in ("whole", "slice")
            ),
            "writes": {n: stack.simulator(n).writes() for n in ("gpu-01", "gpu-02")},
            "layouts": [stack.simulator("gpu-02").layout(n) for n in (0, 1)],
            "plans": {n["metadata"]["name"]: n["spec"]["gpus"] for n in stack.get("gpunodes")},
            "policies": {
                p["metadata"]["name"]: p["metadata"]["generation"] for p in stack.get("gpupolicies")
            },
        }

    def check(self, *, controller: str, agents: str) -> None:
        """Check that all is as before, that these versions run, and that a new pod gets a slice and gives it back."""
        stack = self.stack
        stack.wait_rollout(240)
        for workload, version in (
            ("deployment/gpupolicy-controller", controller),
            ("daemonset/gpupolicy-agent", agents),
        ):
            image = stack.get(workload, "-n", NAMESPACE)["spec"]["template"]["spec"]["containers"][0]["image"]
            assert image.endswith(f":{version}")
        stack.wait_policies("train", "infer", seconds=240)
        name = f"c{controller}-a{agents}".replace(".", "")
        stack.apply(objects.pod(name, "work", template="slice"))
        stack.wait_pods("work", 3, seconds=240)
        stack.kubectl("delete", "pod", name, "-n", "work", "--timeout=150s")
        assert self.look() == self.facts
        stack.wait_policies("train", "infer")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """The older release with two nodes, two policies and a pod for each."""
    with Cluster.start() as cluster:
        stack = Stack(cluster, pods=True)
        nodes = stack.add_nodes(
            GpuNodeOptions(name="gpu-01", pool="train"), GpuNodeOptions(name="gpu-02", pool="infer")
        )
        older = images.archive("agent", "simulator", version=OLD)
        for node in nodes:
            node.load_images(older)
        nodes[0].load_images(images.archive("controller", version=OLD))
        made = World(stack, older_chart(tmp_path_factory.mktemp("older")))
        stack.chart = made.old_chart
        stack.kubectl("create", "namespace", "work")
        stack.install_pods(*COMMON, seconds=240)
        stack.apply(
            objects.policy("train", pool="train", offers=[{"deviceClassName": "h100"}]),
            objects.policy("infer", pool="infer", sharing=objects.mig({"3g.40gb": 1, "1g.10gb": 2})),
            objects.template("card", "work", "h100"),
            objects.template("slice", "work", "infer-1g-10gb"),
        )
        stack.wait_policies("train", "infer", seconds=240)
        stack.apply(
            objects.pod("whole", "work", template="card"), objects.pod("slice", "work", template="slice")
        )
        stack.wait_pods("work", 2, seconds=240)
        made.facts = made.look()
        stack.chart = ROOT / "charts/gpupolicy"
        yield made


def columns(stack: Stack) -> list[str]:
    """Return the head of the table of GpuNodes."""
    return stack.kubectl("get", "gpunodes").splitlines()[0].split()


def versions(stack: Stack) -> set[str | None]:
    """Return the versions that the agents tell."""
    return {n["status"].get("agentVersion") for n in stack.get("gpunodes")}


def test_the_older_release_alone(world: World) -> None:
    world.check(controller=OLD, agents=OLD)
    assert "AGE" not in columns(world.stack)
    assert versions(world.stack) == {None}, "its CRD has no such field"


def test_a_controller_of_now_with_agents_and_crds_of_before(world: World) -> None:
    """CRDs that the chart does not bring stay as they are, and stay when it stops bringing them."""
    world.stack.upgrade_pods(*COMMON, f"agent.imageTag={OLD}", "crds.install=false")
    world.check(controller=NEW, agents=OLD)
    assert "AGE" not in columns(world.stack)


def test_what_older_crds_drop_is_told(world: World) -> None:
    """The field is refused by the API server, by name; nothing is ignored in silence."""
    guarded = objects.policy("guarded", pool="none", access={"namespaces": {"matchLabels": {"a": "b"}}})
    with pytest.raises(KubectlError, match=r'unknown field "spec\.access"'):
        world.stack.apply(guarded)


def test_the_chart_brings_the_crds_up_to_date(world: World) -> None:
    world.stack.upgrade_pods(*COMMON, f"agent.imageTag={OLD}")
    world.check(controller=NEW, agents=OLD)
    assert "AGE" in columns(world.stack)
    world.stack.wait(lambda: versions(world.stack) == {OLD}, "the agents' version", 240)


def test_both_of_now(world: World) -> None:
    world.stack.upgrade_pods(*COMMON)
    world.check(controller=NEW, agents=NEW)
    world.stack.wait(lambda: versions(world.stack) == {NEW}, "the agents' version")


def test_agents_that_are_newer_than_the_controller(world: World) -> None:
    """The DaemonSet was first, or the controller was rolled back alone."""
    world.stack.upgrade_pods(*COMMON, f"image.tag={OLD}", f"agent.imageTag={NEW}")
    world.check(controller=OLD, agents=NEW)
