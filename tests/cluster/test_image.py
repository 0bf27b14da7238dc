"""Images are reproducible OCI archives with exactly the files that were given."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.image import Image, Layer, Link, write_archive


def read(archive: Path) -> tuple[dict[str, Any], dict[str, bytes]]:
    """The index of an archive and its blobs by digest."""
    with tarfile.open(archive) as tar:
        content = {entry.name: tar.extractfile(entry).read() for entry in tar.getmembers() if entry.isfile()}  # type: ignore[union-attr]
    blobs = {f"sha256:{Path(name).name}": data for name, data in content.items() if name.startswith("blobs/")}
    assert all(f"sha256:{hashlib.sha256(data).hexdigest()}" == digest for digest, data in blobs.items())
    assert json.loads(content["oci-layout"]) == {"imageLayoutVersion": "1.0.0"}
    return json.loads(content["index.json"]), blobs


def entries(archive: Path) -> dict[str, tarfile.TarInfo]:
    """The files of the only layer of the only image."""
    index, blobs = read(archive)
    manifest = json.loads(blobs[index["manifests"][0]["digest"]])
    layer = blobs[manifest["layers"][0]["digest"]]
    with tarfile.open(fileobj=io.BytesIO(layer)) as tar:
        names = tar.getnames()
        assert len(names) == len(set(names))
        return {entry.name: entry for entry in tar.getmembers()}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "folder"
    (folder / "deep" / "deeper").mkdir(parents=True)
    (folder / "deep" / "deeper" / "program").write_text("#!/bin/sh\n")
    (folder / "deep" / "deeper" / "program").chmod(0o755)
    (folder / "deep" / "link").symlink_to("deeper/program")
    (folder / "deep" / "folder-link").symlink_to("deeper")
    return folder


def test_a_layer_holds_files_folders_links_and_their_parents(tmp_path: Path, folder: Path) -> None:
    layer: Layer = {"opt/app": folder, "etc/name": b"name\n", "tmp/": b"", "bin/sh": Link("busybox")}

    write_archive(tmp_path / "image.tar", [Image("docker.io/local/a:1", [layer])])

    found = entries(tmp_path / "image.tar")
    assert {name: (entry.type, entry.mode, entry.linkname) for name, entry in found.items()} == {
        "bin": (tarfile.DIRTYPE, 0o755, ""),
        "bin/sh": (tarfile.SYMTYPE, 0o777, "busybox"),
        "etc": (tarfile.DIRTYPE, 0o755, ""),
        "etc/name": (tarfile.REGTYPE, 0o644, ""),
        "opt": (tarfile.DIRTYPE, 0o755, ""),
        "opt/app": (tarfile.DIRTYPE, 0o755, ""),
        "opt/app/deep": (tarfile.DIRTYPE, 0o755, ""),
        "opt/app/deep/deeper": (tarfile.DIRTYPE, 0o755, ""),
        "opt/app/deep/deeper/program": (tarfile.REGTYPE, 0o755, ""),
        "opt/app/deep/folder-link": (tarfile.SYMTYPE, 0o777, "deeper"),
        "opt/app/deep/link": (tarfile.SYMTYPE, 0o777, "deeper/program"),
        "tmp": (tarfile.DIRTYPE, 0o1777, ""),
    }
    assert {(entry.uid, entry.gid, entry.mtime) for entry in found.values()} == {(0, 0, 0)}


def test_the_same_files_give_the_same_archive(tmp_path: Path, folder: Path) -> None:
    first, second = tmp_path / "first.tar", tmp_path / "second.tar"
    write_archive(first, [Image("docker.io/local/a:1", [{"a": folder, "b": b"b"}])])
    (folder / "deep" / "deeper" / "program").touch()
    write_archive(second, [Image("docker.io/local/a:1", [{"b": b"b", "a": folder}])])

    assert first.read_bytes() == second.read_bytes()


def test_images_share_equal_layers_and_start_as_told(tmp_path: Path) -> None:
    layer: Layer = {"a": b"a"}
    images = [
        Image("docker.io/local/a:1", [layer], entrypoint=["/a"], command=["x"], user="7:8"),
        Image(
            "docker.io/local/b:1", [layer, {"b": b"b"}], environment={"PATH": "/b"}, working_directory="/b"
        ),
    ]

    write_archive(tmp_path / "images.tar", images)

    index, blobs = read(tmp_path / "images.tar")
    names = [entry["annotations"]["io.containerd.image.name"] for entry in index["manifests"]]
    assert names == ["docker.io/local/a:1", "docker.io/local/b:1"]
    first, second = (json.loads(blobs[entry["digest"]]) for entry in index["manifests"])
    assert first["layers"] == second["layers"][:1]
    assert len(blobs) == 2 + 2 + 2  # manifests, configurations, layers
    configs = [json.loads(blobs[manifest["config"]["digest"]]) for manifest in (first, second)]
    assert configs[0]["config"]["Entrypoint"] == ["/a"]
    assert configs[0]["config"]["Cmd"] == ["x"]
    assert configs[0]["config"]["User"] == "7:8"
    assert configs[1]["config"]["Env"] == ["PATH=/b"]
    assert configs[1]["config"]["WorkingDir"] == "/b"
    assert configs[1]["rootfs"]["diff_ids"] == [layer["digest"] for layer in second["layers"]]
