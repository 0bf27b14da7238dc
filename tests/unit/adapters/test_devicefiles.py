"""What `nvidia-ctk` said is used as long as nothing changed, by threads that do not know of each other."""

from pathlib import Path

import pytest

from gpupolicy.adapters import cdi, devicefiles

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


class Forgetful(devicefiles.DeviceFiles):
    """As if a card had been changed at the very moment at which the answer was there."""

    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(name, None if name == "_generated" else value)


@pytest.mark.usefixtures("asked")
def test_an_answer_that_is_forgotten_at_once_is_an_answer() -> None:
    """Claims are prepared in threads while the loop over the cards says that one of them changed."""
    assert files(Forgetful).common().env[1:] == ("A=b", "X=y")
