"""What runs share on a machine is never given twice, and their state survives its writers."""

from __future__ import annotations

import concurrent.futures
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import cleanup
from tests.cluster.host import raise_inotify_limit, restore_inotify_limit
from tests.cluster.process import ProcessIdentity
from tests.cluster.run import Run, StateError, all_runs, machine_lock


@pytest.fixture(autouse=True)
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A place for runs away from those of this machine."""
    directory = tmp_path / "runs"
    monkeypatch.setenv("GPUPOLICY_TEST_RUNS", str(directory))
    yield directory
    for run in all_runs():
        cleanup.remove_run(run)


def lives(run: Run) -> bool:
    """A function, because a type checker takes a property for constant."""
    return run.alive


def test_ports_and_networks_are_given_once(monkeypatch: pytest.MonkeyPatch) -> None:
    # So few that chance alone would give some twice.
    monkeypatch.setattr("tests.cluster.run._PORTS", range(20_000, 20_200))
    runs = [Run.create() for _ in range(4)]

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        ports = [port for ports in pool.map(lambda run: run.reserve_ports(5), runs * 4) for port in ports]
        networks = list(pool.map(lambda run: run.reserve_network(), runs * 4))

    assert len(set(ports)) == 80
    assert len(set(networks)) == 16
    assert sorted(port for run in runs for port in run.state["ports"]) == sorted(ports)


def test_a_port_that_somebody_listens_on_is_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        busy = server.getsockname()[1]
        monkeypatch.setattr("tests.cluster.run._PORTS", [busy] * 50 + list(range(21_000, 21_010)))

        (port,) = Run.create().reserve_ports(1)

    assert port != busy


def test_edits_of_several_writers_are_all_kept() -> None:
    run = Run.create()

    def add(number: int) -> None:
        with Run(run.directory).edit() as state:
            state["parts"][str(number)] = {"number": number}

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(add, range(50)))

    assert len(run.state["parts"]) == 50


def test_an_edit_that_fails_changes_nothing() -> None:
    run = Run.create()
    before = run.state

    def fail() -> None:
        with run.edit() as state:
            state["owner"] = None
            raise KeyError

    with pytest.raises(KeyError):
        fail()

    assert run.state == before


def test_a_run_lives_as_long_as_its_owner_or_when_detached_its_processes() -> None:
    run = Run.create()
    assert lives(run)

    daemon = run.daemon("sleep", ["sleep", "1000"])
    daemon.start()
    run.detach()
    assert lives(run)
    daemon.kill()
    assert not lives(run)

    gone = ProcessIdentity(pid=os.getpid(), start_ticks=1, boot="another")
    with run.edit() as state:
        state["owner"] = gone.to_state()
    assert not lives(run)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"version": 99}'])
def test_a_run_with_a_state_that_cannot_be_read_lives_while_it_has_processes(text: str) -> None:
    run = Run.create()
    daemon = run.daemon("sleep", ["sleep", "1000"])
    daemon.start()
    identity = daemon.identity
    assert identity is not None
    (run.directory / "state.json").write_text(text)

    with pytest.raises(StateError, match=r"state\.json"):
        run.state  # noqa: B018
    assert cleanup.clean_dead_runs() == []
    assert lives(run)
    identity.signal(9)
    identity.wait(30)

    assert not lives(run)
    assert cleanup.clean_dead_runs() == [run.id]
    assert all_runs() == []


def test_other_folders_among_the_runs_are_left_alone(runs: Path) -> None:
    (runs / "lost+found").mkdir(parents=True)

    assert cleanup.clean_dead_runs() == []
    assert (runs / "lost+found").is_dir()


def test_a_command_line_that_names_no_run_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "precious").touch()

    with pytest.raises(SystemExit):
        cleanup.main(["--run", str(tmp_path)])

    assert "is not the directory of a run" in capsys.readouterr().err
    assert (tmp_path / "precious").exists()


def test_the_machine_lock_may_be_taken_twice_by_one_thread() -> None:
    with machine_lock(), machine_lock():
        assert Run.create().alive


@pytest.mark.parametrize(("before", "during"), [("128", 4096), ("9000", 9000)])
def test_the_inotify_limit_is_only_ever_raised_and_comes_back(
    before: str, during: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit, kept = tmp_path / "limit", tmp_path / "kept"
    limit.write_text(before)
    monkeypatch.setattr("tests.cluster.host._INOTIFY_LIMIT", limit)

    for _ in range(2):
        raise_inotify_limit(kept)
        assert int(limit.read_text()) == during
    for _ in range(2):
        restore_inotify_limit(kept)
        assert limit.read_text() == before


def test_the_state_file_is_plain_json_for_people() -> None:
    run = Run.create()

    state = json.loads((run.directory / "state.json").read_text())

    assert state["id"] == run.id
    assert state["owner"]["pid"] == os.getpid()
