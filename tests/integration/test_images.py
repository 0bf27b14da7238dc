"""The images hold what their programs need, and little else."""

import hashlib
import json
import subprocess
import tarfile
from pathlib import Path

import pytest

from tests import images
from tools import image

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(300)]

MIB = 2**20
LIMITS_MIB = {"controller": 150, "agent": 75, "simulator": 5}


def unpack(archive: Path, folder: Path) -> dict[str, dict[str, object]]:
    """Unpack every image of an archive into a folder of its component; return their configurations."""
    with tarfile.open(archive) as tar:
        tar.extractall(folder / "oci", filter="data")
    blobs = folder / "oci/blobs/sha256"
    found = {}
    for entry in json.loads((folder / "oci/index.json").read_text())["manifests"]:
        name = entry["annotations"]["io.containerd.image.name"]
        manifest = json.loads((blobs / entry["digest"].removeprefix("sha256:")).read_text())
        component = name.rpartition("/")[2].partition(":")[0]
        for layer in manifest["layers"]:
            with tarfile.open(blobs / layer["digest"].removeprefix("sha256:")) as tar:
                tar.extractall(folder / component, filter="tar")
        found[component] = json.loads(
            (blobs / manifest["config"]["digest"].removeprefix("sha256:")).read_text()
        )
    return found


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, dict[str, object]]]:
    folder = tmp_path_factory.mktemp("images")
    configurations: dict[str, dict[str, object]] = {}
    for components in (("agent", "simulator"), ("controller",)):
        configurations |= unpack(images.archive(*components), folder)
    return folder, configurations


@pytest.mark.parametrize("component", ["controller", "agent", "simulator"])
def test_the_program_starts_with_nothing_but_its_image(
    unpacked: tuple[Path, dict[str, dict[str, object]]], component: str
) -> None:
    """Every import is there: in a root folder of its own, nothing of this machine's Python can help."""
    folder, configurations = unpacked
    config = configurations[component]["config"]
    assert isinstance(config, dict)
    done = subprocess.run(
        ["/usr/sbin/chroot", str(folder / component), *config["Entrypoint"], "--help"],
        env=dict(entry.split("=", 1) for entry in config["Env"]),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "usage" in done.stdout


@pytest.mark.parametrize("component", ["controller", "agent", "simulator"])
def test_an_image_stays_small_and_has_no_shell(
    unpacked: tuple[Path, dict[str, dict[str, object]]], component: str
) -> None:
    folder, _ = unpacked
    files = [path for path in (folder / component).rglob("*") if path.is_file() and not path.is_symlink()]
    assert sum(path.stat().st_size for path in files) < LIMITS_MIB[component] * MIB
    assert not {"sh", "bash", "busybox", "pip", "apt"} & {path.name for path in files}
    assert not [path for path in files if "/tests/" in str(path.relative_to(folder))]


def test_who_the_programs_run_as(unpacked: tuple[Path, dict[str, dict[str, object]]]) -> None:
    """Only the agent is root; the chart says why."""
    users = {name: found["config"]["User"] for name, found in unpacked[1].items()}  # type: ignore[index]
    assert users == {"controller": "65532:65532", "agent": "0:0", "simulator": ""}


def test_an_agent_brings_no_program_of_the_others(
    unpacked: tuple[Path, dict[str, dict[str, object]]],
) -> None:
    (package,) = (unpacked[0] / "agent").glob("usr/local/lib/python3*/site-packages/gpupolicy")
    assert {p.name for p in package.iterdir() if p.is_dir()} - {"__pycache__"} == {
        "adapters",
        "agent",
        "api",
        "core",
    }
    (packages,) = (unpacked[0] / "agent").glob("usr/local/lib/python3*/site-packages")
    assert not {"kopf", "celpy", "cel_expr_python"} & {p.name for p in packages.iterdir()}


def test_the_same_sources_give_the_same_image(tmp_path: Path) -> None:
    """So that an image can be made again to see what is in it."""
    digests = set()
    for turn in ("first", "second"):
        target = tmp_path / f"{turn}.tar"
        image.write_archive(target, list(image.images(["agent"], "1", tmp_path / "kept")))
        digests.add(hashlib.sha256(target.read_bytes()).hexdigest())
    assert len(digests) == 1
