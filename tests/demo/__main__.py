"""`python -m tests.demo up|down|status`: what `make demo` and `make demo-down` run.

`up` builds what is missing, starts a real control plane and eight real nodes, installs the chart in its simulator mode,
so that controller and agents run as pods with eight simulated H100s on each node, applies `examples/` and shows what
came of it. Everything stays until `down`. A second `up` while it runs shows the state again.
"""

import argparse
import os
import sys
import time
from pathlib import Path

from tests.cluster import build
from tests.cluster.cluster import Cluster
from tests.paths import ROOT
from tests.stack import NAMESPACE, GpuNodeOptions, Stack

POLICIES = ("train", "infer", "short")
WORKLOADS = ("train-job", "infer-deployment", "short-claim")
PODS = 8
ALLOCATED = (15, 15)
"""Eight cards, six slices and one card; policies and nodes have to agree on it."""


def state_directory() -> Path:
    """Return where the demo notes its cluster."""
    cache = os.environ.get("GPUPOLICY_CACHE") or Path.home() / ".cache/gpupolicy"
    return Path(cache) / "demo"


def nodes() -> list[GpuNodeOptions]:
    """Return the cluster of the documentation: four nodes to train, three to infer, one for short jobs."""
    pools = ["train"] * 4 + ["infer"] * 3 + ["short"]
    return [GpuNodeOptions(name=f"gpu-{number:02}", pool=pool) for number, pool in enumerate(pools, start=1)]


class Progress:
    """Tells each step and how long it took."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    def say(self, text: str) -> None:
        """Begin a step."""
        print(f"[{time.monotonic() - self._began:6.1f} s] {text}", flush=True)


def show(stack: Stack, *arguments: str) -> None:
    """Run kubectl and show command and answer."""
    print(f"\n$ kubectl {' '.join(arguments)}")
    print(stack.kubectl(*arguments).rstrip(), flush=True)


def up() -> None:
    """Bring the demo up, or show it if it runs."""
    progress = Progress()
    try:
        stack = Stack(Cluster.load(state_directory()), pods=True)
        progress.say("the demo runs already; `make demo-down` stops it")
    except LookupError:
        stack = start(progress)
    present(stack)


def start(progress: Progress) -> Stack:
    """Start the cluster with everything on it; on failure nothing stays."""
    progress.say("building what is not in the cache (the first time 10 to 15 minutes)")
    build.bin_directory(tool for tool in build.TOOLS if tool.name not in build.JUDGES)
    progress.say("starting the control plane")
    cluster = Cluster.start(state_directory(), detached=True)
    try:
        fill(Stack(cluster, pods=True), progress)
    except BaseException:
        progress.say("it failed; stopping what was started")
        cluster.stop()
        raise
    return Stack(cluster, pods=True)


def fill(stack: Stack, progress: Progress) -> None:
    """Put nodes, GpuPolicy, policies and workloads on an empty cluster."""
    progress.say("starting eight nodes, and loading our images on them")
    stack.add_nodes(*nodes())
    progress.say(
        "installing the chart with Helm: kinds, roles, controller, and agents with eight simulated H100s each"
    )
    stack.install_pods(seconds=300)
    stack.wait(lambda: len(stack.get("gpunodes")) == len(nodes()), "eight GpuNodes")
    progress.say("applying examples/train.yaml, infer.yaml, short.yaml")
    stack.apply(*(ROOT / f"examples/{name}.yaml" for name in POLICIES))
    stack.wait_policies(*POLICIES, seconds=240)
    progress.say("starting their workloads")
    stack.apply(*(ROOT / f"examples/{name}.yaml" for name in WORKLOADS))
    stack.wait_pods("default", PODS, seconds=240)
    # The counts follow the claims within seconds.
    stack.wait(lambda: counted(stack) == ALLOCATED, "every allocated device counted")
    progress.say("done")


def counted(stack: Stack) -> tuple[int, int]:
    """Return the allocated devices as the policies and as the nodes count them."""
    policies = sum(int(stack.policy_row(name)[5]) for name in POLICIES)
    nodes_say = sum(node.get("status", {}).get("allocated", 0) for node in stack.get("gpunodes"))
    return policies, nodes_say


def present(stack: Stack) -> None:
    """Show what stands, what a pod sees, and how to go on."""
    show(stack, "get", "pods", "-n", NAMESPACE, "-o", "wide")
    show(stack, "get", "gpupolicies")
    show(stack, "get", "gpunodes")
    show(stack, "get", "deviceclasses")
    show(stack, "get", "pods", "-o", "wide")
    show(stack, "exec", "job/train", "--", "nvidia-smi", "-L")
    show(stack, "exec", "deployment/infer", "--", "nvidia-smi", "-L")
    show(stack, "exec", "short", "--", "nvidia-smi", "-L")
    plane = stack.cluster.control_plane
    cards = stack.simulator("gpu-08")
    print(
        "\nGo on playing:\n"
        f"  export KUBECONFIG={plane.admin_kubeconfig} PATH={plane.programs}:$PATH:{Path(sys.executable).parent}\n"
        "  kubectl get gpupolicies -o wide\n"
        "  kubectl get gpunodes -o wide\n"
        "  kubectl explain gpupolicy.spec.sharing\n"
        """  kubectl gpupolicy select 'device.driver == "gpu.gpupolicy.dev" && """
        """device.attributes["gpu.gpupolicy.dev"].type == "mig"'\n"""
        "  kubectl gpupolicy explain pod short  # what it has, or why it waits\n"
        "  kubectl edit gpupolicy infer        # change the layout and offers: idle cards change, busy ones wait\n"
        f"  {cards.gpusim_path} lose 3 --dir {cards.directory}  # a card is gone; `recover 3`, `reset 3` bring it back\n"
        "Stop: make demo-down"
    )


def down() -> None:
    """Stop the demo and remove everything of it."""
    try:
        Cluster.load(state_directory()).stop()
    except LookupError:
        print("no demo runs")
        return
    (state_directory() / "cluster.json").unlink(missing_ok=True)
    print("the demo is gone")


def status() -> None:
    """Show the running demo."""
    present(Stack(Cluster.load(state_directory()), pods=True))


def main() -> int:
    """Run one command."""
    parser = argparse.ArgumentParser(prog="python -m tests.demo", description=__doc__)
    parser.add_argument("command", choices=["up", "down", "status"])
    {"up": up, "down": down, "status": status}[parser.parse_args().command]()
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (build.BuildError, RuntimeError, TimeoutError, LookupError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
