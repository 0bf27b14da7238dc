"""A ledger write killed at every effect it has, and on a disk that is really full or read-only.

The programs run in processes of their own: one is killed with SIGKILL before (or in the middle of) its n-th system
call for every n, the others mount small file systems in a mount namespace that goes away with them.
"""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest

from gpupolicy.adapters import ledger

OLD = {"state": "intent", "pad": "x" * 900}
NEW = {"state": "done", "pad": "y" * 900}

KILLED = """
import asyncio, os, signal, sys
from pathlib import Path
from gpupolicy.adapters import files, ledger

root, operation, victim, half = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4] == "half"
calls = 0

def armed(name):
    real = getattr(os, name)
    def call(*args, **kwargs):
        global calls
        calls += 1
        if calls == victim:
            if name == "write" and half:
                real(args[0], bytes(args[1][: len(args[1]) // 2]))
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*args, **kwargs)
    setattr(os, name, call)

async def main():
    async with ledger.Ledger(root, kinds=["claims"]) as book:
        for name in ("open", "write", "fsync", "close", "replace", "unlink", "rename"):
            armed(name)
        if operation == "remove":
            await book.remove("claims", "a")
        else:
            await book.write("claims", "a", {"state": "done", "pad": "y" * 900})
asyncio.run(main())
os._exit(0)
"""


def run_killed(root: Path, operation: str, victim: int, half: str) -> int:
    """Run one operation and kill it before its victim-th call; return the exit status."""
    path = str(Path(ledger.__file__).parents[2])
    command = [sys.executable, "-c", KILLED, str(root), operation, str(victim), half]
    return subprocess.run(command, env={"PYTHONPATH": path}, check=False, timeout=240).returncode


def load(root: Path) -> ledger.Contents:
    async def read() -> ledger.Contents:
        async with ledger.Ledger(root, kinds=["claims"]) as book:
            return await book.load()

    return asyncio.run(read())


def prepare(root: Path, *, existing: bool) -> None:
    async def write() -> None:
        async with ledger.Ledger(root, kinds=["claims"]) as book:
            await book.load()
            if existing:
                await book.write("claims", "a", OLD)

    asyncio.run(write())


@pytest.mark.parametrize("half", ["before", "half"])
@pytest.mark.parametrize(
    ("operation", "existing"),
    [
        pytest.param("write", False, id="first write"),
        pytest.param("write", True, id="replacing write"),
        pytest.param("remove", True, id="removal"),
    ],
)
def test_a_killed_writer_leaves_the_old_record_or_the_new_one(
    tmp_path: Path, operation: str, existing: bool, half: str
) -> None:
    """Whichever system call was the last; and the next start can write again."""
    before = OLD if existing else None
    after = None if operation == "remove" else NEW
    seen = []
    for victim in range(1, 40):
        root = tmp_path / str(victim)
        prepare(root, existing=existing)
        status = run_killed(root, operation, victim, half)
        contents = load(root)
        assert contents.damaged == ()
        state = dict(contents.records[0].data) if contents.records else None
        assert state in (before, after)
        seen.append(state)
        assert run_killed(root, "write", -1, half) == 0
        assert [record.data for record in load(root).records] == [NEW]
        if status == 0:
            break
        assert status == -9
    else:
        pytest.fail("the operation never ran to its end")
    # Once the change is there it stays, and both sides of it were seen.
    assert seen[0] == before
    assert seen[-1] == after
    assert [state == after for state in seen] == sorted(state == after for state in seen)


MOUNTED = """
import asyncio, json, os, subprocess, sys
from pathlib import Path
from gpupolicy.adapters import cdi, files, ledger

where = Path(sys.argv[1])
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(where)], check=True)
answers = {}

async def attempt(name, call):
    try:
        result = call()
        if asyncio.iscoroutine(result):
            await result
        answers[name] = "done"
    except files.FileError as error:
        answers[name] = [error.fault, error.errno, error.remedy]

def spec(uid, size):
    edits = cdi.ContainerEdits(env=("A=" + "x" * size,))
    return lambda: cdi.write_spec(where, "gpu.example.com/claim", uid, {"a": edits}, cdi.ContainerEdits())

async def main():
    async with ledger.Ledger(where / "ledger", kinds=["claims"]) as book:
        await book.load()
        await book.write("claims", "a", {"n": 1})
        await attempt("full ledger", lambda: book.write("claims", "a", {"n": "x" * 100_000}))
        await attempt("full cdi", spec("1", 100_000))
        await attempt("small write after", lambda: book.write("claims", "b", {"n": 2}))
        subprocess.run(["mount", "-o", "remount,ro", str(where)], check=True)
        await attempt("read-only ledger", lambda: book.write("claims", "a", {"n": 3}))
        await attempt("read-only remove", lambda: book.remove("claims", "a"))
        await attempt("read-only cdi", spec("1", 10))
        contents = await book.load()
        answers["records"] = [[record.key, record.data] for record in contents.records]
        answers["damaged"] = len(contents.damaged)
        answers["files"] = sorted(path.name for path in where.rglob("*") if path.is_file())
asyncio.run(main())
print(json.dumps(answers))
"""


def test_a_full_and_a_read_only_disk_lose_nothing(tmp_path: Path) -> None:
    """Real errors of a real file system: typed, with a remedy, nothing torn, no litter."""
    path = str(Path(ledger.__file__).parents[2])
    command = [
        "unshare",
        "--user",
        "--map-root-user",
        "--mount",
        sys.executable,
        "-c",
        MOUNTED,
        str(tmp_path),
    ]
    done = subprocess.run(
        command,
        env={"PYTHONPATH": path, "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    answers = json.loads(done.stdout)
    full = ["NoSpaceLeft", 28, "free space or inodes on this file system of the node"]
    assert answers["full ledger"] == full
    assert answers["full cdi"] == full
    assert answers["small write after"] == "done"
    for name in ("read-only ledger", "read-only remove", "read-only cdi"):
        assert answers[name][:2] == ["ReadOnlyFileSystem", 30], name
        assert "mount the volume read-write" in answers[name][2]
    assert answers["records"] == [["a", {"n": 1}], ["b", {"n": 2}]]
    assert answers["damaged"] == 0
    assert answers["files"] == ["a.json", "b.json"]
    assert list(tmp_path.iterdir()) == []
