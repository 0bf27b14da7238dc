"""The configuration files of a node: kubelet, containerd, CNI, and the mounts that make it a place of its own."""

from __future__ import annotations

import dataclasses
import ipaddress
import json
import shlex
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.cluster.build import CNI_DIRECTORY
from tests.cluster.pki import KeyPair

# Folder of the node -> where its processes see it.
MOUNTS = {
    ".": "/var/lib/kubelet",
    "cdi": "/run/cdi",
    "containerd-run": "/run/containerd",
    "cni-state": "/var/lib/cni",
    "pod-logs": "/var/log/pods",
    "container-logs": "/var/log/containers",
}
# What is empty after a boot.
VOLATILE = ("cdi", "containerd-run")
# What the kubelet would set for the whole machine, and the values it wants: it finds them here instead.
_KERNEL_SETTINGS = {
    "vm/overcommit_memory": 1,
    "vm/panic_on_oom": 0,
    "kernel/panic": 10,
    "kernel/panic_on_oops": 1,
    "kernel/keys/root_maxkeys": 1_000_000,
    "kernel/keys/root_maxbytes": 25_000_000,
}
_BOOT_ID = "kernel/random/boot_id"
# They would make folders or sockets of the machine's, or probe what a node here never has.
_UNUSED_PLUGINS = (
    "io.containerd.internal.v1.opt",
    "io.containerd.internal.v1.tracing",
    "io.containerd.tracing.processor.v1.otlp",
    "io.containerd.nri.v1.nri",
    "io.containerd.snapshotter.v1.blockfile",
    "io.containerd.snapshotter.v1.btrfs",
    "io.containerd.snapshotter.v1.devmapper",
    "io.containerd.snapshotter.v1.erofs",
    "io.containerd.snapshotter.v1.zfs",
)


@dataclasses.dataclass(frozen=True, slots=True)
class NodeLayout:
    """Where everything of one node is."""

    name: str
    directory: Path
    data: Path
    programs: Path
    network: ipaddress.IPv4Network
    bridge: str
    cgroup: str

    @property
    def address(self) -> str:
        return str(self.network[1])

    @property
    def boot_id_file(self) -> Path:
        """Stands in the place of /proc/sys/kernel/random/boot_id for kubelet and containerd."""
        return self.directory / "kernel" / _BOOT_ID.replace("/", ".")

    @property
    def ready_file(self) -> Path:
        """Appears when the mount namespace is complete."""
        return self.directory / "mounts-ready"


def write_node_files(
    layout: NodeLayout,
    serving: KeyPair,
    authority: Path,
    pause_image: str,
    *,
    taints: Sequence[Mapping[str, str]],
    kubelet_configuration: Mapping[str, Any],
) -> None:
    """Make the node's folders and write its configuration into them."""
    layout.data.mkdir(parents=True)
    for folder in (*MOUNTS, "plugins", "plugins_registry", "kernel", "cni"):
        (layout.directory / folder).mkdir(exist_ok=True)
    for name, value in _KERNEL_SETTINGS.items():
        (layout.directory / "kernel" / name.replace("/", ".")).write_text(f"{value}\n", encoding="ascii")
    files = {
        "cni/10-bridge.conflist": json.dumps(_cni(layout), indent=1),
        "containerd.toml": _containerd(layout, pause_image),
        "kubelet.yaml": json.dumps(
            {**_kubelet(layout, serving, authority, taints), **kubelet_configuration}, indent=1
        ),
    }
    for name, text in files.items():
        (layout.directory / name).write_text(text, encoding="utf-8")


def write_boot_id(layout: NodeLayout) -> None:
    """Give the node the boot id of a machine that has just started."""
    layout.boot_id_file.write_text(f"{uuid.uuid4()}\n", encoding="ascii")


def mount_command(layout: NodeLayout) -> list[str]:
    """The command that makes the node's mount namespace and holds it open."""
    quote = shlex.quote
    lines = []
    for folder, target in MOUNTS.items():
        lines += [f"mkdir -p {target}", f"mount --bind {quote(str(layout.directory / folder))} {target}"]
    for name in (*_KERNEL_SETTINGS, _BOOT_ID):
        file = layout.directory / "kernel" / name.replace("/", ".")
        lines.append(f"test ! -e /proc/sys/{name} || mount --bind {quote(str(file))} /proc/sys/{name}")
    # Containers may ask for mount propagation; it ends at this namespace.
    lines += ["mount --make-rshared /", f": > {quote(str(layout.ready_file))}", "exec sleep infinity"]
    script = "\n".join(lines)
    return ["unshare", "--mount", "--propagation", "private", "--", "/bin/sh", "-eu", "-c", script]


def containerd_command(layout: NodeLayout) -> list[str | Path]:
    return [layout.programs / "containerd", "--config", layout.directory / "containerd.toml"]


def kubelet_command(layout: NodeLayout, kubeconfig: Path, labels: Mapping[str, str]) -> list[str | Path]:
    flags = [
        f"--config={layout.directory / 'kubelet.yaml'}",
        f"--kubeconfig={kubeconfig}",
        f"--hostname-override={layout.name}",
        f"--node-ip={layout.address}",
        "--root-dir=/var/lib/kubelet",
        "--v=2",
    ]
    if labels:
        flags.append("--node-labels=" + ",".join(f"{key}={value}" for key, value in labels.items()))
    return [layout.programs / "kubelet", *flags]


def _kubelet(
    layout: NodeLayout, serving: KeyPair, authority: Path, taints: Sequence[Mapping[str, str]]
) -> dict[str, Any]:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": layout.address,
        "readOnlyPort": 0,
        "healthzPort": 0,
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(authority)},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(serving.certificate),
        "tlsPrivateKeyFile": str(serving.key),
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "registerWithTaints": [dict(taint) for taint in taints],
        # Several kubelets share the machine's cgroup tree, of either version: each has its own branch.
        "failCgroupV1": False,
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{layout.cgroup}",
        "enforceNodeAllocatable": [],
        "failSwapOn": False,
        "makeIPTablesUtilChains": False,
        "oomScoreAdj": 0,
        "resolvConf": "",
        # The disk and memory of a developer's machine are none of the node's business.
        "evictionHard": {},
        "imageGCHighThresholdPercent": 100,
        "serializeImagePulls": False,
    }


def _containerd(layout: NodeLayout, pause_image: str) -> str:
    runtime = "io.containerd.runc.v2"
    return f"""\
version = 3
root = {json.dumps(str(layout.data))}
state = "/run/containerd"
disabled_plugins = {json.dumps(_UNUSED_PLUGINS)}

[grpc]
  address = "/run/containerd/containerd.sock"

[plugins."io.containerd.cri.v1.images"]
  snapshotter = "overlayfs"
  [plugins."io.containerd.cri.v1.images".pinned_images]
    sandbox = {json.dumps(pause_image)}

[plugins."io.containerd.cri.v1.runtime"]
  enable_cdi = true
  cdi_spec_dirs = ["/run/cdi"]
  # The node may lack the capability to lower a score below its own.
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = [{json.dumps(str(CNI_DIRECTORY))}]
    conf_dir = {json.dumps(str(layout.directory / "cni"))}
  [plugins."io.containerd.cri.v1.runtime".containerd]
    default_runtime_name = "runc"
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
      runtime_type = "{runtime}"
      [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
        BinaryName = {json.dumps(str(layout.programs / "runc"))}

[plugins."io.containerd.grpc.v1.cri"]
  disable_tcp_service = true
"""


def _cni(layout: NodeLayout) -> dict[str, Any]:
    bridge = {
        "type": "bridge",
        "bridge": layout.bridge,
        # The bridge has its address already. As a "gateway", the plugin would turn on forwarding machine-wide.
        "isGateway": False,
        "ipMasq": False,
        "ipam": {
            "type": "host-local",
            "ranges": [[{"subnet": str(layout.network), "gateway": layout.address}]],
            "routes": [{"dst": "0.0.0.0/0", "gw": layout.address}],
        },
    }
    return {"cniVersion": "1.0.0", "name": layout.bridge, "plugins": [bridge]}
