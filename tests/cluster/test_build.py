"""The build says what is missing, builds only what changed, and takes ready-made programs."""

from __future__ import annotations

import dataclasses
import os
import shutil
from pathlib import Path

import pytest

from tests.cluster import build

TOOL = build.Tool(name="hello", module="example.com/none", programs={"hello": "."}, links=("bonjour",))


@pytest.fixture
def hello(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> build.Tool:
    """A tiny tool of two names, in a cache of its own."""
    monkeypatch.delenv("KUBE_BIN", raising=False)
    monkeypatch.setenv("GPUPOLICY_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(build, "TOOLS_DIRECTORY", tmp_path / "tools")
    monkeypatch.setattr(build, "TOOLS", (TOOL,))
    source = tmp_path / "tools" / "hello"
    source.mkdir(parents=True)
    (source / "go.mod").write_text("module hello\n\ngo 1.26.0\n\n// example.com/none v1.2.3\n")
    (source / "main.go").write_text('package main\n\nfunc main() { println("hello") }\n')
    monkeypatch.setattr(build.Tool, "version", "v1.2.3")
    return TOOL


def test_every_tool_pins_a_version_and_has_a_key_of_its_own() -> None:
    assert [tool.version for tool in build.TOOLS if tool.name == "kubernetes"] == ["v1.37.2"]
    assert len({tool.key for tool in build.TOOLS}) == len(build.TOOLS)
    assert {path.name for path in build.TOOLS_DIRECTORY.iterdir()} == {tool.name for tool in build.TOOLS}


def test_a_tool_is_built_once_and_again_when_its_source_changes(hello: build.Tool) -> None:
    first = build.bin_directory([hello])
    assert {path.name for path in first.iterdir()} == {"hello", "bonjour"}
    built = (first / "hello").resolve()
    when = built.stat().st_mtime_ns

    assert build.bin_directory([hello]) == first
    assert built.stat().st_mtime_ns == when

    (hello.directory / "main.go").write_text('package main\n\nfunc main() { println("bye") }\n')
    second = build.bin_directory([hello])
    assert second != first
    assert (second / "hello").resolve() != built


def test_a_build_that_fails_says_what_the_compiler_said_and_leaves_nothing(hello: build.Tool) -> None:
    (hello.directory / "main.go").write_text("package main\n\nfunc main() { undefined() }\n")

    with pytest.raises(build.BuildError, match="undefined: undefined"):
        build.bin_directory([hello])

    assert list((build.cache_directory() / "tools").iterdir()) == []


def test_leftovers_of_a_killed_build_are_removed(hello: build.Tool) -> None:
    leftover = build.cache_directory() / "tools" / ".hello-killed"
    leftover.mkdir(parents=True)

    build.bin_directory([hello])

    assert not leftover.exists()


def test_ready_made_programs_are_taken_as_they_are(
    hello: build.Tool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBE_BIN", str(tmp_path))
    (tmp_path / "bonjour").touch()

    assert build.bin_directory([hello]) == tmp_path
    assert not build.cache_directory().exists()


def test_ready_made_programs_that_are_not_all_there_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KUBE_BIN", str(tmp_path))
    for name in ("etcd", "kubectl", "kubelet", "kube-apiserver", "kube-scheduler"):
        (tmp_path / name).touch()

    assert build.main(["etcd", "kubernetes"]) == 1

    assert f"KUBE_BIN={tmp_path} lacks: kube-controller-manager;" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("script", "message"),
    [
        pytest.param(None, "Go is not on PATH", id="no Go"),
        pytest.param("echo go1.25.9", "is go1.25.9: install Go 1.26.6 or newer", id="old"),
        pytest.param("exit 1", "is broken: install Go", id="broken"),
    ],
)
def test_a_missing_or_old_compiler_is_named_with_the_remedy(
    hello: build.Tool, script: str | None, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    if script is not None:
        (programs / "go").write_text(f"#!/bin/sh\n{script}\n")
        (programs / "go").chmod(0o755)
    monkeypatch.setenv("PATH", str(programs))

    with pytest.raises(build.BuildError, match=message):
        build.bin_directory([hello])


def test_missing_packages_are_named_in_one_error(hello: build.Tool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(
        build, "_BUILD_PACKAGES", {"/none/a": "package-a", "none-b": "package-b", "sh": "dash"}
    )

    with pytest.raises(build.BuildError, match=r"run as root: apt-get install package-a package-b$"):
        build.bin_directory([dataclasses.replace(hello, cgo=True)])


def test_an_unknown_tool_is_refused_with_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        build.main(["kuebernetes"])

    assert "unknown tools kuebernetes; there are etcd, kubernetes" in capsys.readouterr().err


def test_a_static_program_is_told_from_one_that_needs_a_loader() -> None:
    sleep = shutil.which("sleep")
    assert sleep is not None
    go_program = build.bin_directory() / "etcd"

    assert not build.is_static(Path(sleep))
    assert not build.is_static(Path(__file__))
    assert build.is_static(go_program.resolve())
