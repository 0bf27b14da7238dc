"""GpuPolicy on a test cluster: the chart, the controller, and one agent with simulated cards per node.

The demo and the end-to-end tests share it. Every process has the identity and the rights that the chart gives it:
the controller a service account's token, each agent one that is bound to its node. Nobody runs as admin.

With `pods=True` the chart starts controller and agents as an admin's would, from images of `tools/image.py` and in
simulator mode. Without, they are processes beside the cluster, which a test can kill, pause and start with other options.
"""

import http
import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests import images
from tests.cluster.cluster import Cluster
from tests.cluster.control_plane import KubectlError
from tests.cluster.node import Node, NodeOptions
from tests.cluster.process import Daemon, poll_until
from tests.paths import ROOT
from tests.simulator import Simulator

NAMESPACE = "gpupolicy-system"
SIMULATOR_LABEL = "gpupolicy.dev/simulator"
READY_SECONDS = 120.0
"""A kubelet whose prepare failed once asks again after 60 to 90 seconds."""

_PATHS = {
    word: path
    for words, path in {
        "gpupolicy gpupolicies": "/apis/gpupolicy.dev/v1alpha1/gpupolicies",
        "gpunode gpunodes": "/apis/gpupolicy.dev/v1alpha1/gpunodes",
        "deviceclass deviceclasses": "/apis/resource.k8s.io/v1/deviceclasses",
        "resourceslices": "/apis/resource.k8s.io/v1/resourceslices",
        "resourceclaims": "/apis/resource.k8s.io/v1/resourceclaims",
        "pod pods": "/api/v1/pods",
        "deployment": "/apis/apps/v1/deployments",
        "daemonset": "/apis/apps/v1/daemonsets",
        "job jobs": "/apis/batch/v1/jobs",
        "resourcequota resourcequotas": "/api/v1/resourcequotas",
    }.items()
    for word in words.split()
}
_CLUSTER_WIDE = {"deviceclass", "deviceclasses", "resourceslices"}


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuNodeOptions:
    """A node and its simulated cards."""

    name: str
    pool: str = ""
    gpus: int = 8
    model: str = "h100-80gb"
    labels: Mapping[str, str] = field(default_factory=dict)
    per_gpu: Mapping[int, Mapping[str, object]] = field(default_factory=dict)


class Stack:
    """A cluster with GpuPolicy on it. `install` begins, `add_nodes` and `start_controller` follow.

    With `pods`, `add_nodes` begins, which also brings the images to the nodes, and `install_pods` follows.
    """

    def __init__(self, cluster: Cluster, *, pods: bool = False) -> None:
        self.cluster = cluster
        self.kubectl = cluster.kubectl
        self.pods = pods
        self.chart = ROOT / "charts/gpupolicy"

    # Installing.

    def install(self, *settings: str) -> None:
        """Install the chart with Helm, without controller and agents, and wait until the kinds are served."""
        self.upgrade("controller.replicas=0", "agent.enabled=false", *settings)
        self.wait(lambda: self.succeeds("get", "gpupolicies,gpunodes"), "the kinds served and discovered")

    def install_pods(self, *settings: str, seconds: float = 240) -> None:
        """Install the chart with simulated cards on the nodes of `add_nodes`, and wait until all is ready."""
        self.upgrade_pods(*settings)
        self.wait_rollout(seconds)

    def upgrade_pods(self, *settings: str, arguments: Sequence[str] = ()) -> None:
        """Install or upgrade the chart with everything as pods; `wait_rollout` follows."""
        first = self.cluster.nodes[0].name
        self.upgrade(
            "simulator.enabled=true",
            "image.pullPolicy=Never",
            # Only this node has the image; the others are spared its size.
            f"controller.nodeSelector.kubernetes\\.io/hostname={first}",
            *settings,
            arguments=arguments,
        )

    def wait_rollout(self, seconds: float = 240) -> None:
        """Wait until controller and agents run as the chart says now, and are ready."""

        def rolled_out() -> bool:
            deployment = self.get("deployment", "gpupolicy-controller", "-n", NAMESPACE)
            agents = self.get("daemonset", "gpupolicy-agent", "-n", NAMESPACE)
            if any(
                w["status"].get("observedGeneration") != w["metadata"]["generation"]
                for w in (deployment, agents)
            ):
                return False
            wanted, status = deployment["spec"]["replicas"], deployment["status"]
            counts = {status.get(key, 0) for key in ("replicas", "updatedReplicas", "readyReplicas")}
            nodes, running = len(self.cluster.nodes), agents["status"]
            keys = ("desiredNumberScheduled", "updatedNumberScheduled", "numberReady")
            return counts == {wanted} and {running.get(key, 0) for key in keys} == {nodes}

        self.wait(rolled_out, "controller and agents ready", seconds, every=0.5)

    def upgrade(self, *settings: str, arguments: Sequence[str] = ()) -> None:
        """Run `helm upgrade --install` with settings and further arguments."""
        self.helm(
            "upgrade",
            "--install",
            "gpupolicy",
            str(self.chart),
            "--namespace",
            NAMESPACE,
            "--create-namespace",
            *arguments,
            *(word for setting in settings for word in ("--set", setting)),
        )

    def helm(self, *arguments: str, with_hooks: bool = False) -> str:
        """Run Helm as the admin; return its output, on demand with what hooks said, which it prints with its warnings.

        Raises:
            RuntimeError: with what it said, when it fails.
        """
        plane = self.cluster.control_plane
        done = subprocess.run(
            [str(plane.programs / "helm"), *arguments],
            env=plane.environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"helm {' '.join(arguments)}: {done.stderr}{done.stdout}")
        return done.stdout + done.stderr if with_hooks else done.stdout

    # Processes.

    def start_controller(self, name: str = "controller") -> Daemon:
        """Start a controller with the service account of the chart."""
        access = self.cluster.service_account_kubeconfig(
            NAMESPACE, "gpupolicy-controller", expiration_seconds=24 * 3600
        )
        daemon = self.cluster.daemon(
            name,
            [
                sys.executable,
                "-m",
                "gpupolicy.controller.app",
                "--kubeconfig",
                access.kubeconfig,
                "--namespace",
                NAMESPACE,
                "--identity",
                name,
                "--health-host",
                "127.0.0.1",
                "--health-port",
                "0",
            ],
            environment={"PYTHONPATH": str(ROOT / "operator")},
        )
        daemon.start()
        return daemon

    def add_nodes(self, *options: GpuNodeOptions, agents: bool = True) -> list[Node]:
        """Start nodes with simulated cards, and their agents unless told otherwise (pods start by themselves)."""
        simulated = {SIMULATOR_LABEL: "true"} if self.pods else {}
        nodes = self.cluster.add_nodes(
            *(
                NodeOptions(
                    o.name, labels={**({"gpu-pool": o.pool} if o.pool else {}), **simulated, **o.labels}
                )
                for o in options
            )
        )
        if self.pods:
            self._load_images(nodes)
            return nodes
        for option, node in zip(options, nodes, strict=True):
            self.make_cards(option, node)
            if agents:
                self.start_agent(node)
        return nodes

    def make_cards(self, option: GpuNodeOptions, node: Node) -> Simulator:
        """Create the simulated cards of a node."""
        simulator = self.simulator(node.name)
        simulator.directory.mkdir(parents=True, exist_ok=True)
        return simulator.create(
            gpus=option.gpus, model=option.model, seed=node.name, per_gpu=option.per_gpu, options=("--force",)
        )

    def _load_images(self, nodes: Sequence[Node]) -> None:
        """Bring the programs to nodes: the agent to all, the controller to the first of the cluster."""
        agent = images.archive("agent", "simulator")
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda node: node.load_images(agent), nodes))
        if nodes[0].name == self.cluster.nodes[0].name:
            nodes[0].load_images(images.archive("controller"))

    def simulator(self, node: str) -> Simulator:
        """Return the simulated cards of a node."""
        if self.pods:
            return Simulator(self.cluster.find_node(node).plugins_dir / "gpu.gpupolicy.dev/simulator")
        return Simulator(self.cluster.run.directory / "gpusim" / node)

    def start_agent(
        self,
        node: Node,
        *arguments: str,
        toolkit: bool = False,
        in_cluster: bool = False,
        environment: Mapping[str, str] | None = None,
        name: str = "",
    ) -> Daemon:
        """Start the agent of a node, with a token that is bound to it.

        Args:
            node: the node.
            arguments: further options of the agent.
            toolkit: whether it asks NVIDIA's container toolkit for the driver's files. The toolkit reads /proc at
                absolute paths, so the agent then runs where the simulated files stand at those.
            in_cluster: whether it finds the API server as in a pod, and not in a kubeconfig.
            environment: further variables of its process.
            name: name of the process, for a second agent beside the one that `agent` returns.
        """
        access = self.cluster.service_account_kubeconfig(
            NAMESPACE, "gpupolicy-agent", node=node.name, expiration_seconds=24 * 3600
        )
        simulator = self.simulator(node.name)
        root = simulator.root
        options: dict[str, object] = {
            "node-name": node.name,
            **({"service-account": access.directory} if in_cluster else {"kubeconfig": access.kubeconfig}),
            "kubelet-root": node.directory,
            "cdi-dir": node.cdi_dir,
            "driver-root": root,
            "dev-root": root,
            "proc-root": root / "proc",
            "sys-root": root / "sys",
            "nvml-library": simulator.library_path,
        }
        mounts = [f"{simulator.directory}:/run/gpusim"]
        prefix: list[object] = []
        if toolkit:
            programs = self.cluster.control_plane.programs
            options |= {
                "nvidia-ctk": programs / "nvidia-ctk",
                "nvidia-cdi-hook": programs / "nvidia-cdi-hook",
            }
            prefix = [simulator.gpusim_path, "exec", "--dir", simulator.directory, "--"]
        else:
            mounts += [
                f"{simulator.nvidia_smi_path}:/usr/bin/nvidia-smi:ro",
                f"{simulator.library_path.resolve()}:/usr/lib64/libnvidia-ml.so.1:ro",
            ]
        words = [f"--{name}={value}" for name, value in options.items()]
        words += [f"--cdi-mount={mount}" for mount in mounts]
        command = [*prefix, sys.executable, "-m", "gpupolicy.agent.app", *words, *arguments]
        daemon = self.cluster.daemon(
            name or f"{node.name}-agent",
            [str(word) for word in command],
            environment={
                "PYTHONPATH": str(ROOT / "operator"),
                "GPUSIM_DIR": str(simulator.directory),
                **(self._service() if in_cluster else {}),
                **(environment or {}),
            },
        )
        daemon.start()
        return daemon

    def _service(self) -> dict[str, str]:
        """Return what the kubelet tells every container of the API server."""
        server = urlsplit(self.cluster.control_plane.url)
        return {
            "KUBERNETES_SERVICE_HOST": str(server.hostname),
            "KUBERNETES_SERVICE_PORT": str(server.port),
        }

    def agent(self, node: str) -> Daemon:
        """Return the agent of a node."""
        return self.cluster.find_daemon(f"{node}-agent")

    # Looking.

    def get(self, *arguments: str) -> Any:
        """Return what `kubectl get ARGUMENTS -o json` prints; the items, if it is a list."""
        found = self._read(arguments) or json.loads(self.kubectl("get", *arguments, "-o", "json"))
        return found["items"] if found.get("kind", "").endswith("List") else found

    def _read(self, arguments: Sequence[str]) -> dict[str, Any] | None:
        """Read what `kubectl get` would, for a thirtieth of its time, where it is a common question; else None.

        Tests wait by asking again and again. Three workers that do so by starting kubectl keep two cores busy.
        """
        kind, *rest = arguments
        path = _PATHS.get(kind)
        if path is None:
            return None
        namespace = (
            "" if path.startswith("/apis/gpupolicy") or kind in _CLUSTER_WIDE else "/namespaces/default"
        )
        match rest:
            case [] | ["-A"]:
                name, namespace = "", namespace if rest == [] else ""
            case ["-n", given]:
                name, namespace = "", f"/namespaces/{given}"
            case [word] if not word.startswith("-"):
                name = f"/{word}"
            case [word, "-n", given] if not word.startswith("-"):
                name, namespace = f"/{word}", f"/namespaces/{given}"
            case _:
                return None
        group, plural = path.rsplit("/", 1)
        try:
            answer = self.cluster.control_plane.admin.call("GET", f"{group}{namespace}/{plural}{name}")
        except OSError:
            return None
        if answer.status != http.HTTPStatus.OK:
            return None  # kubectl says best what is wrong.
        found: dict[str, Any] = answer.body
        for item in found.get("items", ()):
            item.update(apiVersion=found["apiVersion"], kind=found["kind"].removesuffix("List"))
        return found

    def succeeds(self, *arguments: str, stdin: str | None = None, kubeconfig: Path | None = None) -> bool:
        """Return whether kubectl does this now, for what the API server allows or serves from caches that lag."""
        try:
            self.kubectl(*arguments, stdin=stdin, kubeconfig=kubeconfig)
        except KubectlError:
            return False
        return True

    def apply(self, *manifests: Path | Mapping[str, Any]) -> None:
        """Apply files or objects."""
        for manifest in manifests:
            if isinstance(manifest, Path):
                self.kubectl("apply", "-f", str(manifest))
            else:
                self.kubectl("apply", "-f", "-", stdin=json.dumps(manifest))

    def condition(self, kind: str, name: str, condition: str = "Ready") -> dict[str, Any]:
        """Return a condition of an object, or an empty one while nobody has reported."""
        conditions = self.get(kind, name).get("status", {}).get("conditions", [])
        return next((c for c in conditions if c["type"] == condition), {})

    def policy_row(self, name: str) -> list[str]:
        """Return the row of a policy in `kubectl get gpupolicies`, without its age."""
        return self.kubectl("get", "gpupolicies", name, "--no-headers").split()[:-1]

    def devices(self, **attributes: str) -> list[dict[str, Any]]:
        """Return our published devices of complete pools that carry these string attributes."""
        found = []
        for piece in self.get("resourceslices"):
            if piece["spec"]["driver"] != "gpu.gpupolicy.dev":
                continue
            for device in piece["spec"].get("devices", []):
                carried = device.get("attributes", {})
                if all(carried.get(k, {}).get("string") == v for k, v in attributes.items()):
                    found.append({**device, "node": piece["spec"]["nodeName"]})
        return found

    def wait(
        self, condition: Callable[[], bool], what: str, seconds: float = READY_SECONDS, *, every: float = 0.3
    ) -> None:
        """Wait until something holds; on timeout say what, and what the objects and logs say."""
        try:
            poll_until(condition, timeout_seconds=seconds, what=what, interval_seconds=every)
        except TimeoutError as error:
            raise TimeoutError(f"{error}\n{self.report()}") from error

    def wait_policies(self, *names: str, seconds: float = READY_SECONDS) -> None:
        """Wait until policies are Ready in their current generation."""

        def ready() -> bool:
            for name in names:
                policy = self.get("gpupolicy", name)
                found = self.condition("gpupolicy", name)
                if found.get("status") != "True":
                    return False
                if found.get("observedGeneration") != policy["metadata"]["generation"]:
                    return False
            return True

        self.wait(ready, f"policies {', '.join(names)} Ready", seconds)

    def wait_pods(
        self, namespace: str, count: int, phase: str = "Running", seconds: float = READY_SECONDS
    ) -> None:
        """Wait until a namespace has this many pods in a phase."""
        self.wait(
            lambda: (
                len([p for p in self.get("pods", "-n", namespace) if p["status"].get("phase") == phase])
                == count
            ),
            f"{count} pods {phase} in {namespace}",
            seconds,
        )

    def report(self, processes: Iterable[str] = ()) -> str:
        """Return the tables and the ends of the logs, for a failure."""
        parts = []
        for arguments in (("get", "gpupolicies,gpunodes", "-o", "wide"), ("get", "pods", "-A", "-o", "wide")):
            try:
                parts.append(self.kubectl(*arguments))
            except KubectlError as error:
                parts.append(str(error))
        if self.pods:
            for workload in ("deployment/gpupolicy-controller", "daemonset/gpupolicy-agent"):
                parts.append(f"--- {workload}")
                for command in ("logs", "describe"):
                    try:
                        options = ["--tail=20", "--all-containers", "--prefix"] if command == "logs" else []
                        parts.append(self.kubectl("-n", NAMESPACE, command, workload, *options))
                    except KubectlError as error:
                        parts.append(str(error))
            parts.append(self.kubectl("get", "events", "-A", "--field-selector", "type=Warning"))
        for name in processes or self._processes():
            daemon = self.cluster.find_daemon(name)
            parts.append(f"--- {name}: {'runs' if daemon.alive else 'ended'}\n{daemon.log_tail(15)}")
        return "\n".join(parts)

    def _processes(self) -> Sequence[str]:
        names = ["controller", *(f"{node.name}-agent" for node in self.cluster.nodes)]
        known = []
        for name in names:
            try:
                self.cluster.find_daemon(name)
            except KeyError:
                continue
            known.append(name)
        return known
