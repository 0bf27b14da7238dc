"""The spec that NVIDIA's container toolkit generates on a simulated node, read, cut per claim and written again."""

import subprocess
from pathlib import Path

import pytest

from gpupolicy.adapters import cdi
from tests.cluster import build
from tests.simulator import Simulator

pytestmark = pytest.mark.cluster

KIND = "gpu.example.com/claim"
UID = "6ba7b810-9dad-11d1-80b4-00c04fd430c8"


@pytest.fixture(scope="module")
def toolkit() -> Path:
    tools = [tool for tool in build.TOOLS if "nvidia-ctk" in tool.names]
    return build.bin_directory(tools) / "nvidia-ctk"


@pytest.mark.parametrize("form", ["yaml", "json"])
def test_a_generated_spec_becomes_the_spec_of_a_claim(tmp_path: Path, toolkit: Path, form: str) -> None:
    """Nothing of a device or of the common edits is lost on the way."""
    node = Simulator(tmp_path / "node").create(gpus=2)
    generated = tmp_path / f"nvidia.{form}"
    command = [toolkit, "cdi", "generate", f"--format={form}", f"--output={generated}"]
    roots = [f"--driver-root={node.root}", f"--dev-root={node.root}"]
    subprocess.run([*command, *roots], env=node.environment(), check=True, capture_output=True)

    spec = cdi.read_spec(generated)
    uuids = [gpu["uuid"] for gpu in node.dump()["gpus"]]
    assert set(spec.devices) == {"0", "1", *uuids, "all"}
    for number, uuid in enumerate(uuids):
        (device_node,) = spec.devices[uuid].device_nodes
        assert (device_node.path, device_node.host_path) == (
            f"/dev/nvidia{number}",
            f"{node.root}/dev/nvidia{number}",
        )
        assert (device_node.major, device_node.minor or 0) == (195, number)
    assert "NVIDIA_VISIBLE_DEVICES=void" in spec.common_edits.env
    assert {"/dev/nvidiactl", "/dev/nvidia-uvm"} <= {each.path for each in spec.common_edits.device_nodes}
    assert {"update-ldcache", "create-symlinks"} <= {hook.args[1] for hook in spec.common_edits.hooks}
    assert any(mount.container_path == "/usr/bin/nvidia-smi" for mount in spec.common_edits.mounts)

    claimed = {f"gpu-{number}": spec.devices[uuid] for number, uuid in enumerate(uuids)}
    cdi.write_spec(tmp_path, KIND, UID, claimed, spec.common_edits)
    written = cdi.read_spec(cdi.spec_path(tmp_path, KIND, UID))
    assert written == cdi.Spec(
        kind=KIND,
        devices={f"{UID}-{name}": edits for name, edits in claimed.items()},
        common_edits=spec.common_edits,
    )
