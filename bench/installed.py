"""GpuPolicy as an admin installs it: the chart, controller and agents as pods, eight nodes with eight simulated H100s each.

The API server writes down every request of our two service accounts, which is the judge of what the programs count
themselves.
"""

import contextlib
import json
import time
import urllib.request
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, Self

from prometheus_client.parser import text_string_to_metric_families

from tests.cluster.cluster import Cluster
from tests.cluster.control_plane import ControlPlaneOptions
from tests.demo import __main__ as demo
from tests.paths import ROOT
from tests.stack import NAMESPACE, Stack

SETTLE_SECONDS: Final = 60.0
"""Agents look for claims with growing pauses after a change; this is longer than the longest."""

_INSTALL_SECONDS: Final = 300.0
_ACCOUNTS: Final = {
    component: f"system:serviceaccount:{NAMESPACE}:gpupolicy-{component}"
    for component in ("controller", "agent")
}


@dataclass(frozen=True, slots=True)
class Rest:
    """What was seen while nothing happened.

    Attributes:
        seconds: how long.
        before: metrics of each pod at the beginning, by pod and series name; labels are summed up.
        after: the same at the end.
        controller: the pod that leads.
        agents: pods of the agents, by node.
        audited: requests that the API server saw, by component and node ("" for the controller).
    """

    seconds: float
    before: Mapping[str, Mapping[str, float]]
    after: Mapping[str, Mapping[str, float]]
    controller: str
    agents: Mapping[str, str]
    audited: Mapping[tuple[str, str], int]

    def gain(self, pod: str, series: str) -> float:
        """Return by how much a series of a pod grew."""
        return self.after[pod][series] - self.before[pod][series]

    def cpu_percent(self, pod: str) -> float:
        """Return which share of a core a pod used."""
        return self.gain(pod, "process_cpu_seconds_total") / self.seconds * 100

    def per_minute(self, count: float) -> float:
        """Return a count as a rate."""
        return count * 60 / self.seconds


class Installed:
    """The running cluster. `start` makes it, without GpuPolicy; `install` comes first."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self._is_installed = False
        self._rest: Rest | None = None

    @classmethod
    @contextlib.contextmanager
    def start(cls) -> Iterator[Self]:
        """Start the cluster with our images on its nodes, and stop it at the end."""
        with TemporaryDirectory() as directory:
            policy = Path(directory) / "audit.json"
            policy.write_text(json.dumps(_audit_policy()), encoding="utf-8")
            options = ControlPlaneOptions(api_server_flags=(f"--audit-policy-file={policy}",))
            with Cluster.start(options=options) as cluster:
                stack = Stack(cluster, pods=True)
                stack.add_nodes(*demo.nodes())
                yield cls(stack)

    def install(self) -> tuple[float, float]:
        """Install the chart and return after how many seconds all pods were ready, and what CPU time they had used."""
        if self._is_installed:
            self.stack.helm("uninstall", "gpupolicy", "--namespace", NAMESPACE, "--wait")
            self.stack.wait(lambda: not self._pods(), "all pods gone", 120)
        began = time.monotonic()
        self.stack.install_pods(seconds=_INSTALL_SECONDS)
        seconds = time.monotonic() - began
        self._is_installed = True
        used = sum(found["process_cpu_seconds_total"] for found in self._metrics(self._pods()).values())
        return seconds, used

    def rest(self, seconds: float) -> Rest:
        """Give the cluster policies and pods, and watch it while nothing changes; asked again, tell the same."""
        if self._rest is None:
            if not self._is_installed:
                self.install()
            self._fill()
            time.sleep(SETTLE_SECONDS)
            self._rest = self._watch(seconds)
        return self._rest

    def _fill(self) -> None:
        stack = self.stack
        stack.apply(*(ROOT / f"examples/{name}.yaml" for name in demo.POLICIES))
        stack.wait_policies(*demo.POLICIES, seconds=180)
        stack.apply(*(ROOT / f"examples/{name}.yaml" for name in demo.WORKLOADS))
        stack.wait_pods("default", demo.PODS, seconds=180)
        stack.wait(lambda: demo.counted(stack) == demo.ALLOCATED, "every device counted", 120)

    def _watch(self, seconds: float) -> Rest:
        pods = self._pods()
        plane = self.stack.cluster.control_plane
        position, began, before = plane.audit_position(), time.monotonic(), self._metrics(pods)
        time.sleep(seconds)
        after, passed = self._metrics(pods), time.monotonic() - began
        audited: Counter[tuple[str, str]] = Counter()
        for component, account in _ACCOUNTS.items():
            # With the policy below these are not only writes.
            for event in plane.writes(user=account, after=position):
                node = event["user"].get("extra", {}).get("authentication.kubernetes.io/node-name", [""])[0]
                audited[component, node if component == "agent" else ""] += _is_counted(event)
        agents = {p["spec"]["nodeName"]: _name(p) for p in pods if _component(p) == "agent"}
        (controller,) = [_name(p) for p in pods if _component(p) == "controller"]
        if restarted := [name for name in before if self._began(before, name) != self._began(after, name)]:
            raise RuntimeError(f"started again in between: {', '.join(restarted)}")
        return Rest(passed, before, after, controller, agents, audited)

    @staticmethod
    def _began(metrics: Mapping[str, Mapping[str, float]], pod: str) -> float:
        return metrics[pod]["process_start_time_seconds"]

    def _pods(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.stack.get("pods", "-n", NAMESPACE)
        return found

    def _metrics(self, pods: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
        return {_name(pod): _scrape(pod) for pod in pods}


def _name(pod: Mapping[str, Any]) -> str:
    return str(pod["metadata"]["name"])


def _component(pod: Mapping[str, Any]) -> str:
    return str(pod["metadata"]["labels"]["app.kubernetes.io/component"])


def _scrape(pod: Mapping[str, Any]) -> dict[str, float]:
    """Return the series of a pod, those that differ in labels only summed up."""
    ports = pod["spec"]["containers"][0]["ports"]
    (port,) = [p["containerPort"] for p in ports if p["name"] == "health"]
    found: defaultdict[str, float] = defaultdict(float)
    with urllib.request.urlopen(f"http://{pod['status']['podIP']}:{port}/metrics", timeout=30) as answer:
        for family in text_string_to_metric_families(answer.read().decode()):
            for sample in family.samples:
                found[sample.name] += sample.value
    return dict(found)


def _audit_policy() -> dict[str, Any]:
    """Return the policy by which every request of ours is noted, and nothing else."""
    return {
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived"],
        "rules": [{"level": "Metadata", "users": list(_ACCOUNTS.values())}, {"level": "None"}],
    }


def _is_counted(event: Mapping[str, Any]) -> bool:
    """Whether an audit event is the one by which its request counts: a watch when it begins, others when they end."""
    return bool(event["stage"] == ("ResponseStarted" if event["verb"] == "watch" else "ResponseComplete"))
