"""Where the output of a command may go: a reader that has seen enough, a full disk, a terminal with few letters."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.paths import ROOT

DEVICES = '{"ü": {"driver": "gpu.gpupolicy.dev", "attributes": {}}}'


def select(expression: str, devices: Path, stdout: Any, **environment: str) -> tuple[int, str]:
    """Run the command; return its exit code and what it said on standard error."""
    done = subprocess.run(
        [sys.executable, "-m", "gpupolicy.cli.main", "select", expression, "-f", str(devices)],
        stdout=stdout,
        stderr=subprocess.PIPE,
        env={"PYTHONPATH": str(ROOT / "operator"), **environment},
        check=False,
    )
    return done.returncode, done.stderr.decode()


@pytest.fixture
def devices(tmp_path: Path) -> Path:
    path = tmp_path / "devices.json"
    path.write_text(DEVICES, encoding="utf-8")
    return path


@pytest.mark.parametrize("unbuffered", ["", "1"], ids=["buffered", "unbuffered"])
def test_a_reader_that_went_away_is_no_error_to_talk_about(devices: Path, unbuffered: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        assert select("true", devices, writing, PYTHONUNBUFFERED=unbuffered) == (141, "")
    finally:
        os.close(writing)


@pytest.mark.parametrize("unbuffered", ["", "1"], ids=["buffered", "unbuffered"])
def test_a_full_disk_is_one_clear_line_and_not_the_code_for_no_match(devices: Path, unbuffered: str) -> None:
    with Path("/dev/full").open("wb") as full:
        code, said = select("true", devices, full, PYTHONUNBUFFERED=unbuffered)

    assert (code, said) == (2, "error: No space left on device; the output is not complete\n")


def test_a_letter_that_the_terminal_does_not_have_is_spelled_out(devices: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "gpupolicy.cli.main", "select", "true", "-f", str(devices)],
        stdout=subprocess.PIPE,
        env={"PYTHONPATH": str(ROOT / "operator"), "PYTHONIOENCODING": "ascii"},
    ) as process:
        shown, _ = process.communicate()

    assert process.returncode == 0
    assert b"\\xfc" in shown
