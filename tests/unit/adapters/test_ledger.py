"""The ledger: what was written is read, what is damaged is kept and named, and nobody waits for a stranger."""

import asyncio
import json
import os
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpupolicy.adapters import files, ledger

KINDS = ("claims", "gpus")
DATA = {"devices": ["gpu-0"], "state": "intent", "nested": {"count": 1}}


def make(root: Path, boot: str = "boot-1", version: int = 1) -> ledger.Ledger:
    boot_id_path = root.parent / f"boot_id.{boot}"
    boot_id_path.write_text(f"{boot}\n")
    return ledger.Ledger(root, kinds=KINDS, version=version, boot_id_path=boot_id_path)


@pytest.fixture
async def book(tmp_path: Path) -> AsyncIterator[ledger.Ledger]:
    async with make(tmp_path / "ledger") as opened:
        await opened.load()
        yield opened


def record_path(book: ledger.Ledger, key: str = "a", kind: str = "claims") -> Path:
    return book.root / kind / f"{key}.json"


async def test_a_record_outlives_its_writer(tmp_path: Path) -> None:
    """Written by one process, read by the next one, in a later boot."""
    async with make(tmp_path / "ledger") as first:
        assert await first.load() == ledger.Contents(records=(), damaged=())
        written = await first.write("claims", "a", DATA)
        await first.write("gpus", "GPU-1", {})
    async with make(tmp_path / "ledger", boot="boot-2") as second:
        contents = await second.load()
        assert contents.damaged == ()
        assert contents.records == (written, await second.read("gpus", "GPU-1"))
        assert (written.kind, written.key, written.version, written.boot_id) == ("claims", "a", 1, "boot-1")
        assert written.data == DATA
        assert second.boot_id == "boot-2"
        assert (await second.write("claims", "a", DATA)).boot_id == "boot-2"
        assert await second.remove("claims", "a")
        assert not await second.remove("claims", "a")
        assert await second.read("claims", "a") is None


async def test_the_file_is_what_the_header_says(book: ledger.Ledger) -> None:
    """The format is a promise to the next release."""
    await book.write("claims", "a", {"x": [1, "é"]})
    content = record_path(book).read_bytes()
    assert content == (
        b'{"bootID":"boot-1",'
        b'"checksum":"sha256:6f06d1b7e33a9f8f9a9da6e4604d4f60ca0be7da5373a1d0e0e294cc35be028e",'
        b'"data":{"x":[1,"\\u00e9"]},"key":"a","kind":"claims","version":1}\n'
    )
    assert record_path(book).stat().st_mode & 0o777 == 0o600


async def test_a_reformatted_record_is_still_whole(book: ledger.Ledger) -> None:
    """The checksum is over what is said, not over how it is laid out."""
    written = await book.write("claims", "a", DATA)
    pretty = json.dumps(dict(reversed(json.loads(record_path(book).read_bytes()).items())), indent=2)
    record_path(book).write_text(pretty + "\n")
    assert await book.read("claims", "a") == written


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
payloads = st.dictionaries(st.text(), json_values, max_size=4)


@given(payloads)
def test_any_json_object_comes_back(tmp_path_factory: pytest.TempPathFactory, data: dict[str, Any]) -> None:
    async def scenario() -> None:
        async with make(tmp_path_factory.mktemp("l") / "ledger") as book:
            await book.load()
            written = await book.write("claims", "a", data)
            assert written == await book.read("claims", "a")
            assert written.data == data

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "data",
    [{"x": float("nan")}, {"x": float("inf")}, {"x": object()}, {"x": b"bytes"}, {("a",): 1}, {1: 1, "a": 1}],
    ids=["nan", "infinity", "object", "bytes", "tuple-key", "keys-that-meet"],
)
async def test_what_is_not_json_is_refused(book: ledger.Ledger, data: Any) -> None:
    with pytest.raises(ValueError, match="ledger record claims/a: its data is not a JSON object"):
        await book.write("claims", "a", data)
    assert (await book.load()).records == ()


@pytest.mark.parametrize("key", ["", ".", "..", "../a", "a/b", ".a", "a.", "a b", "a\n", "é", "a" * 201])
async def test_a_key_cannot_leave_its_directory(book: ledger.Ledger, key: str) -> None:
    for call in (book.write("claims", key, {}), book.read("claims", key), book.remove("claims", key)):
        with pytest.raises(ValueError, match="ledger key"):
            await call


@pytest.mark.parametrize("kind", ["pods", "", "aside", "../claims"])
async def test_an_unknown_kind_is_a_bug_of_the_caller(book: ledger.Ledger, kind: str) -> None:
    with pytest.raises(ValueError, match="ledger kind"):
        await book.write(kind, "a", {})


@pytest.mark.parametrize("kind", ["aside", "Claims", "a/b", ""])
def test_kinds_are_plain_words(tmp_path: Path, kind: str) -> None:
    with pytest.raises(ValueError, match="ledger kind"):
        ledger.Ledger(tmp_path, kinds=[kind])


def changed(content: bytes, **fields: Any) -> bytes:
    return json.dumps({**json.loads(content), **fields}).encode() + b"\n"


def rehashed(content: bytes, **fields: Any) -> bytes:
    """Change fields and make the checksum right again, as another writer of the same format would."""
    envelope = {**json.loads(content), **fields}
    return json.dumps({**envelope, "checksum": ledger._checksum(envelope)}).encode() + b"\n"


DAMAGES = [
    pytest.param(lambda _: b"", ledger.Damage.TORN, "0 bytes", id="empty"),
    pytest.param(lambda c: c[:-1], ledger.Damage.TORN, "it ends after", id="last byte missing"),
    pytest.param(lambda c: c[: len(c) // 2], ledger.Damage.TORN, "it ends after", id="half"),
    pytest.param(lambda c: b"\0" * len(c), ledger.Damage.TORN, "it ends after", id="zeroes"),
    pytest.param(
        lambda c: c[: len(c) // 2] + b"\n", ledger.Damage.CORRUPT, "not JSON", id="half and a newline"
    ),
    pytest.param(lambda c: c + c, ledger.Damage.CORRUPT, "not JSON", id="twice"),
    pytest.param(
        lambda c: c.replace(b"intent", b"done!!"), ledger.Damage.CORRUPT, "checksum", id="payload altered"
    ),
    pytest.param(
        lambda c: c.replace(b"boot-1", b"boot-2"), ledger.Damage.CORRUPT, "checksum", id="boot altered"
    ),
    pytest.param(
        lambda c: changed(c, checksum=None), ledger.Damage.CORRUPT, "checksum", id="no checksum value"
    ),
    pytest.param(
        lambda c: changed(c, data={"x": 10**400}), ledger.Damage.CORRUPT, "checksum", id="huge number"
    ),
    pytest.param(lambda c: c.replace(b'"intent"', b"NaN"), ledger.Damage.CORRUPT, "NaN", id="not a number"),
    pytest.param(lambda _: b"[" * 100_000 + b"\n", ledger.Damage.CORRUPT, "not JSON", id="deep"),
    pytest.param(lambda _: b"\xff\xfe\n", ledger.Damage.CORRUPT, "not JSON", id="not text"),
    pytest.param(lambda c: rehashed(c, version=2), ledger.Damage.NEWER, "version is 2", id="newer"),
    pytest.param(
        lambda _: b'{"version": 3, "v3": 1}\n', ledger.Damage.NEWER, "version is 3", id="much newer"
    ),
    pytest.param(lambda c: rehashed(c, key="b"), ledger.Damage.FOREIGN, "copy of claims/b", id="copied"),
    pytest.param(
        lambda c: rehashed(c, kind="gpus"), ledger.Damage.FOREIGN, "copy of gpus/a", id="other kind"
    ),
    pytest.param(lambda c: rehashed(c, extra=1), ledger.Damage.FOREIGN, "fields", id="one more field"),
    pytest.param(lambda c: rehashed(c, data=[]), ledger.Damage.FOREIGN, "fields", id="payload a list"),
    pytest.param(lambda c: rehashed(c, version=True), ledger.Damage.FOREIGN, "no version", id="version true"),
    pytest.param(lambda _: b"{}\n", ledger.Damage.FOREIGN, "no version", id="empty object"),
    pytest.param(lambda _: b"7\n", ledger.Damage.FOREIGN, "no version", id="number"),
    pytest.param(lambda _: b'{"version": "1"}\n', ledger.Damage.FOREIGN, "no version", id="version text"),
]


@pytest.mark.parametrize(("damage", "expected", "detail"), DAMAGES)
async def test_a_damaged_record_is_kept_and_named(
    book: ledger.Ledger, damage: Callable[[bytes], bytes], expected: ledger.Damage, detail: str
) -> None:
    """It stays byte for byte, its neighbours are read, and only the caller can make way for a new record."""
    await book.write("claims", "a", DATA)
    neighbour = await book.write("claims", "b", DATA)
    path = record_path(book)
    content = damage(path.read_bytes())
    path.write_bytes(content)

    contents = await book.load()
    assert contents.records == (neighbour,)
    (file,) = contents.damaged
    assert (file.path, file.kind, file.key, file.damage) == (path, "claims", "a", expected)
    assert detail in file.detail
    assert await book.read("claims", "a") == file

    for call in (book.write("claims", "a", {"new": 1}), book.remove("claims", "a")):
        with pytest.raises(ledger.DamagedRecordError, match="set it aside") as caught:
            await call
        assert caught.value.file == file
    assert path.read_bytes() == content

    moved = await book.set_aside(file)
    assert (moved.kind, moved.key, moved.damage) == ("claims", "a", ledger.Damage.SET_ASIDE)
    assert moved.path.read_bytes() == content
    assert await book.set_aside(moved) == moved
    fresh = await book.write("claims", "a", {"new": 1})
    assert await book.load() == ledger.Contents(records=(fresh, neighbour), damaged=(moved,))


async def test_every_cut_of_a_record_is_damage(book: ledger.Ledger) -> None:
    """However early the bytes end, nobody takes the rest for a record."""
    await book.write("claims", "a", DATA)
    content = record_path(book).read_bytes()
    for length in range(len(content)):
        record_path(book).write_bytes(content[:length])
        found = await book.read("claims", "a")
        assert isinstance(found, ledger.DamagedFile), length
        assert found.damage is ledger.Damage.TORN


@given(st.data())
def test_no_flipped_bit_passes(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Any single changed byte is damage, or changes nothing that is said."""

    async def scenario() -> None:
        async with make(tmp_path_factory.mktemp("l") / "ledger") as book:
            await book.load()
            written = await book.write("claims", "a", DATA)
            content = bytearray(record_path(book).read_bytes())
            at = data.draw(st.integers(0, len(content) - 1))
            content[at] ^= data.draw(st.integers(1, 255))
            record_path(book).write_bytes(content)
            found = await book.read("claims", "a")
            assert isinstance(found, ledger.DamagedFile) or found == written

    asyncio.run(scenario())


async def test_several_damaged_files_of_one_key_are_all_kept(book: ledger.Ledger) -> None:
    for content in (b"one", b"two"):
        record_path(book).write_bytes(content)
        found = await book.read("claims", "a")
        assert isinstance(found, ledger.DamagedFile)
        await book.set_aside(found)
    kept = (await book.load()).damaged
    assert [file.path.read_bytes() for file in kept] == [b"one", b"two"]


async def test_what_is_not_a_file_of_ours_is_reported_and_left(book: ledger.Ledger, tmp_path: Path) -> None:
    """A note of the administrator, a directory, a link to somewhere else: all stay, all are named."""
    secret = tmp_path / "secret"
    secret.write_text("{}\n")
    claims = book.root / "claims"
    (claims / "note.txt").write_text("hello")
    (claims / ".hidden.json").write_text("{}")
    (claims / "dir.json").mkdir()
    (claims / "link.json").symlink_to(secret)
    (claims / "dangling.json").symlink_to(tmp_path / "nowhere")
    contents = await book.load()
    assert contents.records == ()
    assert [(file.path.name, file.key, file.damage) for file in contents.damaged] == [
        (".hidden.json", "", ledger.Damage.FOREIGN),
        ("dangling.json", "dangling", ledger.Damage.FOREIGN),
        ("dir.json", "dir", ledger.Damage.FOREIGN),
        ("link.json", "link", ledger.Damage.FOREIGN),
        ("note.txt", "", ledger.Damage.FOREIGN),
    ]
    with pytest.raises(ledger.DamagedRecordError):
        await book.write("claims", "link", {})
    assert secret.read_text() == "{}\n"
    for file in contents.damaged:
        await book.set_aside(file)
    assert {file.damage for file in (await book.load()).damaged} == {ledger.Damage.SET_ASIDE}
    assert files.names(claims) == ()
    assert secret.read_text() == "{}\n"


async def test_an_unreadable_file_does_not_hide_the_others(
    book: ledger.Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bad block under one record is that record's misfortune only."""
    await book.write("claims", "a", DATA)
    whole = await book.write("claims", "b", DATA)
    real = Path.read_bytes

    def read_bytes(path: Path) -> bytes:
        if path.name == "a.json":
            raise OSError(5, "Input/output error")
        return real(path)

    monkeypatch.setattr(Path, "read_bytes", read_bytes)
    contents = await book.load()
    assert contents.records == (whole,)
    assert [(file.key, file.damage) for file in contents.damaged] == [("a", ledger.Damage.UNREADABLE)]


async def test_an_older_version_is_handed_to_the_caller(tmp_path: Path) -> None:
    """Payloads are the caller's to migrate; a downgrade reads them as newer and keeps them."""
    async with make(tmp_path / "ledger", version=1) as old, make(tmp_path / "ledger", version=2) as new:
        await old.load()
        await old.write("claims", "a", DATA)
        (record,) = (await new.load()).records
        assert record.version == 1
        assert (await new.write("claims", "a", DATA)).version == 2
        (file,) = (await old.load()).damaged
        assert file.damage is ledger.Damage.NEWER


async def test_leftovers_of_a_crash_are_not_damage(book: ledger.Ledger) -> None:
    temporary = book.root / "claims" / ".a.json.1234.tmp"
    temporary.write_text("half")
    assert await book.load() == ledger.Contents(records=(), damaged=())
    assert temporary.exists()


async def test_the_directories_are_made_when_only_they_are_missing(tmp_path: Path) -> None:
    """A volume that is not mounted is not papered over."""
    async with make(tmp_path / "ledger") as book:
        await book.load()
        assert (tmp_path / "ledger" / "claims").is_dir()


async def test_a_missing_volume_is_a_typed_error(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("boot")
    book = ledger.Ledger(tmp_path / "absent" / "ledger", kinds=KINDS, boot_id_path=tmp_path / "x")
    for call in (book.load(), book.write("claims", "a", {})):
        with pytest.raises(files.FileError) as caught:
            await call
        assert caught.value.fault is files.Fault.MISSING
    await book.aclose()


def test_without_a_boot_id_there_is_no_ledger(tmp_path: Path) -> None:
    with pytest.raises(files.FileError, match="boot id"):
        ledger.Ledger(tmp_path, kinds=KINDS, boot_id_path=tmp_path / "none")


class Gate:
    """Holds a thread inside `files.replace` for chosen keys."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *held: str) -> None:
        self.open = threading.Event()
        self.entered: list[str] = []
        real = files.replace

        def replace(path: Path, content: bytes, **kwargs: Any) -> None:
            self.entered.append(path.stem)
            if path.stem in held:
                assert self.open.wait(120)
            real(path, content, **kwargs)

        monkeypatch.setattr(files, "replace", replace)

    async def wait_entered(self) -> None:
        """Wait until a thread is inside."""
        async with asyncio.timeout(60):
            while not self.entered:  # noqa: ASYNC110 - a thread tells it
                await asyncio.sleep(0.005)


async def test_writers_of_different_records_do_not_wait_for_one_another(
    book: ledger.Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch, "slow")
    slow = asyncio.ensure_future(book.write("claims", "slow", {}))
    await book.write("claims", "quick", {})
    await book.write("gpus", "quick", {})
    assert not slow.done()
    gate.open.set()
    await slow


async def test_writes_of_one_record_keep_their_order(
    book: ledger.Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last call wins, however slow the first one is, and a removal is in the queue too."""
    gate = Gate(monkeypatch, "a")
    calls = [asyncio.ensure_future(book.write("claims", "a", {"n": n})) for n in range(5)]
    calls.append(asyncio.ensure_future(book.remove("claims", "a")))
    calls.append(asyncio.ensure_future(book.write("claims", "a", {"n": "last"})))
    await asyncio.sleep(0)
    gate.open.set()
    results = await asyncio.gather(*calls)
    assert results[5] is True
    assert [record.data for record in (await book.load()).records] == [{"n": "last"}]


async def test_a_cancelled_write_still_happens_and_keeps_its_place(
    book: ledger.Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kubelet hung up; the disk must not be left in doubt."""
    gate = Gate(monkeypatch, "a")
    first = asyncio.ensure_future(book.write("claims", "a", {"n": 1}))
    await gate.wait_entered()
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    second = asyncio.ensure_future(book.write("claims", "a", {"n": 2}))
    await asyncio.sleep(0.01)
    assert gate.entered == ["a"]
    gate.open.set()
    await second
    assert gate.entered == ["a", "a"]
    assert [record.data for record in (await book.load()).records] == [{"n": 2}]


async def test_a_failed_write_does_not_block_the_next(book: ledger.Ledger) -> None:
    path = record_path(book)
    path.mkdir()
    failed = asyncio.ensure_future(book.write("claims", "a", {}))
    again = asyncio.ensure_future(book.write("claims", "a", {}))
    assert [type(result) for result in await asyncio.gather(failed, again, return_exceptions=True)] == [
        ledger.DamagedRecordError,
        ledger.DamagedRecordError,
    ]
    path.rmdir()
    await book.write("claims", "a", {})


async def test_closing_waits_for_what_is_under_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with make(tmp_path / "ledger") as book:
        await book.load()
        gate = Gate(monkeypatch, "a")
        write = asyncio.ensure_future(book.write("claims", "a", {}))
        await gate.wait_entered()
        closing = asyncio.ensure_future(book.aclose())
        await asyncio.sleep(0.01)
        assert not closing.done()
        gate.open.set()
        await asyncio.gather(write, closing)
    assert record_path(book).exists()


def make_volatile(root: Path, boot: str = "boot-1") -> ledger.Ledger:
    boot_id_path = root.parent / f"boot_id.{boot}"
    boot_id_path.write_text(f"{boot}\n")
    return ledger.Ledger(root, kinds=KINDS, volatile=["claims"], boot_id_path=boot_id_path)


async def test_volatile_records_end_with_their_boot(tmp_path: Path) -> None:
    """Also torn ones, which are no damage then; records of other kinds stay, and so does what cannot be ours."""
    root = tmp_path / "ledger"
    async with make_volatile(root) as first:
        await first.load()
        await first.write("claims", "a", DATA)
        kept = await first.write("gpus", "GPU-1", DATA)
        (first.path("claims", "torn")).write_bytes(b"")
        (root / "claims/boot-1/.b.json.0.tmp").write_bytes(b"half")
        (root / "claims/theirs").mkdir()
        (root / "claims/theirs/notes.txt").write_text("keep me")
    async with make_volatile(root, "boot-2") as second:
        contents = await second.load()
        assert (contents.records, contents.damaged) == ((kept,), ())
        assert sorted(p.name for p in (root / "claims").iterdir()) == ["boot-2", "theirs"]
        assert (root / "claims/theirs/notes.txt").read_text() == "keep me"


async def test_volatile_records_outlive_their_writer(tmp_path: Path) -> None:
    """Within a boot they are records like any other, damage included."""
    async with make_volatile(tmp_path / "ledger") as first:
        await first.load()
        whole = await first.write("claims", "a", DATA)
        (first.path("claims", "b")).write_bytes(b"")
    async with make_volatile(tmp_path / "ledger") as second:
        contents = await second.load()
        assert contents.records == (whole,)
        assert [(f.key, f.damage) for f in contents.damaged] == [("b", ledger.Damage.TORN)]
        with pytest.raises(ledger.DamagedRecordError):
            await second.write("claims", "b", DATA)


async def test_only_volatile_records_spare_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What outlives a boot is on the disk, directory included, when the call returns."""
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    async with make_volatile(tmp_path / "ledger") as book:
        await book.load()
        await book.write("claims", "a", DATA)
        await book.remove("claims", "a")
        assert synced == []
        await book.write("gpus", "a", DATA)
        assert len(synced) == 2
        await book.remove("gpus", "a")
        assert len(synced) == 3


def test_a_volatile_kind_is_a_kind(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="volatile kinds"):
        ledger.Ledger(tmp_path, kinds=KINDS, volatile=["others"])
