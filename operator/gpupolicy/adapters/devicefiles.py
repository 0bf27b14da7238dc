"""Which files of the node a container needs for a device: from `nvidia-ctk`, or device nodes only.

Where the node has `nvidia-ctk`, the file list is what it generates: it knows the libraries, programs, sockets and
hooks of every driver release. Without it (simulated nodes, or drivers that are mounted otherwise) a container gets
the device nodes, and whatever extra edits the node's admin names. Either way a device that would come out without
its nodes is an error here: a container that starts without its GPU is the classic failure after a layout change.

`nvidia-ctk` looks at all cards of the node, so one that is lost or hangs makes it fail for all. What it said last stays
true of the devices that it knew then, and is used for them until it answers again.

It blocks (files, a subprocess of some hundred milliseconds): call it in a thread.
"""

import logging
import os
import re
import stat
import subprocess
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from gpupolicy.adapters import cdi
from gpupolicy.core.records import DeviceKind, DeviceRecord

CONTROL_NODES: Final = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset")
"""Nodes that every container with a GPU gets, where the node has them."""

CTK_TIMEOUT_SECONDS: Final = 20.0
CTK_PAUSE_SECONDS: Final = 30.0
"""How long `nvidia-ctk` is left alone after it failed: it may have hung for as long as a claim may take in all."""

_log = logging.getLogger(__name__)

_CAPS: Final = "nvidia-caps"
_FILE_MINOR: Final = re.compile(r"^DeviceFileMinor:\s*(\d+)\s*$", re.MULTILINE)
_FILE_MODE: Final = re.compile(r"^DeviceFileMode:\s*(\d+)\s*$", re.MULTILINE)


class DeviceFilesError(Exception):
    """The files of a device cannot be told; the text names what is missing and the remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Roots:
    """Where the node's files stand.

    Attributes:
        driver: the driver root, `/` or where a driver container mounts it.
        driver_on_host: where that stands on the host, if we see it elsewhere; None: in the same place.
        dev: what the device nodes are relative to; usually `/`.
        proc: root of procfs.
    """

    driver: Path = Path("/")
    driver_on_host: Path | None = None
    dev: Path = Path("/")
    proc: Path = Path("/proc")


@dataclass(slots=True, kw_only=True)
class DeviceFiles:
    """Answers for one node; `refresh` after the hardware changed.

    Attributes:
        roots: where the node's files stand.
        nvidia_ctk: path of `nvidia-ctk`; None for device nodes only.
        cdi_hook: path of `nvidia-cdi-hook` on the host, for the hooks that `nvidia-ctk` writes.
        extra: edits that every container gets on top.
    """

    roots: Roots = field(default_factory=Roots)
    nvidia_ctk: Path | None = None
    cdi_hook: Path | None = None
    extra: cdi.ContainerEdits = field(default_factory=cdi.ContainerEdits)
    _generated: cdi.Spec | None = None
    _last: cdi.Spec | None = None
    """What `nvidia-ctk` said last, also if it is to be asked again."""
    _failure: tuple[float, str] | None = None
    """When it failed last, on the monotonic clock, and how; None since it answered."""

    def common(self) -> cdi.ContainerEdits:
        """Return the edits of every container that gets any device.

        Raises:
            DeviceFilesError: `nvidia-ctk` fails, or the control nodes are missing.
        """
        # Without this an image that sets NVIDIA_VISIBLE_DEVICES=all gets every card through the legacy runtime.
        void = cdi.ContainerEdits(env=("NVIDIA_VISIBLE_DEVICES=void",))
        if self.nvidia_ctk is not None:
            return void + self._spec_or_last().common_edits + self.extra
        nodes = tuple(
            self._node(f"/dev/{name}") for name in CONTROL_NODES if _is_device(self._host(f"/dev/{name}"))
        )
        if not nodes:
            raise DeviceFilesError(
                f"{self._host('/dev/nvidiactl')} is no character device: load the driver, or correct --dev-root"
            )
        return void + cdi.ContainerEdits(device_nodes=nodes) + self.extra

    def edits(self, device: DeviceRecord) -> cdi.ContainerEdits:
        """Return the edits that only this device brings, with at least its own device nodes.

        Raises:
            DeviceFilesError: a node that belongs to the device is missing, or `nvidia-ctk` does not know it.
        """
        own = self._own_edits(device)
        if self.nvidia_ctk is None:
            return own
        generated = self._spec_or_last().devices.get(device.uuid)
        if generated is None:
            self.refresh()
            generated = self._spec().devices.get(device.uuid)
        if generated is None:
            raise DeviceFilesError(
                f"nvidia-ctk does not know {device.uuid}: `nvidia-ctk cdi generate` on the node shows what it knows"
            )
        paths = {node.path for node in generated.device_nodes}
        missing = [node for node in own.device_nodes if node.path not in paths]
        if missing and self._generated is None:
            # What was said before is of an instance that had the same UUID: its nodes would open somebody else's.
            raise DeviceFilesError(
                f"nvidia-ctk fails, and what it said of {device.uuid} before does not fit any more: run "
                "`nvidia-ctk cdi generate` on the node to see why"
            )
        # A node that nvidia-ctk only warned about is added by number, so that the container has its device.
        return generated + cdi.ContainerEdits(env=own.env, device_nodes=tuple(missing))

    def refresh(self) -> None:
        """Forget what `nvidia-ctk` said; it is asked again when it is needed."""
        self._generated = None

    def _own_edits(self, device: DeviceRecord) -> cdi.ContainerEdits:
        if device.minor is None:
            raise DeviceFilesError(
                f"the device node of {device.gpu_uuid} is not known: NVML gives no minor number"
            )
        card = f"/dev/nvidia{device.minor}"
        if not _is_device(self._host(card)):
            raise DeviceFilesError(
                f"{self._host(card)} is no character device: run `nvidia-modprobe -c {device.minor}` on the node"
            )
        nodes = [self._node(card)]
        if device.kind is DeviceKind.MIG:
            nodes += self._capability_nodes(device)
        # The name differs from device to device, so that several devices of one container do not overwrite each other.
        variable = "GPU_DEVICE_" + re.sub(r"[^A-Z0-9]", "_", device.name.upper())
        return cdi.ContainerEdits(env=(f"{variable}={device.uuid}",), device_nodes=tuple(nodes))

    def _capability_nodes(self, device: DeviceRecord) -> list[cdi.DeviceNode]:
        """Return the nodes that open a GPU instance and its compute instance.

        Numbers and modes are written out, because the nodes need not exist on the host: the kernel does not make
        them by itself.
        """
        instance = f"gpu{device.minor}/mig/gi{device.gpu_instance_id}"
        major = self._caps_major()
        nodes = []
        for folder in (instance, f"{instance}/ci{device.compute_instance_id}"):
            path = self.roots.proc / "driver/nvidia/capabilities" / folder / "access"
            try:
                text = path.read_text(encoding="utf-8")
            except OSError as error:
                raise DeviceFilesError(
                    f"{path} cannot be read ({error.strerror}): the instance of {device.name} is not there, "
                    "or --proc-root is wrong"
                ) from error
            minor = _FILE_MINOR.search(text)
            if minor is None:
                raise DeviceFilesError(f"{path} names no DeviceFileMinor")
            mode = _FILE_MODE.search(text)
            nodes.append(
                cdi.DeviceNode(
                    path=f"/dev/{_CAPS}/nvidia-cap{minor[1]}",
                    type="c",
                    major=major,
                    minor=int(minor[1]),
                    file_mode=int(mode[1]) if mode else None,
                )
            )
        return nodes

    def _caps_major(self) -> int:
        path = self.roots.proc / "devices"
        try:
            text = path.read_text(encoding="utf-8")
        except OSError as error:
            raise DeviceFilesError(f"{path} cannot be read ({error.strerror})") from error
        found = re.search(rf"^\s*(\d+) {_CAPS}$", text.partition("Block devices:")[0], re.MULTILINE)
        if found is None:
            raise DeviceFilesError(
                f"{path} has no character devices {_CAPS}: the driver has no MIG support loaded"
            )
        return int(found[1])

    def _host(self, path: str) -> Path:
        return self.roots.dev / path.lstrip("/")

    def _node(self, path: str) -> cdi.DeviceNode:
        host = self._host(path)
        return cdi.DeviceNode(path=path, host_path=str(host) if str(host) != path else None)

    def _spec(self) -> cdi.Spec:
        # By a name of its own: another thread may forget it at any moment.
        generated = self._generated
        if generated is not None:
            return generated
        failure = self._failure
        if failure is not None and time.monotonic() - failure[0] < CTK_PAUSE_SECONDS:
            raise DeviceFilesError(failure[1])
        try:
            generated = self._generate()
        except DeviceFilesError as error:
            self._failure = time.monotonic(), str(error)
            raise
        self._generated, self._last, self._failure = generated, generated, None
        return generated

    def _spec_or_last(self) -> cdi.Spec:
        try:
            return self._spec()
        except DeviceFilesError as error:
            last = self._last
            if last is None:
                raise
            _log.warning("what nvidia-ctk said before is used: %s", error)
            return last

    def _generate(self) -> cdi.Spec:
        command = [
            str(self.nvidia_ctk),
            "cdi",
            "generate",
            "--mode=nvml",
            "--format=json",
            "--device-name-strategy=uuid",
            f"--driver-root={self.roots.driver}",
            f"--dev-root={self.roots.dev}",
        ]
        if self.cdi_hook is not None:
            command.append(f"--nvidia-cdi-hook-path={self.cdi_hook}")
        try:
            done = subprocess.run(  # noqa: S603 -- the path is the admin's, the arguments are ours
                command, capture_output=True, text=True, timeout=CTK_TIMEOUT_SECONDS, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise DeviceFilesError(f"nvidia-ctk cannot be run: {error}") from error
        if done.returncode != 0:
            raise DeviceFilesError(f"nvidia-ctk cdi generate failed: {_last_line(done.stderr)}")
        try:
            spec = cdi.parse(done.stdout.encode(), source="nvidia-ctk cdi generate")
        except cdi.SpecError as error:
            raise DeviceFilesError(str(error)) from error
        devices = {name: self._as_on_host(edits) for name, edits in spec.devices.items()}
        return cdi.Spec(kind=spec.kind, devices=devices, common_edits=self._as_on_host(spec.common_edits))

    def _as_on_host(self, edits: cdi.ContainerEdits) -> cdi.ContainerEdits:
        """Name the files of the driver as the container runtime sees them, which runs on the host."""
        root = self.roots.driver_on_host
        if root is None:
            return edits
        mounts = []
        for mount in edits.mounts:
            path = Path(mount.host_path)
            if path.is_relative_to(self.roots.driver):
                mount = replace(mount, host_path=str(root / path.relative_to(self.roots.driver)))  # noqa: PLW2901
            mounts.append(mount)
        return replace(edits, mounts=tuple(mounts))


def _is_device(path: Path) -> bool:
    """Return whether a path is a character device itself; a symbolic link would dangle in the container."""
    try:
        return stat.S_ISCHR(os.lstat(path).st_mode)
    except OSError:
        return False


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1][:400] if lines else "it said nothing"
