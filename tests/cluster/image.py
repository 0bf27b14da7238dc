"""Container images without a registry: OCI archives written by hand, imported with ``ctr``.

The archive is reproducible: the same files give the same digests. Names are written in full
(``docker.io/...``) as containerd keeps them; pods use them with ``imagePullPolicy: Never``.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import platform
import shutil
import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

BUSYBOX = "docker.io/local/busybox:1"
PAUSE = "docker.io/local/pause:1"
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_OCI = "application/vnd.oci.image"


@dataclasses.dataclass(frozen=True, slots=True)
class Link:
    """A symbolic link in an image."""

    target: str


# Path in the image -> a file or a directory (copied whole, links kept), the bytes of a file, or a link.
# A path that ends in "/" is an empty directory, and its content is ignored.
Layer = Mapping[str, Path | bytes | Link]


@dataclasses.dataclass(frozen=True, slots=True)
class Image:
    """What an image holds and how it starts.

    Attributes:
        name: the full name with a tag, such as ``docker.io/local/operator:1``.
        layers: bottom first.
        entrypoint: the program and its fixed arguments.
        command: default arguments after the entrypoint.
        environment: variables beside PATH.
        user: ``uid`` or ``uid:gid``; empty is root.
        working_directory: where the program starts.
    """

    name: str
    layers: Sequence[Layer]
    entrypoint: Sequence[str] = ()
    command: Sequence[str] = ()
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    user: str = ""
    working_directory: str = "/"


def busybox_layer() -> Layer:
    """The bottom layer of all our images: a shell with the usual tools, users, and /tmp.

    Raises:
        FileNotFoundError: when busybox is not installed.
    """
    busybox = shutil.which("busybox")
    if busybox is None:
        raise FileNotFoundError("busybox is not on PATH (Debian package busybox-static)")
    applets = subprocess.run([busybox, "--list"], capture_output=True, text=True, check=True).stdout.split()
    return {
        "tmp/": b"",
        "etc/passwd": b"root:x:0:0:root:/:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n",
        "etc/group": b"root:x:0:\nnogroup:x:65534:\n",
        **{f"bin/{applet}": Link("busybox") for applet in applets},
        "bin/busybox": Path(busybox),
    }


def basic_images() -> list[Image]:
    """The images that every node has: `BUSYBOX`, and `PAUSE` for pod sandboxes."""
    layer = busybox_layer()
    # As process 1 a program without a handler ignores SIGTERM.
    pause = ["/bin/sh", "-c", "trap 'exit 0' TERM; sleep 2147483647 & wait"]
    return [Image(BUSYBOX, [layer], command=["/bin/sh"]), Image(PAUSE, [layer], entrypoint=pause)]


def write_archive(archive: Path, images: Sequence[Image]) -> None:
    """Write the images as one OCI archive; equal layers are stored once."""
    blobs: dict[str, bytes] = {}

    def add_blob(kind: str, data: bytes) -> dict[str, Any]:
        digest = hashlib.sha256(data).hexdigest()
        blobs[digest] = data
        return {"mediaType": f"{_OCI}.{kind}", "digest": f"sha256:{digest}", "size": len(data)}

    manifests = []
    for image in images:
        layers = [add_blob("layer.v1.tar", _layer(files)) for files in image.layers]
        config = add_blob("config.v1+json", _json(_config(image, [layer["digest"] for layer in layers])))
        manifest = {
            "schemaVersion": 2,
            "mediaType": f"{_OCI}.manifest.v1+json",
            "config": config,
            "layers": layers,
        }
        descriptor = add_blob("manifest.v1+json", _json(manifest))
        manifests.append({**descriptor, "annotations": {"io.containerd.image.name": image.name}})
    index = {"schemaVersion": 2, "mediaType": f"{_OCI}.index.v1+json", "manifests": manifests}
    with tarfile.open(archive, "w") as tar:
        _add_file(tar, "oci-layout", _json({"imageLayoutVersion": "1.0.0"}))
        _add_file(tar, "index.json", _json(index))
        for digest, data in blobs.items():
            _add_file(tar, f"blobs/sha256/{digest}", data)


def _config(image: Image, layers: Sequence[str]) -> dict[str, Any]:
    path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    return {
        "architecture": _ARCHITECTURES[platform.machine()],
        "os": "linux",
        "config": {
            "Entrypoint": list(image.entrypoint),
            "Cmd": list(image.command),
            "Env": [f"{name}={value}" for name, value in {"PATH": path, **image.environment}.items()],
            "User": image.user,
            "WorkingDir": image.working_directory,
        },
        "rootfs": {"type": "layers", "diff_ids": list(layers)},
    }


def _layer(files: Layer) -> bytes:
    buffer = io.BytesIO()
    made: set[PurePosixPath] = set()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for path in sorted(files):
            for parent in reversed(PurePosixPath(path.strip("/")).parents):
                _add_directory(tar, parent, made)
            _add(tar, path, files[path], made)
    return buffer.getvalue()


def _add(tar: tarfile.TarFile, path: str, source: Path | bytes | Link, made: set[PurePosixPath]) -> None:
    name = path.strip("/")
    if path.endswith("/"):
        _add_directory(tar, PurePosixPath(name), made)
    elif isinstance(source, Link):
        _add_link(tar, name, source.target)
    elif isinstance(source, bytes):
        _add_file(tar, name, source)
    elif source.is_dir():
        _add_directory(tar, PurePosixPath(name), made)
        for child in sorted(source.iterdir()):
            if child.is_symlink():
                _add_link(tar, f"{name}/{child.name}", str(child.readlink()))
            else:
                _add(tar, f"{name}/{child.name}", child, made)
    else:
        _add_file(tar, name, source.read_bytes(), source.stat().st_mode & 0o7777)


def _add_directory(tar: tarfile.TarFile, path: PurePosixPath, made: set[PurePosixPath]) -> None:
    if path in made or path == PurePosixPath():
        return
    made.add(path)
    entry = tarfile.TarInfo(str(path))
    entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if path.name == "tmp" else 0o755
    tar.addfile(entry)


def _add_link(tar: tarfile.TarFile, name: str, target: str) -> None:
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname, entry.mode = tarfile.SYMTYPE, target, 0o777
    tar.addfile(entry)


def _add_file(tar: tarfile.TarFile, name: str, data: bytes, mode: int = 0o644) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(data), mode
    tar.addfile(entry, io.BytesIO(data))


def _json(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True).encode()
