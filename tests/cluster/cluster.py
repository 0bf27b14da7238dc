"""A whole test cluster: one control plane and any number of nodes, as a library.

::

    with Cluster.start() as cluster:                   # owned: gone when this process is, however it ends
        cluster.kubectl("get", "nodes")

    Cluster.start(state_dir=Path("demo"), detached=True)      # stays; another program later does
    Cluster.load(Path("demo")).stop()
"""

from __future__ import annotations

import contextlib
import functools
import http
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.cluster import build
from tests.cluster.cleanup import WARDEN, clean_dead_runs, remove_run
from tests.cluster.control_plane import ControlPlane, ControlPlaneOptions
from tests.cluster.image import Image, write_archive
from tests.cluster.node import Node, NodeOptions, start_nodes
from tests.cluster.process import Daemon, poll_until
from tests.cluster.rest import RestClient
from tests.cluster.run import REPOSITORY, Run

_CONTROL_PLANE_TOOLS = {"etcd", "kubernetes"}
_NODE_TOOLS = {"containerd", "runc"}


class Cluster:
    """One running cluster. `start` makes it, `load` takes up one that another program started."""

    def __init__(self, run: Run, control_plane: ControlPlane) -> None:
        self.run = run
        self.control_plane = control_plane
        # The calls that nearly every test makes, without the detour.
        self.kubectl = control_plane.kubectl
        self.kubeconfig = control_plane.kubeconfig
        self.service_account_kubeconfig = control_plane.service_account_kubeconfig

    @classmethod
    def start(
        cls,
        state_dir: Path | None = None,
        *,
        nodes: Sequence[NodeOptions] = (),
        options: ControlPlaneOptions | None = None,
        detached: bool = False,
    ) -> Self:
        """Start a cluster and wait until it is usable; leftovers of dead runs are removed first.

        Args:
            state_dir: where to note the cluster for `load`; None when nobody else needs to find it.
            nodes: nodes to start at once (root only); more may follow with `add_nodes`.
            options: how the control plane differs from a default one.
            detached: whether the cluster outlives this process.

        Raises:
            build.BuildError: when programs are missing and cannot be built.
            RuntimeError, TimeoutError: when a component does not come up; nothing of the cluster stays.
        """
        wanted = _CONTROL_PLANE_TOOLS | (_NODE_TOOLS if nodes else set())
        tools = [tool for tool in build.TOOLS if tool.name in wanted]
        programs = build.bin_directory(tools)
        clean_dead_runs()
        run = Run.create()
        try:
            if not detached:
                run.daemon(
                    WARDEN,
                    [sys.executable, "-m", "tests.cluster.cleanup", "--watch", run.directory],
                    cwd=REPOSITORY,
                ).start()
            cluster = cls(run, ControlPlane.start(run, programs, options))
            cluster.add_nodes(*nodes)
            if state_dir is not None:
                state_dir.mkdir(parents=True, exist_ok=True)
                pointer = {"run": str(run.directory)}
                (state_dir / "cluster.json").write_text(json.dumps(pointer), encoding="utf-8")
            if detached:
                run.detach()
        except BaseException:
            remove_run(run)
            raise
        return cluster

    @classmethod
    def load(cls, state_dir: Path) -> Self:
        """Take up a cluster by the `state_dir` it was started with.

        Raises:
            LookupError: when no cluster is noted there, or it does not run any more.
        """
        path = state_dir / "cluster.json"
        if not path.exists():
            raise LookupError(f"{path} does not exist: no cluster was started with this state directory")
        run = Run(Path(json.loads(path.read_text(encoding="utf-8"))["run"]))
        if not run.alive:
            raise LookupError(f"the cluster noted in {path} does not run any more")
        return cls(run, ControlPlane.load(run))

    def add_nodes(self, *options: NodeOptions) -> list[Node]:
        """Start nodes side by side, wait until all are Ready, and return them in the given order."""
        if not options:
            return []
        build.bin_directory([tool for tool in build.TOOLS if tool.name in _NODE_TOOLS])
        return start_nodes(self.control_plane, options)

    @property
    def nodes(self) -> list[Node]:
        """The nodes with a kubelet, in the order in which they were asked for."""
        prefix = "node:"
        # Nodes that start side by side are noted in any order.
        parts = {name: part for name, part in self.run.state["parts"].items() if name.startswith(prefix)}
        names = sorted(parts, key=lambda name: int(parts[name]["number"]))
        return [Node(self.control_plane, name.removeprefix(prefix)) for name in names]

    def find_node(self, name: str) -> Node:
        """The node of this name.

        Raises:
            LookupError: when the cluster has no such node.
        """
        node = Node(self.control_plane, name)
        if not node.exists:
            raise LookupError(f"the cluster has no node {name}")
        return node

    def load_images(self, *images: Image) -> None:
        """Make the images and import them into every node of now."""
        with tempfile.TemporaryDirectory(dir=self.run.data_directory) as scratch:
            archive = Path(scratch) / "images.tar"
            write_archive(archive, images)
            for node in self.nodes:
                node.load_images(archive)

    def daemon(
        self,
        name: str,
        command: Sequence[str | Path],
        *,
        environment: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> Daemon:
        """A process that runs beside the cluster and goes down with it; call its `start`.

        `find_daemon` gets it back by its name, which no other that runs may have; the log is ``daemon.log``.
        """
        return self.run.daemon(name, command, environment=environment, cwd=cwd, replace=True)

    def find_daemon(self, name: str) -> Daemon:
        """A process recorded earlier, by this program or another.

        Raises:
            KeyError: when there is none of this name.
        """
        self.run.daemon_record(name)
        return Daemon(self.run, name)

    @contextlib.contextmanager
    def namespace(self, name: str, labels: Mapping[str, str] | None = None) -> Iterator[str]:
        """A namespace, usable, deleted afterwards without waiting.

        What controllers put into each namespace is there: service account and the authority's certificate. After an outage
        of the API server they may look again only a minute later.
        """
        admin = self.control_plane.admin
        admin.create("/api/v1/namespaces", {"metadata": {"name": name, "labels": dict(labels or {})}})
        for part in ("serviceaccounts/default", "configmaps/kube-root-ca.crt"):
            path = f"/api/v1/namespaces/{name}/{part}"
            poll_until(
                functools.partial(_exists, admin, path),
                timeout_seconds=150.0,
                what=path,
            )
        yield name
        admin.delete(f"/api/v1/namespaces/{name}")

    def stop(self) -> None:
        """End every process of the cluster and remove everything it made on this machine."""
        remove_run(self.run)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()


def _exists(admin: RestClient, path: str) -> bool:
    return admin.call("GET", path).status == http.HTTPStatus.OK
