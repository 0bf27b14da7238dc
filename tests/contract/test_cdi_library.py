"""Our CDI specs before the library that containerd and CRI-O read them with.

Our own checks cannot prove that a runtime accepts what we write; its own code can.
"""

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

from gpupolicy.adapters import cdi
from tests.contract import go_program
from tests.unit.adapters.test_cdi import BAD_EDITS, KIND, NVIDIA_CTK, one_device, specs

Judge = Callable[[bytes], dict[str, Any]]


@pytest.fixture(scope="module")
def judge() -> Iterator[Judge]:
    program = go_program.build(Path(__file__).parent / "cdicheck")
    with subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        stdin, stdout = process.stdin, process.stdout

        def ask(document: bytes) -> dict[str, Any]:
            stdin.write(json.dumps(document.decode()).encode() + b"\n")
            stdin.flush()
            verdict: dict[str, Any] = json.loads(stdout.readline())
            return verdict

        yield ask
        stdin.close()
        assert process.wait(timeout=60) == 0


@given(spec=specs)
@settings(deadline=None, max_examples=60)
def test_runtimes_load_what_we_write(judge: Judge, spec: cdi.Spec) -> None:
    """Every field and every combination, at the lowest version that the library itself would choose."""
    verdict = judge(cdi.render(spec, source="test"))
    assert verdict["error"] == ""
    assert verdict["version"] == verdict["minimum"]
    assert verdict["devices"] == list(spec.devices)


def test_the_library_reads_a_generated_spec_as_we_do(judge: Judge) -> None:
    verdict = judge(NVIDIA_CTK.encode())
    assert verdict["error"] == ""
    assert verdict["devices"] == list(cdi.parse(NVIDIA_CTK.encode(), source="x").devices)


# Where we are stricter on purpose: such a container fails later, with words that name no file.
STRICTER = {
    "env with NUL",
    "relative node",
    "negative",
    "hook without path",
    "mount empty source",
    "null edits",
}


@pytest.mark.parametrize(
    "edits",
    [pytest.param(case.values[0], id=case.id) for case in BAD_EDITS if case.id not in STRICTER],
)
def test_what_we_refuse_runtimes_refuse(judge: Judge, edits: Any) -> None:
    """Else we would fail a claim that runs elsewhere."""
    assert judge(json.dumps(one_device(edits)).encode())["error"]


@pytest.mark.parametrize("name", ["a", "0", "a.b:c_d-e", "A9"])
def test_device_names_that_both_accept(judge: Judge, name: str) -> None:
    edits = cdi.ContainerEdits(env=("A=b",))
    assert judge(cdi.render(cdi.Spec(kind=KIND, devices={name: edits}), source="x"))["devices"] == [name]
