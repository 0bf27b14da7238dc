"""`kubectl-gpupolicy explain`: arguments, and what is printed. What it reads from a cluster is tried in the stories."""

import argparse
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpupolicy.api import names
from gpupolicy.cli import explain as command
from gpupolicy.cli import main
from gpupolicy.core.explanation import Objects
from tests.unit.core import wire

ATTRIBUTES = f'device.attributes["{wire.DRIVER}"]'


def device_class(profile: str) -> dict[str, Any]:
    expression = f'device.driver == "{wire.DRIVER}" && {ATTRIBUTES}.profile == "{profile}"'
    labels = {names.MANAGED_BY_LABEL: names.MANAGED_BY, names.POLICY_LABEL: "infer"}
    return {
        "metadata": {"name": f"h100-{profile.replace('.', '-')}", "labels": labels},
        "spec": {"selectors": [{"cel": {"expression": expression}}]},
    }


def asking(*selectors: str, class_name: str = "h100-1g-10gb") -> dict[str, Any]:
    exactly = {
        "deviceClassName": class_name,
        "selectors": [{"cel": {"expression": selector}} for selector in selectors],
    }
    return {
        "metadata": {"name": "x", "namespace": "team"},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}},
    }


POD: dict[str, Any] = {
    "metadata": {"name": "p", "namespace": "team"},
    "spec": {"resourceClaims": [{"name": "gpu", "resourceClaimName": "x"}], "containers": []},
    "status": {
        "phase": "Pending",
        "conditions": [{"type": "PodScheduled", "status": "False", "message": "cannot allocate all claims"}],
    },
}
SLICES = [
    wire.resource_slice(
        node,
        *(wire.mig(f"s{n}", "infer", "1g.10gb", "GPU-m") for n in range(2)),
        wire.mig("b0", "infer", "2g.20gb", "GPU-m"),
    )
    for node in ("n1", "n2")
]
HELD = wire.claim("held", ("n1", "s0"), ("n1", "s1"), ("n2", "s0"), ("n2", "s1"), ("n2", "b0"))


@pytest.fixture
def show(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Run the command on objects that are given in place of a cluster; return what is printed."""

    def run(*claims: Any, words: tuple[str, ...] = ("pod", "p"), unread: tuple[str, ...] = ()) -> str:
        objects = Objects(
            slices=SLICES, claims=claims, classes=[device_class("1g.10gb"), device_class("2g.20gb")]
        )

        async def read(_arguments: argparse.Namespace, name: str) -> Any:
            assert name == "p"
            return command._Input(POD, objects, 37, unread)

        monkeypatch.setattr(command, "_from_cluster", read)
        assert main.main(["explain", *words]) == 0
        return capsys.readouterr().out

    return run


def test_all_allocated(show: Any) -> None:
    """The numbers in a table, the words below, the scheduler's last."""
    lines = show(asking(), HELD).splitlines()
    assert lines[0] == "pod team/p is Pending: its request cannot be satisfied now"
    assert lines[2].split() == [
        "REQUEST",
        "CLASS",
        "POLICY",
        "ASKED",
        "DEVICES",
        "ALLOCATED",
        "FREE",
        "MATCH",
        "MOST",
        "CAUSE",
    ]
    assert lines[3].split() == ["gpu", "h100-1g-10gb", "infer", "1", "4", "4", "0", "4", "-", "NoneFree"]
    assert lines[5:] == [
        "gpu (ResourceClaim x): 4 of 4 devices allocated, 0 free",
        "  other classes of infer: h100-2g-20gb 1 free",
        "",
        "the scheduler says: cannot allocate all claims",
    ]


def test_a_selector_that_misses(show: Any) -> None:
    """Clause by clause, and what the siblings have when none of theirs is free either."""
    held = wire.claim("held", ("n1", "b0"), ("n2", "b0"))
    miss = f'{ATTRIBUTES}.type == "mig" && {ATTRIBUTES}.parentUUID == "GPU-x"'
    lines = show(asking(miss), held).splitlines()
    assert lines[3].split()[4:] == ["4", "0", "4", "0", "-", "SelectorMisses"]
    assert lines[5:8] == [
        "gpu (ResourceClaim x): the request's selectors drop all 4 devices of class h100-1g-10gb",
        f'  `{ATTRIBUTES}.parentUUID == "GPU-x"` drops 4',
        "  other classes of infer: h100-2g-20gb 2/2 allocated",
    ]


def test_free(show: Any) -> None:
    out = show(asking())
    assert out.splitlines()[3].split()[4:] == ["4", "0", "4", "4", "2", "on", "n1", "Free"]
    assert "  it fits on n1, n2\n" in out


def test_devices_that_the_pod_has(show: Any) -> None:
    lines = show(wire.claim("x", ("n1", "s0"))).splitlines()
    assert lines[0] == "pod team/p is Pending: the pod has all its devices"
    assert [line.split() for line in lines[2:4]] == [
        ["REQUEST", "DEVICE", "NODE", "DRIVER"],
        ["r", "s0", "n1", wire.DRIVER],
    ]


def test_problems_and_what_was_not_read(show: Any) -> None:
    lines = show(unread=("nodes: forbidden; not judged",)).splitlines()
    assert lines[-3:] == [
        "ResourceClaim x does not exist: create it, or make the pod again",
        "the scheduler says: cannot allocate all claims",
        "not read: nodes: forbidden; not judged",
    ]


@pytest.mark.parametrize("output", ["json", "yaml"])
def test_documents(show: Any, output: str) -> None:
    out = show(asking(), HELD, words=("pod/p", "-o", output), unread=("a",))
    found = json.loads(out) if output == "json" else yaml.safe_load(out)
    (row,) = found.pop("requests")
    assert found == {
        "pod": "p",
        "namespace": "team",
        "summary": "Pending: its request cannot be satisfied now",
        "held": [],
        "problems": [],
        "notes": ["the scheduler says: cannot allocate all claims"],
        "notRead": ["a"],
    }
    none = {"devices": 4, "allocated": 4, "free": 0, "tainted": {}, "incomplete": 0, "freeByNode": {}}
    one = {"devices": 2, "allocated": 1, "free": 1, "tainted": {}, "incomplete": 0, "freeByNode": {"n1": 1}}
    assert row == {
        "name": "gpu",
        "origin": "ResourceClaim x",
        "class": "h100-1g-10gb",
        "policy": "infer",
        "asked": 1,
        "cause": "NoneFree",
        "message": "4 of 4 devices allocated, 0 free",
        "ofClass": none,
        "matching": none,
        "drops": [],
        "nodes": [],
        "otherClasses": {"h100-2g-20gb": one},
    }


def test_documents_of_what_the_pod_has(show: Any) -> None:
    found = json.loads(show(wire.claim("x", ("n1", "s0")), words=("po", "p", "-o", "json")))
    assert found["held"] == [
        {"request": "r", "driver": wire.DRIVER, "pool": "n1/gpupolicy", "device": "s0", "node": "n1"}
    ]


@pytest.mark.parametrize(
    "words",
    [
        ["pod"],
        ["p"],
        ["pod/"],
        ["pod/p", "q"],
        ["pod", "p", "q"],
        ["pod", "a/b"],
        ["node", "p"],
        ["pod", ""],
    ],
    ids=" ".join,
)
def test_what_is_no_pod(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["explain", *words]) == main.USAGE_ERROR
    assert capsys.readouterr().err == f'error: "{" ".join(words)}" is no pod: write `explain pod NAME`\n'


@pytest.mark.parametrize(
    ("words", "says"),
    [
        pytest.param(["pod", "p"], "does not exist: name another file or set KUBECONFIG", id="no kubeconfig"),
        pytest.param(["pod", ".."], "does not exist: name another file", id="before any name is looked at"),
    ],
)
def test_a_cluster_that_cannot_be_read(
    tmp_path: Path, words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["explain", *words, "--kubeconfig", str(tmp_path / "nope")]) == main.USAGE_ERROR
    error = capsys.readouterr().err
    assert error.startswith("error: the cluster cannot be read: ")
    assert says in error


def test_names_that_no_object_can_have(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They would name another path of the API server, and are told before it is asked."""
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
    for words in (["pod", ".."], ["pod", "p", "-n", "a/b"]):
        assert main.main(["explain", *words, "--kubeconfig", str(config)]) == main.USAGE_ERROR
        assert "is not the name of an object" in capsys.readouterr().err


@pytest.mark.parametrize("words", [[], ["pod", "p", "-o", "xml"]])
def test_usage(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main.main(["explain", *words])
    assert stop.value.code == main.USAGE_ERROR
    assert "usage: kubectl-gpupolicy explain" in capsys.readouterr().err
