"""What `nvidia-ctk` said is used as long as nothing changed, by threads that do not know of each other."""

import os
import stat
from pathlib import Path

import pytest

from gpupolicy.adapters import cdi, devicefiles
from gpupolicy.core.records import DeviceKind, DeviceRecord

SPEC = cdi.Spec(kind="nvidia.com/gpu", devices={}, common_edits=cdi.ContainerEdits(env=("A=b",)))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Have `nvidia-ctk` answer with SPEC, and note each time that it is asked."""
    times: list[int] = []

    def generate(_: devicefiles.DeviceFiles) -> cdi.Spec:
        times.append(1)
        return SPEC

    monkeypatch.setattr(devicefiles.DeviceFiles, "_generate", generate)
    return times


def files(kind: type[devicefiles.DeviceFiles] = devicefiles.DeviceFiles) -> devicefiles.DeviceFiles:
    return kind(nvidia_ctk=Path("/usr/bin/nvidia-ctk"), extra=cdi.ContainerEdits(env=("X=y",)))


def test_an_answer_is_remembered_until_the_hardware_changes(asked: list[int]) -> None:
    made = files()
    assert made.common().env == made.common().env == ("NVIDIA_VISIBLE_DEVICES=void", "A=b", "X=y")
    assert len(asked) == 1
    made.refresh()
    made.common()
    assert len(asked) == 2


def edits(number: int) -> cdi.ContainerEdits:
    return cdi.ContainerEdits(
        env=(f"G={number}",), device_nodes=(cdi.DeviceNode(path=f"/dev/nvidia{number}"),)
    )


class Node:
    """Cards whose `nvidia-ctk` knows some devices, or fails."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.known = {"GPU-0": edits(0)}
        self.failure = ""
        self.asked = 0
        self.now = 1000.0
        for name in ("nvidiactl", "nvidia0", "nvidia1"):
            path = directory / "dev" / name
            path.parent.mkdir(exist_ok=True)
            os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(195, 0))
        monkeypatch.setattr(devicefiles.DeviceFiles, "_generate", lambda _: self.generate())
        monkeypatch.setattr(devicefiles.time, "monotonic", lambda: self.now)
        self.files = devicefiles.DeviceFiles(
            nvidia_ctk=Path("/usr/bin/nvidia-ctk"), roots=devicefiles.Roots(dev=directory)
        )

    def generate(self) -> cdi.Spec:
        self.asked += 1
        if self.failure:
            raise devicefiles.DeviceFilesError(self.failure)
        return cdi.Spec(kind="nvidia.com/gpu", devices=dict(self.known), common_edits=SPEC.common_edits)

    def env(self, number: int) -> tuple[str, ...]:
        device = DeviceRecord(f"gpu-{number}", DeviceKind.GPU, "p", f"GPU-{number}", minor=number)
        return (*self.files.common().env, *self.files.edits(device).env)


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    return Node(tmp_path, monkeypatch)


def test_a_card_that_is_lost_does_not_take_its_neighbours_along(node: Node) -> None:
    """Another card was changed meanwhile, so nvidia-ctk is asked again, and fails for all."""
    before = node.env(0)
    node.files.refresh()
    node.failure = "GPU is lost"
    assert node.env(0) == before
    assert node.asked == 2, "one that hangs is not asked once more for each claim"
    with pytest.raises(devicefiles.DeviceFilesError, match="GPU is lost"):
        node.env(1)
    node.now += devicefiles.CTK_PAUSE_SECONDS
    node.failure, node.known = "", {**node.known, "GPU-1": edits(1)}
    assert "G=1" in node.env(1)


def test_what_was_said_before_is_not_used_for_another_instance_of_that_uuid(node: Node) -> None:
    """Its nodes would open what is somebody else's by now."""
    node.known["GPU-1"] = edits(0)
    assert "G=0" in node.env(1), "a node that nvidia-ctk only warned about is added"
    node.files.refresh()
    node.failure = "GPU is lost"
    with pytest.raises(devicefiles.DeviceFilesError, match="does not fit any more"):
        node.env(1)


def test_without_any_answer_there_is_an_error(node: Node) -> None:
    node.failure = "GPU is lost"
    with pytest.raises(devicefiles.DeviceFilesError, match="GPU is lost"):
        node.env(0)


class Forgetful(devicefiles.DeviceFiles):
    """As if a card had been changed at the very moment at which the answer was there."""

    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(name, None if name == "_generated" else value)


@pytest.mark.usefixtures("asked")
def test_an_answer_that_is_forgotten_at_once_is_an_answer() -> None:
    """Claims are prepared in threads while the loop over the cards says that one of them changed."""
    assert files(Forgetful).common().env[1:] == ("A=b", "X=y")
