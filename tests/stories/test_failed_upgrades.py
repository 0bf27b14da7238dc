"""Installations that go wrong: two at a time, images that are not there or do not start (R1, R49).

The tests of this module go on from each other: one cluster of two nodes.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.image import Image, busybox_layer
from tests.stack import NAMESPACE, GpuNodeOptions, Stack
from tests.stories import objects

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(600)]

COMMON = ("simulator.gpus=2", "agent.maxUnavailable=1")


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    """Two nodes with the images, and one image more that ends at once; nothing installed."""
    with Cluster.start() as cluster:
        made = Stack(cluster, pods=True)
        made.add_nodes(*(GpuNodeOptions(name=f"gpu-0{n}", pool="train") for n in (1, 2)))
        broken = Image("localhost/gpupolicy/agent:broken", [busybox_layer()], entrypoint=["/no/such/program"])
        fine = Image("localhost/gpupolicy/simulator:broken", [busybox_layer()], entrypoint=["/bin/true"])
        cluster.load_images(broken, fine)
        made.kubectl("create", "namespace", "work")
        yield made


def outcome(stack: Stack, release: str, namespace: str) -> str:
    """Install; return what Helm said against it, nothing where it took it."""
    try:
        stack.helm(
            "install", release, str(stack.chart), "--namespace", namespace, "--create-namespace",
            "--set", "controller.replicas=0", "--set", "agent.enabled=false",
        )  # fmt: skip
    except RuntimeError as error:
        return str(error)
    return ""


def test_two_installations_at_the_same_time(stack: Stack) -> None:
    """Whoever lost is told so by name, and removing what failed hurts nobody.

    Helm looks before it writes. Where both looked before either wrote, it takes both, and they share what belongs to no
    namespace; then the one that is not wanted is uninstalled and the other upgraded, which makes good what went with it.
    """
    pairs = [("gpupolicy", NAMESPACE), ("second", "elsewhere")]
    with ThreadPoolExecutor(2) as pool:
        said = list(pool.map(lambda pair: outcome(stack, *pair), pairs))
    for words in filter(None, said):
        assert "invalid ownership metadata" in words or "already exists" in words, words
    for (release, namespace), words in zip(pairs, said, strict=True):
        if words or release == "second":
            stack.helm("uninstall", release, "--namespace", namespace, "--ignore-not-found", "--wait")
    # The CRDs are kept; whoever comes next has to say that they are his.
    stack.kubectl(
        "annotate", "crds", "gpupolicies.gpupolicy.dev", "gpunodes.gpupolicy.dev", "--overwrite",
        "meta.helm.sh/release-name=gpupolicy", f"meta.helm.sh/release-namespace={NAMESPACE}",
    )  # fmt: skip
    stack.install_pods(*COMMON, seconds=200)
    stack.apply(objects.policy("train", pool="train"))
    stack.wait_policies("train", seconds=240)


def generation_of_agents(stack: Stack) -> dict[str, str]:
    """Return the image of the agent on each node whose agent is Ready."""
    return {
        p["spec"]["nodeName"]: p["spec"]["containers"][0]["image"].rpartition(":")[2]
        for p in stack.get("pods", "-n", NAMESPACE, "-l", "app.kubernetes.io/component=agent")
        if any(c["type"] == "Ready" and c["status"] == "True" for c in p["status"].get("conditions", []))
    }


def broken_agents(stack: Stack) -> list[str]:
    """Return why agents wait to be started."""
    statuses = [
        s
        for p in stack.get("pods", "-n", NAMESPACE, "-l", "app.kubernetes.io/component=agent")
        for s in [*p["status"].get("initContainerStatuses", []), *p["status"].get("containerStatuses", [])]
    ]
    return [s["state"]["waiting"].get("reason", "") for s in statuses if "waiting" in s["state"]]


def test_agents_that_do_not_start_stop_the_rollout(stack: Stack) -> None:
    """One node is without an agent, the other serves on; its pods get cards, the broken one's keep theirs."""
    stack.apply(objects.template("card", "work", "train"), objects.pod("before", "work", template="card"))
    stack.wait_pods("work", 1)
    stack.upgrade_pods(*COMMON, "agent.imageTag=broken")
    stack.wait(
        lambda: bool({"CrashLoopBackOff", "RunContainerError"} & set(broken_agents(stack))),
        "an agent that cannot start",
        240,
    )
    serving = generation_of_agents(stack)
    assert set(serving.values()) == {"0.1.0"}
    (node,) = serving
    stack.apply(objects.pod("meanwhile", "work", template="card", node=node))
    stack.wait_pods("work", 2, seconds=240)
    stack.wait_policies("train")
    assert generation_of_agents(stack) == serving, "the rollout went on"


def test_a_rollback_brings_the_agents_back(stack: Stack) -> None:
    held = {
        name: stack.kubectl("exec", "-n", "work", name, "--", "nvidia-smi", "-L")
        for name in ("before", "meanwhile")
    }
    stack.helm("rollback", "gpupolicy", "--namespace", NAMESPACE)
    stack.wait_rollout(200)
    assert set(generation_of_agents(stack)) == {"gpu-01", "gpu-02"}
    assert {
        name: stack.kubectl("exec", "-n", "work", name, "--", "nvidia-smi", "-L") for name in held
    } == held
    stack.wait_policies("train")


def test_a_tag_that_does_not_exist_is_rolled_back_by_helm(stack: Stack) -> None:
    """`--rollback-on-failure` ends where it began; the controller of before never stopped."""

    def controllers() -> set[str]:
        found = stack.get("pods", "-n", NAMESPACE, "-l", "app.kubernetes.io/component=controller")
        return {p["metadata"]["uid"] for p in found}

    before = controllers()
    # The same time counts for the way back, which has to start an agent.
    with pytest.raises(RuntimeError, match="rolled back"):
        stack.upgrade_pods(
            *COMMON, "image.tag=9.9.9", arguments=("--rollback-on-failure", "--wait", "--timeout", "60s")
        )
    stack.wait_rollout(200)
    stack.wait(lambda: controllers() == before, "the controller of before, and no other")
    assert set(generation_of_agents(stack).values()) == {"0.1.0"}
    stack.wait_policies("train")
    stack.wait_pods("work", 2)
