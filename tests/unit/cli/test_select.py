"""`kubectl-gpupolicy select` on files."""

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpupolicy.cli import main
from tests.paths import ROOT

DEVICES = {
    "whole": {"driver": "d.com", "attributes": {"type": {"string": "gpu"}, "index": {"int": 0}}},
    "slice": {"driver": "d.com", "attributes": {"type": {"string": "mig"}}},
    "other": {"driver": "e.com"},
}
GUARDED = 'device.driver == "d.com" && device.attributes["d.com"].type == '


@pytest.fixture
def devices(tmp_path: Path) -> str:
    path = tmp_path / "devices.json"
    path.write_text(json.dumps(DEVICES))
    return str(path)


def select(*arguments: str) -> int:
    return main.main(["select", *arguments])


@pytest.mark.parametrize(
    ("expression", "options", "code"),
    [
        pytest.param(GUARDED + '"gpu"', [], 0, id="match"),
        pytest.param(GUARDED + '"share"', [], 1, id="no match"),
        pytest.param('device.attributes["d.com"].type == "gpu"', [], 3, id="fails on a device"),
        pytest.param("nope", [], 3, id="does not compile"),
        pytest.param('device.attributes["d.com"].type', [], 3, id="no bool"),
        pytest.param(GUARDED + '"gpu"', ["--new"], 0, id="new"),
        pytest.param(
            '["a".trim()].join("-") == "a"', ["--new"], 3, id="accepted once, too expensive when new"
        ),
        pytest.param('["a".trim()].join("-") == "a"', [], 0, id="stored expressions may be expensive"),
        pytest.param('device.attributes["d.com"].?index.orValue(5) == 0', [], 0, id="optional syntax"),
        pytest.param("[1].exists(i, v, v == 1)", ["--kubernetes", "1.34"], 0, id="release"),
        pytest.param(
            'device.driver == "d.com" && device.attributes["d.com"].type.includes("gpu")',
            ["--list-attributes", "--new"],
            0,
            id="feature gate",
        ),
    ],
)
def test_exit_codes(devices: str, expression: str, options: list[str], code: int) -> None:
    assert select(expression, "-f", devices, *options) == code


def test_a_verdict_that_is_not_known_here(tmp_path: Path) -> None:
    """One name twice: which one counts is random on a real cluster."""
    twice = {"a": {"driver": "d.com", "attributes": {"t": {"int": 1}, "d.com/t": {"int": 2}}}}
    path = tmp_path / "devices.yaml"
    path.write_text(yaml.safe_dump(twice))
    assert select('device.attributes["d.com"].t == 1', "-f", str(path)) == 4
    assert select('device.driver == "d.com"', "-f", str(path)) == 0


def test_table(devices: str, capsys: pytest.CaptureFixture[str]) -> None:
    select(GUARDED + '"gpu"', "-f", devices, "--new")
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines[:4]] == [
        ["DEVICE", "NODE", "DRIVER", "VERDICT", "REASON"],
        ["whole", "-", "d.com", "match"],
        ["slice", "-", "d.com", "no-match"],
        ["other", "-", "e.com", "no-match"],
    ]
    assert lines[5] == (
        '1 of 3 devices match; `device.driver == "d.com"` drops 1; '
        '`device.attributes["d.com"].type == "gpu"` drops 1'
    )
    assert lines[6].startswith("as a new expression: accepted, estimated cost ")


def test_the_compilers_words_stand_once(devices: str, capsys: pytest.CaptureFixture[str]) -> None:
    select('device.driver ==\n "x" && nope', "-f", devices, "--new")
    out = capsys.readouterr().out
    assert out.count("undeclared reference to 'nope'") == 1
    assert "ERROR: <input>:2:9: " in out
    assert out.count("the expression does not compile") == 1
    assert "VERDICT" not in out


@pytest.mark.parametrize("output", ["json", "yaml"])
def test_documents(devices: str, output: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = select('device.attributes["d.com"].type == "gpu"', "-f", devices, "-o", output, "--new")
    found: dict[str, Any] = yaml.safe_load(capsys.readouterr().out)
    assert code == 3
    assert [one["verdict"] for one in found["devices"]] == ["match", "no-match", "error"]
    assert found["devices"][2]["reason"] == "no such key: type"
    assert found["summary"]["match"] == found["summary"]["no-match"] == found["summary"]["error"] == 1
    assert found["summary"]["nodes"] == {}
    assert found["findings"][0]["reason"] == "SelectorFails"
    assert found["new"] == {
        "answer": "accepted",
        "reason": "",
        "line": 0,
        "column": 0,
        "estimatedCost": 5,
        "apiServer": None,
    }


def test_every_script_can_be_read_back(devices: str, capsys: pytest.CaptureFixture[str]) -> None:
    for output in ("json", "yaml"):
        select('device.driver == "géräte/机"', "-f", devices, "-o", output)
        out = capsys.readouterr().out
        assert "géräte/机" in out
        assert yaml.safe_load(out)["expression"] == 'device.driver == "géräte/机"'


def test_place_of_a_fault(devices: str, capsys: pytest.CaptureFixture[str]) -> None:
    select("true &&\n  device.nope", "-f", devices, "-o", "json", "--new")
    new = json.loads(capsys.readouterr().out)["new"]
    assert (new["answer"], new["line"], new["column"]) == ("rejected", 2, 9)


def test_what_it_is_meant_for(devices: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert select('device.driver == "d.com"', "-f", devices, "--meant-for", "mig") == 0
    assert (
        "SelectorTooBroad: it is meant for MIG devices and also matches 1 whole card"
        in capsys.readouterr().out
    )


def test_standard_input(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("a: {driver: x}\n---\nb: {driver: y}\n"))
    assert select('device.driver == "y"', "-f", "-", "-o", "json") == 0
    assert [one["name"] for one in json.loads(capsys.readouterr().out)["devices"]] == ["a", "b"]


def test_parts_that_cannot_be_read_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mixed.yaml"
    path.write_text("a: {driver: x}\n---\nkind: Pod\n")
    assert select("true", "-f", str(path)) == 0
    assert "not read: document 2 is a Pod" in capsys.readouterr().out


def test_no_devices_but_a_new_expression(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "none.json"
    path.write_text('{"apiVersion": "v1", "kind": "List", "items": []}')
    assert select("true", "-f", str(path)) == 1
    assert select("true", "-f", str(path), "--new") == 0
    assert select("1", "-f", str(path), "--new") == 3
    assert "no devices to select from" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param(b"{]", "neither JSON nor YAML", id="syntax"),
        pytest.param(b"a: *nope", "neither JSON nor YAML", id="alias"),
        pytest.param(b"\xff\xfe\x00", "not text in UTF-8", id="binary"),
        pytest.param(b"[" * 20_000, "nested too deeply", id="deep JSON"),
        pytest.param(b"- " * 20_000, "maximum nesting depth", id="deep YAML"),
        pytest.param(
            b"!!python/object/apply:os.getcwd []", "neither JSON nor YAML", id="YAML tags run nothing"
        ),
        pytest.param(b"kind: Pod", "leave it out", id="another kind"),
        pytest.param(b"just words", "not a ResourceSlice", id="words"),
    ],
)
def test_input_that_cannot_be_used(
    tmp_path: Path, text: bytes, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "input"
    path.write_bytes(text)
    assert select("true", "-f", str(path)) == main.USAGE_ERROR
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("release", ["1", "2.0", "1.33", "1.x", "latest", ""])
def test_releases_that_are_none(devices: str, release: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert select("true", "-f", devices, "--kubernetes", release) == main.USAGE_ERROR
    assert "1.34" in capsys.readouterr().err


def test_files_that_are_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert select("true", "-f", str(tmp_path / "nope")) == main.USAGE_ERROR
    assert select("true", "-f", str(tmp_path)) == main.USAGE_ERROR
    assert "No such file" in capsys.readouterr().err


def test_a_cluster_that_does_not_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert select("true", "--kubeconfig", str(tmp_path / "nope")) == main.USAGE_ERROR
    config = tmp_path / "config"
    config.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "c",
                "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
                "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}],
                "users": [{"name": "u", "user": {}}],
            }
        )
    )
    assert select("true", "--kubeconfig", str(config)) == main.USAGE_ERROR
    assert capsys.readouterr().err.count("with -f a file is read instead") == 2


@pytest.mark.parametrize("words", [[], ["nope"], ["select"], ["select", "true", "-o", "xml"]])
def test_usage(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main.main(words)
    assert stop.value.code == main.USAGE_ERROR
    assert "usage: kubectl-gpupolicy" in capsys.readouterr().err


def test_the_program_starts_without_the_libraries_of_its_commands() -> None:
    """What costs time to import is imported by the command that needs it."""
    script = (
        "import sys; from gpupolicy.cli import main\n"
        "try: main.main(['--help'])\n"
        "except SystemExit as stop: assert stop.code == 0\n"
        "heavy = {'celpy', 'cel_expr_python', 're2', 'yaml', 'pydantic', 'kubernetes_asyncio', 'asyncio'}\n"
        "sys.exit(f'imported: {heavy & set(sys.modules)}' if heavy & set(sys.modules) else 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={"PYTHONPATH": str(ROOT / "operator")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "select" in done.stdout
