"""What a shell may pipe into a command, also when it is run as a module."""

import subprocess
import sys

import pytest

from tests.paths import ROOT


@pytest.mark.parametrize(
    ("given", "words"),
    [
        pytest.param(b"\xff\xfe\x00bin", "not text in UTF-8", id="binary"),
        pytest.param(b'{"kind":"ResourceSlice","spec":{"driver":7}}', "spec.driver", id="no-slice"),
    ],
)
def test_what_cannot_be_read_is_one_clear_line(given: bytes, words: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "gpupolicy.cli.main", "select", "true", "-f", "-"],
        input=given,
        capture_output=True,
        env={"PYTHONPATH": str(ROOT / "operator"), "LC_ALL": "C"},
        check=False,
    )
    said = done.stderr.decode()
    assert (done.returncode, said.count("\n")) == (2, 1), said
    assert words in said
