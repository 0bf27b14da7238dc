"""One holder at a time; the lock goes with its process, however that ends; a removed file fools nobody."""

import asyncio
import errno
import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpupolicy.adapters.files import FileError
from gpupolicy.adapters.nodelock import NodeLock
from tests.paths import ROOT

HOLD = (
    "import sys, time, pathlib; from gpupolicy.adapters.nodelock import NodeLock; "
    "lock = NodeLock(pathlib.Path(sys.argv[1]), 'process of the test'); print(lock.take(), flush=True); time.sleep(600)"
)


def other_process(path: Path) -> subprocess.Popen[bytes]:
    """Start a process that holds the lock, and wait until it does."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT / "operator")},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"True\n"
    return process


def test_one_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "made" / "agent.lock"
    first, second = NodeLock(path, "pod a, process 1"), NodeLock(path, "b")
    assert first.take()
    assert first.take()
    assert not second.take()
    assert (first.other, second.other) == ("", "pod a, process 1")
    first.release()
    assert second.take()
    assert second.other == ""
    assert path.read_text() == "b"
    assert not first.take()
    second.release()
    second.release()
    assert path.exists()


async def test_the_end_of_a_killed_process_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "agent.lock"
    process = other_process(path)
    try:
        lock = NodeLock(path, "ours")
        assert not lock.take()
        assert lock.other == "process of the test"
        waiting = asyncio.create_task(lock.wait())
        await asyncio.sleep(0.5)
        assert not waiting.done()
        process.kill()
        await asyncio.wait_for(waiting, 60)
        assert lock.take()
        lock.release()
        assert NodeLock(path, "next").take()
    finally:
        process.kill()
        process.communicate()


async def test_who_waits_can_be_cancelled_and_holds_nothing(tmp_path: Path) -> None:
    path = tmp_path / "agent.lock"
    first = NodeLock(path, "first")
    assert first.take()
    waiting = asyncio.create_task(NodeLock(path, "second").wait())
    await asyncio.sleep(0.05)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    first.release()
    assert NodeLock(path, "third").take()


def test_a_lock_of_a_file_that_is_gone_is_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Removed between open and lock: the lock of the old file would be ours, and the new one somebody else's."""
    path = tmp_path / "agent.lock"
    real = fcntl.flock

    def removing(descriptor: int, operation: int) -> None:
        path.unlink()
        real(descriptor, operation)

    lock = NodeLock(path, "x")
    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", removing)
        assert not lock.take()
    assert lock.take()


async def test_no_child_inherits_it(tmp_path: Path) -> None:
    """A tool that the agent started and that outlives it must not keep the next agent out."""
    lock = NodeLock(tmp_path / "agent.lock", "x")
    assert lock.take()
    child = subprocess.Popen(["/bin/sleep", "600"], close_fds=False)  # noqa: ASYNC220 - it is the descriptors that matter
    try:
        lock.release()
        # The parent may go on a moment before the kernel closes what the new program does not get.
        await asyncio.wait_for(NodeLock(tmp_path / "agent.lock", "y").wait(), 60)
    finally:
        child.kill()
        child.wait()


def test_a_directory_in_its_place_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "agent.lock").mkdir()
    with pytest.raises(FileError, match=r"agent\.lock: .*NotAFile.*move it away"):
        NodeLock(tmp_path / "agent.lock", "x").take()


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.write_text("kept")
    (tmp_path / "agent.lock").symlink_to(target)
    with pytest.raises(FileError, match=r"agent\.lock"):
        NodeLock(tmp_path / "agent.lock", "x").take()
    assert target.read_text() == "kept"


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.EIO])
def test_a_disk_that_locks_nothing_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", fail)
    with pytest.raises(FileError, match="cannot lock") as raised:
        NodeLock(tmp_path / "agent.lock", "x").take()
    assert raised.value.errno == number
