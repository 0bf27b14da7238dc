"""Go programs on the simulated driver: the vendor's wrappers, and the vendor's own container toolkit.

They are stricter than Python in three ways: a missing name kills them, they unload the library, and they read the
kernel's files at absolute paths without a detour through the C library.
"""

import json
import os
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster import build
from tests.contract import go_program
from tests.contract.simulator.expectations import profiles_of
from tests.simulator import Simulator

MIG_ON = {"mig_current": 1, "mig_pending": 1}


@pytest.fixture(scope="session")
def client() -> Path:
    return go_program.build(Path(__file__).parents[1] / "gonvml", cgo=True)


@pytest.fixture(scope="session")
def toolkit() -> Path:
    """The folder with nvidia-ctk and nvidia-cdi-hook."""
    return build.bin_directory([tool for tool in build.TOOLS if tool.name == "nvidia-container-toolkit"])


@pytest.fixture
def node(tmp_path: Path) -> Simulator:
    """Two cards with a driver root, MIG on for the first; the minor numbers are not the indices."""
    return Simulator(tmp_path / "node").create(
        gpus=2, per_gpu={0: {"minor_number": 1, **MIG_ON}, 1: {"minor_number": 0}}
    )


def run(client: Path, node: Simulator, *words: object) -> Any:
    done = subprocess.run(
        [client, *map(str, words)], env=node.environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_go_nvlib_sees_cards_profiles_and_mig_devices(client: Path, node: Simulator) -> None:
    made = run(client, node, "cut", 19, 19, 14)
    assert [entry["start"] for entry in made] == [6, 4, 0]
    assert [entry["listed"] for entry in made] == [1, 2, 1]
    mig, whole = run(client, node, "list")
    gpus = node.dump()["gpus"]
    assert [mig["uuid"], whole["uuid"]] == [gpu["uuid"] for gpu in gpus]
    assert (mig["architecture"], mig["brand"], mig["pci"]) == ("Hopper", "Nvidia", "0000:1a:00.0")
    assert {p.name for p in profiles_of("h100-80gb")} <= set(mig["profiles"])
    assert [device["profile"] for device in mig["migDevices"]] == ["2g.20gb", "1g.10gb", "1g.10gb"]
    assert (mig["migEnabled"], whole["migEnabled"], whole["migDevices"]) == (True, False, None)


def test_a_layout_that_the_drivers_choice_makes_impossible(client: Path, node: Simulator) -> None:
    assert run(client, node, "cut", 19, 19, 14, 9)[-1] == {"code": 23}


def test_the_library_is_unloaded_and_loaded_again(client: Path, node: Simulator) -> None:
    first, second = run(client, node, "twice")
    assert first == second
    assert len(first) == 2


def test_a_program_with_more_names_than_this_library_has_still_runs(client: Path) -> None:
    """Every name that the wrapper may call is there: what is not simulated answers, and does not kill."""
    wanted = subprocess.run(
        ["nm", "-D", "--undefined-only", client], capture_output=True, text=True, check=True
    ).stdout
    listing = subprocess.run(
        ["nm", "-D", "--defined-only", go_library()], capture_output=True, text=True, check=True
    ).stdout
    names = {line.split()[-1] for line in wanted.splitlines() if "nvml" in line}
    assert len(names) > 400
    assert names <= {line.split()[-1] for line in listing.splitlines()}


def go_library() -> Path:
    from tests.simulator import build as build_simulator

    return build_simulator() / "libnvidia-ml.so.1"


class Generator:
    """Runs `nvidia-ctk cdi generate` where the node's files stand at their absolute places."""

    def __init__(self, node: Simulator, toolkit: Path) -> None:
        self.node = node
        self.toolkit = toolkit

    def command(self) -> list[str]:
        root = self.node.root
        return [
            str(self.toolkit / "nvidia-ctk"),
            "cdi",
            "generate",
            "--mode=nvml",
            f"--driver-root={root}",
            f"--dev-root={root}",
            f"--nvidia-cdi-hook-path={self.toolkit / 'nvidia-cdi-hook'}",
            f"--output={self.node.directory / 'nvidia.yaml'}",
        ]

    def run(self, device: str | None = None) -> dict[str, Any]:
        """Generate and return the file. The option for single devices adds to all of them; the variable does not."""
        chosen = {"NVIDIA_CTK_CDI_GENERATE_DEVICE_IDS": device} if device else {}
        done = self.node.execute(self.command(), env={**os.environ, **chosen})
        assert done.returncode == 0, done.stderr
        written: dict[str, Any] = yaml.safe_load((self.node.directory / "nvidia.yaml").read_text())
        return written


@pytest.fixture
def generator(node: Simulator, toolkit: Path) -> Iterator[Generator]:
    yield Generator(node, toolkit)
    mounts = Path("/proc/self/mounts").read_text()
    assert str(node.directory) not in mounts, "the mounts of exec are its own"


def nodes_of(spec: dict[str, Any], name: str) -> set[str]:
    (device,) = (device for device in spec["devices"] if device["name"] == name)
    return {node["path"] for node in device["containerEdits"]["deviceNodes"]}


def test_cdi_for_whole_cards(generator: Generator) -> None:
    """The exit code says little: a card without its node is written all the same."""
    generator.node.set(0, mig_current=0, mig_pending=0)
    spec = generator.run()
    uuids = [gpu["uuid"] for gpu in generator.node.dump()["gpus"]]
    assert {device["name"] for device in spec["devices"]} == {"0", "1", *uuids, "all"}
    for name, minor in [("0", 1), (uuids[0], 1), ("1", 0), (uuids[1], 0)]:
        assert nodes_of(spec, name) == {f"/dev/nvidia{minor}"}
    shared = {node["path"] for node in spec["containerEdits"]["deviceNodes"]}
    assert {"/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset"} == shared
    mounted = {mount["containerPath"] for mount in spec["containerEdits"]["mounts"]}
    assert {
        "/usr/lib64/libnvidia-ml.so.580.65.06",
        "/usr/lib64/libcuda.so.580.65.06",
        "/usr/bin/nvidia-smi",
        "/usr/bin/nvidia-cuda-mps-control",
    } <= mounted


def test_cdi_brings_the_state_into_containers(generator: Generator) -> None:
    """It must be writable there: its lock is in it."""
    mounts = {mount["containerPath"]: mount for mount in generator.run()["containerEdits"]["mounts"]}
    state = mounts["/run/nvidia-persistenced/socket"]
    assert Path(state["hostPath"]).samefile(generator.node.directory / "state")
    assert "ro" not in state["options"]


def test_cdi_for_mig_devices(generator: Generator, client: Path) -> None:
    run(client, generator.node, "cut", 9, 19)
    spec = generator.run()
    gpu = generator.node.gpu(0)
    expected = {}
    for instance in gpu["gpu_instances"]:
        (compute,) = instance["compute_instances"]
        base = 3 + 135 * gpu["minor_number"] + 9 * instance["id"]
        nodes = {
            "/dev/nvidia1",
            f"/dev/nvidia-caps/nvidia-cap{base}",
            f"/dev/nvidia-caps/nvidia-cap{base + 1 + compute['id']}",
        }
        expected |= {f"0:{compute['mig_index']}": nodes, compute["uuid"]: nodes}
    assert {name: nodes_of(spec, name) for name in expected} == expected
    assert {device["name"] for device in spec["devices"]} == {
        *expected,
        "1",
        generator.node.gpu(1)["uuid"],
        "all",
    }
    paths = {node for nodes in expected.values() for node in nodes}
    for path in paths:
        assert stat.S_ISCHR(os.lstat(generator.node.root / path.removeprefix("/")).st_mode)


def test_cdi_for_named_devices(generator: Generator, client: Path) -> None:
    run(client, generator.node, "cut", 9)
    uuid = generator.node.gpu(0)["gpu_instances"][0]["compute_instances"][0]["uuid"]
    for name in ("0:0", uuid):
        spec = generator.run(name)
        assert {device["name"] for device in spec["devices"]} == {"0:0", uuid, "all"}
        assert len(nodes_of(spec, "0:0")) == 3


@pytest.mark.parametrize(
    "breakage",
    [
        pytest.param({"symbol": "nvmlInit", "code": 9}, id="init"),
        pytest.param({"symbol": "nvmlDeviceGetUUID", "code": 999}, id="uuid-of-one-card"),
        pytest.param({"symbol": "nvmlDeviceGetMinorNumber", "code": 15}, id="minor-of-one-card"),
    ],
)
def test_cdi_fails_whole_on_one_sick_card(generator: Generator, breakage: dict[str, Any]) -> None:
    generator.node.add_fault(count=-1, **breakage)
    done = generator.node.execute(generator.command())
    assert done.returncode != 0
    assert not (generator.node.directory / "nvidia.yaml").exists()


def test_a_version_that_no_file_carries_fails(generator: Generator) -> None:
    library = next(generator.node.root.glob("usr/lib64/libcuda.so.*.*"))
    generator.node.set(driver_version="999.1")
    assert not library.exists(), "files follow the driver's version"
    assert generator.run()["devices"]
    for stale in generator.node.root.glob("usr/lib64/*.so.999.1"):
        stale.rename(stale.with_name(stale.name.replace("999.1", "998.0")))
    assert generator.node.execute(generator.command()).returncode != 0
