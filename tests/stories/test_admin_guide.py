"""The commands of docs/install.md, run as they stand there, on a cluster with simulated cards."""

import re
import shlex
from collections.abc import Iterator

import pytest

from tests.cluster.cluster import Cluster
from tests.paths import ROOT
from tests.stack import GpuNodeOptions, Stack

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(600)]

GUIDE = (ROOT / "docs/install.md").read_text()
COMMANDS = re.findall(r"^\$ kubectl (.+)$", GUIDE, re.MULTILINE)


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    """One node, with the chart on it as the guide installs it."""
    with Cluster.start() as cluster:
        made = Stack(cluster, pods=True)
        made.add_nodes(GpuNodeOptions(name="gpu-01"))
        made.install_pods()
        # An agent is ready a moment before its report can be read.
        made.wait(lambda: "gpuCount" in str(made.get("gpunodes")), "the agent's report")
        yield made


def test_every_command_of_the_guide_works(stack: Stack) -> None:
    """In order; the plan is there before anything is done, and nothing is done before it is wanted."""
    assert len(COMMANDS) == 12
    for command in COMMANDS:
        words = [str(ROOT / word) if word.startswith("examples/") else word for word in shlex.split(command)]
        if ".status.plan" in command:
            stack.wait(lambda asked=words: "gpu-01: [" in stack.kubectl(*asked), "the plan of the node")
            continue
        if words[:2] == ["wait", "gpupolicy"]:
            # The guide's limit is meant for an admin's machine, not for one that is busy with other tests.
            stack.wait_policies("train")
        output = stack.kubectl(*words)
        if command == "get gpunodes":
            assert re.search(r"gpu-01 +8 ", output)
    stack.wait_pods("default", 1)
    stack.wait(lambda: stack.policy_row("train")[4:7] == ["8", "8", "0"], "the row to show the job")


VALUES = re.findall(r"--set ([a-zA-Z.]+)=", GUIDE) + re.findall(
    r"`((?:agent|monitoring|crds)\.[a-zA-Z.]+)`", GUIDE
)


@pytest.mark.parametrize("path", sorted({value.partition("=")[0] for value in VALUES}))
def test_values_that_the_guide_names_exist(path: str) -> None:
    import yaml

    place = yaml.safe_load((ROOT / "charts/gpupolicy/values.yaml").read_text())
    for key in path.split("."):
        assert key in place
        place = place[key]


def test_reasons_that_the_guide_names_exist() -> None:
    reasons = (ROOT / "docs/reasons.md").read_text()
    for reason in (
        "FieldsDropped",
        "OwnershipConflict",
        "WaitingForClaims",
        "NoMatchingDevices",
    ):
        assert f"`{reason}`" in reasons
        assert reason in GUIDE
