"""Whole files: old or new, and errors that say what to do."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from gpupolicy.adapters import files

SYNCS = list(files.Sync)


def failing(call: str, number: int, monkeypatch: pytest.MonkeyPatch, *, at: int = 1) -> None:
    """Let the at-th call of one function of `os` fail."""
    real = getattr(os, call)
    calls = 0

    def fail(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == at:
            raise OSError(number, os.strerror(number))
        return real(*args, **kwargs)

    monkeypatch.setattr(os, call, fail)


@pytest.mark.parametrize("sync", SYNCS)
def test_replace_gives_the_file_its_content_and_mode(tmp_path: Path, sync: files.Sync) -> None:
    path = tmp_path / "x"
    files.replace(path, b"one", mode=0o600, sync=sync)
    files.replace(path, b"", sync=sync)
    assert path.read_bytes() == b""
    files.replace(path, b"two" * 100_000, mode=0o600, sync=sync)
    assert path.read_bytes() == b"two" * 100_000
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_a_symlink_is_replaced_and_not_followed(tmp_path: Path) -> None:
    """Whoever plants a link cannot choose what root overwrites."""
    target = tmp_path / "target"
    target.write_text("precious")
    link = tmp_path / "link"
    link.symlink_to(target)
    files.replace(link, b"ours", sync=files.Sync.NONE)
    assert target.read_text() == "precious"
    assert not link.is_symlink()


@pytest.mark.parametrize(
    ("sync", "expected"),
    [
        (files.Sync.NONE, []),
        (files.Sync.FILE, ["file"]),
        (files.Sync.FULL, ["file", "directory"]),
    ],
)
def test_what_is_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sync: files.Sync, expected: list[str]
) -> None:
    """The file before its rename, the directory after it."""
    synced = []
    real = os.fsync

    def record(descriptor: int) -> None:
        synced.append("directory" if Path(f"/proc/self/fd/{descriptor}").is_dir() else "file")
        assert (tmp_path / "x").exists() == (len(synced) == 2)
        real(descriptor)

    monkeypatch.setattr(os, "fsync", record)
    files.replace(tmp_path / "x", b"1", sync=sync)
    assert synced == expected


FAILURES = [
    pytest.param("open", errno.EROFS, files.Fault.READ_ONLY, id="read-only"),
    pytest.param("open", errno.EACCES, files.Fault.DENIED, id="denied"),
    pytest.param("write", errno.ENOSPC, files.Fault.FULL, id="full"),
    pytest.param("write", errno.EDQUOT, files.Fault.FULL, id="quota"),
    pytest.param("fsync", errno.EIO, files.Fault.BROKEN, id="disk error"),
    pytest.param("replace", errno.EROFS, files.Fault.READ_ONLY, id="rename refused"),
    pytest.param("open", errno.EISDIR, files.Fault.NO_FILE, id="a directory"),
    pytest.param("open", errno.EMFILE, files.Fault.OTHER, id="something else"),
]


@pytest.mark.parametrize(("call", "number", "fault"), FAILURES)
def test_a_failed_replace_leaves_the_old_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int, fault: files.Fault
) -> None:
    """And no litter, and an error with path, number and remedy."""
    path = tmp_path / "x"
    path.write_text("old")
    failing(call, number, monkeypatch)
    with pytest.raises(files.FileError) as caught:
        files.replace(path, b"new", sync=files.Sync.FULL)
    monkeypatch.undo()
    assert (caught.value.fault, caught.value.errno, caught.value.path) == (fault, number, path)
    assert caught.value.remedy in str(caught.value)
    assert str(path) in str(caught.value)
    assert [p.name for p in tmp_path.iterdir()] == ["x"]
    assert path.read_text() == "old"


def test_a_short_write_is_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel may take less than it was given."""
    real = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: real(descriptor, bytes(data[:3])))
    files.replace(tmp_path / "x", b"0123456789", sync=files.Sync.NONE)
    assert (tmp_path / "x").read_bytes() == b"0123456789"


def test_a_failed_sync_of_the_directory_is_an_error_though_the_file_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller asked for a promise that the disk did not give."""
    failing("fsync", errno.EIO, monkeypatch, at=2)
    with pytest.raises(files.FileError, match="cannot sync"):
        files.replace(tmp_path / "x", b"new", sync=files.Sync.FULL)
    assert (tmp_path / "x").read_bytes() == b"new"


def test_remove_and_list(tmp_path: Path) -> None:
    for name in ("b", "a"):
        (tmp_path / name).touch()
    assert files.names(tmp_path) == ("a", "b")
    assert files.remove(tmp_path / "a", sync=files.Sync.FULL)
    assert not files.remove(tmp_path / "a", sync=files.Sync.FULL)
    assert files.names(tmp_path) == ("b",)


def test_remove_reports_what_it_could_not(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    with pytest.raises(files.FileError, match="cannot remove"):
        files.remove(tmp_path / "d", sync=files.Sync.NONE)


def test_move_keeps_the_bytes(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"\0half")
    files.move(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "b").read_bytes() == b"\0half"
    with pytest.raises(files.FileError, match="cannot move"):
        files.move(tmp_path / "a", tmp_path / "c")


@pytest.mark.parametrize("path", ["missing/x", "file/x"])
def test_a_missing_directory_is_named(tmp_path: Path, path: str) -> None:
    """Also when a file stands where the directory should."""
    (tmp_path / "file").touch()
    with pytest.raises(files.FileError) as caught:
        files.replace(tmp_path / path, b"", sync=files.Sync.NONE)
    assert caught.value.fault is files.Fault.MISSING


def test_sweep_takes_only_old_temporary_files_of_its_prefix(tmp_path: Path) -> None:
    for name in (".a-1.tmp", ".b-1.tmp", "a-1.tmp", ".a-1.json", ".a-young.tmp"):
        (tmp_path / name).touch()
        if "young" not in name:
            os.utime(tmp_path / name, (0, 0))
    assert files.sweep(tmp_path, prefix="a-") == 1
    assert files.names(tmp_path) == (".a-1.json", ".a-young.tmp", ".b-1.tmp", "a-1.tmp")
