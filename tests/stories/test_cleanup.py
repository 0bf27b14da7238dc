"""`cleanup=true`: what an uninstallation makes whole, what it leaves, and what it says of that (R50).

The tests of this module go on from each other. Of three nodes one has idle cards, one a card in use and one a card that
was in MIG mode before us, and the third's agent is away.
"""

from collections.abc import Iterator

import pytest

from tests.cluster.cluster import Cluster
from tests.stack import NAMESPACE, SIMULATOR_LABEL, GpuNodeOptions, Stack
from tests.stories import objects

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(600)]

LAYOUT = {"3g.40gb": 1, "1g.10gb": 2}
CLEANUP = ("cleanup=true", "cleanupSeconds=60", "simulator.gpus=3")


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    """Layouts on three cards of each of three nodes; a pod on one slice; one agent away."""
    with Cluster.start() as cluster:
        made = Stack(cluster, pods=True)
        made.add_nodes(*(GpuNodeOptions(name=f"gpu-0{n}", pool="infer") for n in (1, 2, 3)))
        made.kubectl("create", "namespace", "work")
        made.install_pods("simulator.gpus=3", seconds=200)
        made.simulator("gpu-02").set(2, mig_current=1, mig_pending=1)
        made.apply(objects.policy("infer", pool="infer", sharing=objects.mig(LAYOUT)))
        made.wait_policies("infer", seconds=240)
        made.apply(
            objects.template("slice", "work", "infer-1g-10gb"),
            objects.pod("slice", "work", template="slice", node="gpu-02"),
        )
        made.wait_pods("work", 1)
        made.kubectl("label", "node", "gpu-03", f"{SIMULATOR_LABEL}-")
        made.wait(lambda: len(made.get("pods", "-n", NAMESPACE)) == 3, "the agent of gpu-03 to go")
        yield made


def layouts(stack: Stack, node: str) -> list[tuple[bool, int]]:
    """Return for each card whether MIG mode is on, and how many instances stand."""
    simulator = stack.simulator(node)
    return [(bool(simulator.gpu(n)["mig_current"]), len(simulator.layout(n))) for n in range(3)]


def generations(stack: Stack) -> dict[str, int]:
    """Return the generations of what controller and agents are made from."""
    found = stack.get("deployments,daemonsets", "-n", NAMESPACE)
    return {o["metadata"]["name"]: o["metadata"]["generation"] for o in found}


def used_cards(stack: Stack) -> list[int]:
    """Return the numbers of the cards on gpu-02 of which a claim has a slice, as the agent says; it says so later."""
    gpus = stack.get("gpunode", "gpu-02")["status"]["gpus"]
    return [g["index"] for g in gpus if any(i.get("claims") for i in g.get("instances", []))]


def test_switching_it_on_restarts_nothing(stack: Stack) -> None:
    # Pods would be replaced some time later; what is wanted of them has another generation at once.
    before = generations(stack)
    stack.upgrade_pods(*CLEANUP)
    assert generations(stack) == before
    assert stack.get("jobs", "-n", NAMESPACE) == []
    roles = stack.get("clusterroles", "-l", "app.kubernetes.io/component=cleanup")
    assert roles == [], "its identity exists only while it runs"


def test_idle_cards_become_whole_and_the_rest_is_named(stack: Stack) -> None:
    """It ends although one agent is away; the pod runs on, and nothing of the hook is left."""
    stack.wait(lambda: len(used_cards(stack)) == 1, "the agent to tell of the claim")
    (used,) = used_cards(stack)
    away = layouts(stack, "gpu-03")
    words = ("uninstall", "gpupolicy", "--namespace", NAMESPACE, "--wait", "--timeout", "240s")
    said = stack.helm(*words, with_hooks=True)
    assert layouts(stack, "gpu-01") == [(False, 0)] * 3
    expected = [(False, 0), (False, 0), (True, 0)]
    expected[used] = (True, 3)
    assert layouts(stack, "gpu-02") == expected
    assert layouts(stack, "gpu-03") == away == [(True, 3)] * 3
    assert "gpu-01: cards 0-2 whole" in said
    assert f"card {used} is left: WaitingForClaims" in said
    assert "work/slice" in said
    if used != 2:
        assert "card 2 is left: its MIG mode was on before" in said
    assert "gpu-03: left as it is: its agent did not answer" in said
    assert stack.kubectl("exec", "-n", "work", "slice", "--", "nvidia-smi", "-L").count("MIG 1g.10gb") == 1
    for kind in ("jobs", "serviceaccounts", "roles", "clusterroles", "clusterrolebindings"):
        selected = (kind, "-A", "-l", "app.kubernetes.io/part-of=gpupolicy")
        stack.wait(lambda selected=selected: stack.get(*selected) == [], f"no {kind} left")
    assert [p["metadata"]["name"] for p in stack.get("gpupolicies")] == ["infer"]


def test_installing_again_brings_the_layouts_back(stack: Stack) -> None:
    """Policies are the admin's and stayed; what the clean-up asked for is over. The slice in use never moved."""
    held = stack.kubectl("exec", "-n", "work", "slice", "--", "nvidia-smi", "-L")
    stack.kubectl("label", "node", "gpu-03", f"{SIMULATOR_LABEL}=true")
    stack.install_pods("simulator.gpus=3", seconds=200)
    stack.wait(
        lambda: not any("releases" in n["spec"] for n in stack.get("gpunodes")), "the releases withdrawn", 180
    )
    # Nobody has touched the status of the policy meanwhile, so it tells of the cards as they were before.
    stack.wait(
        lambda: all(layouts(stack, f"gpu-0{n}") == [(True, 3)] * 3 for n in (1, 2, 3)),
        "the layouts back",
        180,
    )
    stack.wait(lambda: len(stack.devices(policy="infer")) == 27, "all slices published")
    stack.wait_policies("infer")
    stack.wait(lambda: stack.policy_row("infer")[2:5] == ["3/3", "9/9", "27"], "the row to say so")
    assert stack.kubectl("exec", "-n", "work", "slice", "--", "nvidia-smi", "-L") == held


def test_a_job_that_cannot_start_does_not_hold_up_for_ever(stack: Stack) -> None:
    """Helm says that the hook failed and the release stays; `--no-hooks` goes without."""
    stack.upgrade_pods(
        "simulator.gpus=3", "cleanup=true", "cleanupSeconds=1", "controller.nodeSelector.no=where"
    )
    with pytest.raises(RuntimeError, match="gpupolicy-cleanup"):
        stack.helm("uninstall", "gpupolicy", "--namespace", NAMESPACE, "--timeout", "10s")
    assert "gpupolicy" in stack.helm("status", "gpupolicy", "-n", NAMESPACE)
    stack.helm(
        "uninstall", "gpupolicy", "--namespace", NAMESPACE, "--no-hooks", "--wait", "--timeout", "240s"
    )
    assert stack.get("daemonsets", "-n", NAMESPACE) == []
