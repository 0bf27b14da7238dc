"""A node of a test cluster: a real kubelet on a containerd of its own, several side by side.

All of a node's processes live in a mount namespace of their own, in which the node's directory stands
in the places that kubelet, containerd and manifests agree on::

    <node>/                -> /var/lib/kubelet      plugins, plugins_registry, device-plugins, pods
    <node>/cdi             -> /run/cdi
    <node>/containerd-run  -> /run/containerd       the shims' sockets
    <node>/cni-state       -> /var/lib/cni
    <node>/pod-logs        -> /var/log/pods         and container-logs -> /var/log/containers

So a DaemonSet with host paths sees each node's own files, a process on the host reaches the same files
(and sockets) through `Node.directory`, and every mount is gone with the node's last process. The
network namespace is the machine's: each node is a bridge with an address, and its pods' subnet.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import http
import ipaddress
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.cluster import image
from tests.cluster.build import ensure_node_packages
from tests.cluster.control_plane import ControlPlane
from tests.cluster.host import (
    end_processes,
    make_bridge,
    make_cgroup,
    raise_inotify_limit,
    remove_cgroup,
    remove_link,
)
from tests.cluster.node_files import (
    VOLATILE,
    NodeLayout,
    containerd_command,
    kubelet_command,
    mount_command,
    write_boot_id,
    write_node_files,
)
from tests.cluster.process import Daemon
from tests.cluster.run import REPOSITORY, Run, inotify_note, machine_lock

# In the environment of every process of a node beside the run's, with the node's directory as its value.
NODE_VARIABLE = "GPUPOLICY_TEST_NODE"
_PARALLEL_STARTS = 4
_NODE_GROUPS = ("system:nodes",)
START_TIMEOUT_SECONDS = 150.0
_NAMESPACE = "k8s.io"  # containerd's, for everything that the kubelet asks for


@dataclasses.dataclass(frozen=True, slots=True)
class NodeOptions:
    """What a node is called and how it differs from a default one.

    Attributes:
        name: the node's name, a DNS label.
        labels: labels the kubelet registers with.
        taints: taints it registers with (Node ``spec.taints``).
        kubelet_configuration: fields laid over the KubeletConfiguration.
    """

    name: str
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict)
    taints: Sequence[Mapping[str, str]] = ()
    kubelet_configuration: Mapping[str, Any] = dataclasses.field(default_factory=dict)


class Node:
    """One node of a run: `start_nodes` makes them, `Node(control_plane, name)` takes one up again."""

    def __init__(self, control_plane: ControlPlane, name: str) -> None:
        self._control_plane = control_plane
        self._run: Run = control_plane.run
        self.name = name

    @property
    def exists(self) -> bool:
        """Whether the run still has this node (it was not stopped)."""
        return self._run.part(_part(self.name)) is not None

    @property
    def directory(self) -> Path:
        """The kubelet's root directory, as seen from the host."""
        return self._run.directory / self.name

    @property
    def plugins_dir(self) -> Path:
        """Where drivers keep their sockets: ``<driver>/dra.sock`` (``/var/lib/kubelet/plugins`` in pods)."""
        return self.directory / "plugins"

    @property
    def registry_dir(self) -> Path:
        """Where the kubelet looks for registration sockets."""
        return self.directory / "plugins_registry"

    @property
    def cdi_dir(self) -> Path:
        """The node's CDI directory (``/run/cdi`` and ``/var/run/cdi`` in pods)."""
        return self.directory / "cdi"

    @property
    def containerd_socket(self) -> Path:
        return self.directory / "containerd-run" / "containerd.sock"

    @property
    def address(self) -> str:
        """The node's InternalIP."""
        return self._layout.address

    @property
    def boot_id_file(self) -> Path:
        """The node's own boot id, which its kubelet reports; a machine's has one at each start."""
        return self._layout.boot_id_file

    @property
    def kubelet(self) -> Daemon:
        return Daemon(self._run, f"{self.name}-kubelet")

    @property
    def containerd(self) -> Daemon:
        return Daemon(self._run, f"{self.name}-containerd")

    def restart_kubelet(self) -> None:
        """Restart the kubelet in the orderly way; pods keep running."""
        self.kubelet.restart()

    def kill_kubelet(self) -> None:
        """End the kubelet as a crash would; pods keep running. `start_kubelet` brings it back."""
        self.kubelet.kill()

    def start_kubelet(self) -> None:
        self.kubelet.start()

    def wait_ready(self, timeout_seconds: float = START_TIMEOUT_SECONDS) -> None:
        """Wait until the API server shows the node Ready and reaches its kubelet.

        After a restart the kubelet needs another moment to know the pods that are there.

        Raises:
            RuntimeError, TimeoutError: with the end of the log of what did not do its part.
        """
        rest = self._control_plane.admin

        def ready() -> bool:
            self.containerd.require_alive()
            status, node = rest.call("GET", f"/api/v1/nodes/{self.name}")
            conditions = node["status"].get("conditions", ()) if status == http.HTTPStatus.OK else ()
            if not any(entry["type"] == "Ready" and entry["status"] == "True" for entry in conditions):
                return False
            # The condition may be that of the kubelet before this one.
            return rest.call("GET", f"/api/v1/nodes/{self.name}/proxy/healthz").status == http.HTTPStatus.OK

        self.kubelet.wait_until(ready, f"node {self.name} Ready", timeout_seconds=timeout_seconds)

    def load_images(self, archive: Path) -> None:
        """Import an archive of `image.write_archive` into the node's containerd."""
        self.ctr("images", "import", str(archive))

    def ctr(self, *arguments: str) -> str:
        """Run ``ctr`` on the node, in the namespace of the kubelet's containers, and return its output.

        Raises:
            RuntimeError: with what ctr said when it fails.
        """
        command = self.inside([self._control_plane.programs / "ctr", "-n", _NAMESPACE, *arguments])
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"ctr {' '.join(arguments)} on {self.name}: {done.stderr}")
        return done.stdout

    def inside(self, command: Sequence[str | Path]) -> list[str]:
        """The command line that runs `command` on the host with the node's view of the files."""
        namespace = f"/proc/{self._mounts.pid}/ns/mnt"
        return ["nsenter", f"--mount={namespace}", "--", *(str(argument) for argument in command)]

    def power_off(self) -> None:
        """End kubelet, containerd and every container at once; the Node object and the disk stay."""
        end_processes(f"{NODE_VARIABLE}={self.directory}", self._layout.cgroup)

    def power_on(self) -> None:
        """Boot after a `power_off`: what lives in memory (``/run``) is empty and the boot id is another."""
        for folder in VOLATILE:
            shutil.rmtree(self.directory / folder)
            (self.directory / folder).mkdir()
        self._boot()

    def stop(self) -> None:
        """Take the node away as a power cut would, delete its Node object, and forget it."""
        layout = self._layout
        self.power_off()
        with contextlib.suppress(OSError):  # the API server may be away; it is the machine that must be clean
            self._control_plane.admin.call("DELETE", f"/api/v1/nodes/{self.name}")
        remove_link(layout.bridge)
        remove_cgroup(layout.cgroup)
        for daemon in (self.kubelet, self.containerd, self._mounts):
            self._run.forget_daemon(daemon.name)
        self._run.store_part(_part(self.name), None)
        shutil.rmtree(self.directory, ignore_errors=True)
        shutil.rmtree(self._run.data_directory / self.name, ignore_errors=True)

    @property
    def _mounts(self) -> Daemon:
        return Daemon(self._run, f"{self.name}-mounts")

    @property
    def _settings(self) -> dict[str, Any]:
        settings = self._run.part(_part(self.name))
        if settings is None:
            raise LookupError(f"the cluster has no node {self.name}")
        return settings

    @property
    def _layout(self) -> NodeLayout:
        settings = self._settings
        return NodeLayout(
            name=self.name,
            directory=self.directory,
            data=self._run.data_directory / self.name,
            programs=self._control_plane.programs,
            network=ipaddress.IPv4Network(settings["network"]),
            bridge=settings["bridge"],
            cgroup=f"{self._run.cgroup}/{self.name}",
        )

    def _start(self, options: NodeOptions, number: int, images: Path) -> None:
        if self.directory.exists():
            raise ValueError(f"the cluster already has a node {self.name} (or a file of that name)")
        self.directory.mkdir(mode=0o755)
        network, bridge = self._run.reserve_network(), f"{self._run.link_prefix}{number}"
        settings = {
            "number": number,
            "network": str(network),
            "bridge": bridge,
            "labels": dict(options.labels),
        }
        self._run.store_part(_part(self.name), settings)
        layout = self._layout
        make_cgroup(layout.cgroup)
        make_bridge(bridge, f"{layout.address}/{network.prefixlen}")
        authority = self._control_plane.authority
        write_node_files(
            layout,
            authority.issue(f"kubelet-{self.name}", self._identity, _NODE_GROUPS, addresses=[layout.address]),
            authority.files.certificate,
            image.PAUSE,
            taints=options.taints,
            kubelet_configuration=options.kubelet_configuration,
        )
        self._boot(images)

    def _boot(self, images: Path | None = None) -> None:
        layout = self._layout
        write_boot_id(layout)
        layout.ready_file.unlink(missing_ok=True)
        self._start_daemon(self._mounts, mount_command(layout))
        self._mounts.wait_until(
            layout.ready_file.exists, f"the mounts of {self.name}", timeout_seconds=START_TIMEOUT_SECONDS
        )
        self._start_daemon(self.containerd, self.inside(containerd_command(layout)))
        self.containerd.wait_until(
            self._containerd_answers, f"containerd of {self.name}", timeout_seconds=START_TIMEOUT_SECONDS
        )
        if images is not None:
            self.load_images(images)
        kubeconfig = self._control_plane.kubeconfig(self._identity, _NODE_GROUPS)
        command = kubelet_command(layout, kubeconfig, self._settings["labels"])
        wiped = self._mark_slices()
        self._start_daemon(self.kubelet, self.inside(command))
        self.wait_ready()
        self.kubelet.wait_until(wiped, f"wiped ResourceSlices of {self.name}", timeout_seconds=120)

    def _mark_slices(self) -> Callable[[], bool]:
        """Put an empty slice where the starting kubelet has to delete it; return whether it has done so.

        A kubelet deletes all slices of its node some time after its start: at once on an idle machine, many seconds
        later when it could not yet read its node. No test should meet that by chance.
        """
        rest, resource = self._control_plane.admin, "/apis/resource.k8s.io/v1/resourceslices"
        pool = {"name": self.name, "generation": 1, "resourceSliceCount": 1}
        marker = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {"name": f"{self.name}-start"},
            "spec": {"driver": "start.example.com", "nodeName": self.name, "pool": pool, "devices": []},
        }
        # Where this version of the API is not served there is nothing to be deleted.
        if rest.call("POST", resource, marker).status == http.HTTPStatus.NOT_FOUND:
            return lambda: True
        path = f"{resource}/{self.name}-start"
        return lambda: rest.call("GET", path).status == http.HTTPStatus.NOT_FOUND

    def _start_daemon(self, daemon: Daemon, command: Sequence[str]) -> None:
        programs = self._control_plane.programs
        path = f"{programs}:{os.environ.get('PATH', '/usr/sbin:/usr/bin:/sbin:/bin')}"
        environment = {NODE_VARIABLE: str(self.directory), "PATH": path}
        self._run.daemon(daemon.name, command, environment=environment, replace=True).start()

    @property
    def _identity(self) -> str:
        return f"system:node:{self.name}"

    def _containerd_answers(self) -> bool:
        try:
            self.ctr("version")
        except RuntimeError:
            return False
        return True


def start_nodes(control_plane: ControlPlane, options: Sequence[NodeOptions]) -> list[Node]:
    """Start nodes side by side, wait until all are Ready, and return them in the given order.

    Raises:
        PermissionError: when not root.
        RuntimeError, TimeoutError: when a node does not come up; those that did stay until the run ends.
    """
    if os.geteuid() != 0:
        raise PermissionError("nodes need root: they mount, make bridges and run containers")
    ensure_node_packages()
    run = control_plane.run
    images = run.data_directory / "basic-images.tar"
    if not images.exists():
        image.write_archive(images, image.basic_images())
        _announce_api_server(control_plane)
        with machine_lock():
            raise_inotify_limit(inotify_note())
    with run.edit() as state:
        first = state["node_count"]
        state["node_count"] += len(options)
    nodes = [Node(control_plane, entry.name) for entry in options]
    with concurrent.futures.ThreadPoolExecutor(_PARALLEL_STARTS) as pool:
        started = [
            pool.submit(node._start, entry, number, images)
            for number, (node, entry) in enumerate(zip(nodes, options, strict=True), start=first)
        ]
        for future in started:
            future.result()
    return nodes


def _announce_api_server(control_plane: ControlPlane) -> None:
    """Make the cluster IP of the service ``kubernetes`` lead to the API server (see `forward`)."""
    run = control_plane.run
    bridge = f"{run.link_prefix}api"
    make_bridge(bridge, f"{control_plane.service_address}/32")
    service, target = f"{control_plane.service_address}:443", control_plane.url.removeprefix("https://")
    command = [sys.executable, "-m", "tests.cluster.forward", service, target]
    run.daemon("service-kubernetes", command, cwd=REPOSITORY).start()


def _part(name: str) -> str:
    return f"node:{name}"
