"""The agent's memory on disk: one small file per record, which a crash at any point leaves whole.

Theory of operation. A record is `<root>/<kind>/<key>.json` (`<root>/<kind>/<boot id>/<key>.json` where the kind is
volatile) and holds an envelope:

    {"version": 1, "kind": "claims", "key": "<uid>", "bootID": "...", "checksum": "sha256:...", "data": {...}}

- A write is a temporary file, fsync, rename: whoever looks, at any time and after any crash, sees the record
  before the write or the record after it.
- One file per record, so writers of different records share nothing, and one damaged file is one lost record.
- The checksum covers all other fields in canonical JSON, so it does not depend on the layout of the file or on a
  schema; the key is in it, so a copied or renamed file is noticed.
- The ledger owns the envelope; what `data` means, and what its version means, is the caller's.
- A file that the ledger does not understand (torn, altered, newer, foreign) stays as it is. It is reported, and
  a write or a removal of that key is refused, until the caller decides to `set_aside` the file: it is then moved,
  byte for byte, to `<root>/aside/` and reported from there.
- `bootID` tells records of this boot from older ones: GPU instances and CDI files do not survive a reboot.
- A kind whose records mean nothing after a reboot is volatile. Its records are not synced to the disk: the kernel
  keeps them for as long as it runs, whatever becomes of the process, and a power cut may leave anything. So they
  live in a directory of their boot, and `load` removes those of other boots unread: no torn file of a boot that
  is over can be mistaken for damage.

All blocking calls run in a few threads of the ledger's own. Writes of one key happen in the order of the calls, and
a call that is cancelled still completes its effect: a half-known state on disk is worse than a late answer.
"""

import asyncio
import contextlib
import hashlib
import itertools
import json
import re
import stat
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, Self, TypeVar

from gpupolicy.adapters import files

BOOT_ID_PATH: Final = Path("/proc/sys/kernel/random/boot_id")
ASIDE: Final = "aside"

_SUFFIX: Final = ".json"
_KEY: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,198}[A-Za-z0-9])?")
_KIND: Final = re.compile(r"[a-z]{1,32}")
_FIELDS: Final = frozenset({"version", "kind", "key", "bootID", "checksum", "data"})
_THREADS: Final = 4

_T = TypeVar("_T")


class Damage(StrEnum):
    """Why a file in the ledger is not a record."""

    TORN = "Torn"
    """It ends early or is empty: a power cut, or a full disk under another program."""

    CORRUPT = "Corrupt"
    """It is complete, but not what its checksum says."""

    NEWER = "NewerVersion"
    """A newer release wrote it; it will be readable again after the upgrade."""

    FOREIGN = "Foreign"
    """It was not written by the ledger, or not under this name."""

    UNREADABLE = "Unreadable"
    """The operating system does not give its content."""

    SET_ASIDE = "SetAside"
    """It was one of the above and was moved here by the caller's decision."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One intact record.

    Attributes:
        kind, key: its directory and file name.
        version: version of `data`, at most the one this ledger was opened with.
        boot_id: the boot in which it was written last.
        data: the caller's payload.
    """

    kind: str
    key: str
    version: int
    boot_id: str
    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class DamagedFile:
    """A file that is not a record. It is where it was, unchanged.

    `kind` and `key` are what its place says; the key is empty where the name is none.
    """

    path: Path
    kind: str
    key: str
    damage: Damage
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """Everything the ledger holds: records, and the files that should be records."""

    records: tuple[Record, ...]
    damaged: tuple[DamagedFile, ...]


class DamagedRecordError(Exception):
    """A write or a removal would have destroyed a file that the ledger does not understand.

    Attributes:
        file: what stands in the way.
    """

    def __init__(self, file: DamagedFile) -> None:
        self.file = file
        super().__init__(
            f"{file.path} is kept, because it is not a record that this release understands"
            f" ({file.damage}: {file.detail}): set it aside, or run the release that wrote it"
        )


class Ledger:
    """The records under one directory.

    Args:
        root: the ledger's directory; its parent must exist when `load` is called.
        kinds: names of the subdirectories.
        volatile: those of the kinds whose records mean nothing after a reboot.
        version: version of the payloads that this process writes and the highest it reads.
        boot_id_path: where the kernel says which boot this is.

    Raises:
        files.FileError: the boot id cannot be read.
        ValueError: a kind is not a plain lower-case word, or is the reserved word `aside`; a volatile one is no kind.
    """

    def __init__(
        self,
        root: Path,
        *,
        kinds: Sequence[str],
        volatile: Sequence[str] = (),
        version: int = 1,
        boot_id_path: Path = BOOT_ID_PATH,
    ) -> None:
        for kind in kinds:
            if not _KIND.fullmatch(kind) or kind == ASIDE:
                raise ValueError(f"ledger kind {kind!r}: want a lower-case word other than {ASIDE!r}")
        if not set(volatile) <= set(kinds):
            raise ValueError(f"volatile kinds {sorted(volatile)}: want some of {', '.join(kinds)}")
        self.root = root
        self.boot_id = _read_boot_id(boot_id_path)
        self._kinds = tuple(kinds)
        self._volatile = frozenset(volatile)
        self._version = version
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="ledger")
        # The last effect queued on each key, so that effects on one key keep the order of the calls.
        self._queued: dict[tuple[str, str], asyncio.Future[None]] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Wait for every effect under way, then stop the threads."""
        await asyncio.gather(*self._queued.values(), return_exceptions=True)
        self._threads.shutdown(wait=False)

    async def load(self) -> Contents:
        """Read everything, after making the directories that a first start lacks.

        Temporary files that a crash left behind are removed, and so are volatile records of other boots. Damage is in
        the answer, never an exception.

        Raises:
            files.FileError: a directory is missing and cannot be made, or cannot be read.
        """
        return await self._in_thread(self._load)

    async def read(self, kind: str, key: str) -> Record | DamagedFile | None:
        """Read one record; None when there is none."""
        path = self.path(kind, key)
        return await self._in_thread(lambda: self._inspect(path, kind, key))

    def path(self, kind: str, key: str) -> Path:
        """Return the file of a record.

        Raises:
            ValueError: the kind is none of the ledger's, or the key is not usable as a file name.
        """
        directory = self._directory(kind)
        if not _KEY.fullmatch(key):
            raise ValueError(
                f"ledger key {key!r}: want up to 200 letters, digits, dots, dashes and underscores"
            )
        return directory / f"{key}{_SUFFIX}"

    async def write(self, kind: str, key: str, data: Mapping[str, Any]) -> Record:
        """Write one record, replacing an earlier one as a whole.

        Args:
            kind: one of the ledger's kinds.
            key: letters, digits, dot, dash and underscore, such as a claim uid or a GPU uuid.
            data: any JSON object.

        Raises:
            DamagedRecordError: the file that stands there is not ours to replace.
            files.FileError: the record is as it was before.
            ValueError: the key is not usable as a file name, or the data is not JSON.
        """
        path = self.path(kind, key)
        envelope = {
            "version": self._version,
            "kind": kind,
            "key": key,
            "bootID": self.boot_id,
            "data": dict(data),
        }
        content = _render(envelope)

        def effect() -> None:
            self._refuse_damaged(path, kind, key)
            files.replace(path, content, mode=0o600, sync=self._sync(kind))

        await self._in_order(kind, key, effect)
        # What a reader will get, not what was passed: JSON turns tuples into lists and keys into text.
        stored = json.loads(content)["data"]
        return Record(kind=kind, key=key, version=self._version, boot_id=self.boot_id, data=stored)

    async def remove(self, kind: str, key: str) -> bool:
        """Remove one record; False when there was none.

        Raises:
            DamagedRecordError: the file that stands there is not ours to remove.
            files.FileError: the record is still there.
            ValueError: the key is not usable as a file name.
        """
        path = self.path(kind, key)
        existed = False

        def effect() -> None:
            nonlocal existed
            self._refuse_damaged(path, kind, key)
            existed = files.remove(path, sync=self._sync(kind))

        await self._in_order(kind, key, effect)
        return existed

    async def set_aside(self, file: DamagedFile) -> DamagedFile:
        """Move a damaged file out of the way, byte for byte, so that its key can be written again.

        Returns:
            The file at its new place; `load` goes on reporting it until an administrator removes it.

        Raises:
            files.FileError: the file is where it was.
        """
        moved = file

        def effect() -> None:
            nonlocal moved
            moved = self._set_aside(file)

        await self._in_order(file.kind, file.key, effect)
        return moved

    def _directory(self, kind: str) -> Path:
        if kind not in self._kinds:
            raise ValueError(f"ledger kind {kind!r}: this ledger has {', '.join(self._kinds)}")
        directory = self.root / kind
        return directory / self.boot_id if kind in self._volatile else directory

    def _sync(self, kind: str) -> files.Sync:
        return files.Sync.NONE if kind in self._volatile else files.Sync.FULL

    async def _in_thread(self, call: Callable[[], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    async def _in_order(self, kind: str, key: str, effect: Callable[[], None]) -> None:
        """Run an effect after all earlier ones on the same key, to its end even when the caller is cancelled."""
        slot = (kind, key)
        earlier = self._queued.get(slot)

        async def run() -> None:
            if earlier is not None:
                await asyncio.wait([earlier])
            await self._in_thread(effect)

        task = asyncio.ensure_future(run())
        self._queued[slot] = task

        def forget(done: asyncio.Future[None]) -> None:
            if self._queued.get(slot) is done:
                del self._queued[slot]
            # Whoever was cancelled no longer asks; without this line asyncio complains that nobody did.
            if not done.cancelled():
                done.exception()

        task.add_done_callback(forget)
        await asyncio.shield(task)

    def _load(self) -> Contents:
        records: list[Record] = []
        damaged: list[DamagedFile] = []
        for kind in self._kinds:
            directory = self._directory(kind)
            _make_directory(self.root / kind)
            if kind in self._volatile:
                self._remove_other_boots(kind)
                _make_directory(directory)
            files.sweep(directory)
            for name in files.names(directory):
                if name.startswith(".") and name.endswith(files.TEMPORARY_SUFFIX):
                    continue
                found = self._inspect_name(kind, name)
                if isinstance(found, Record):
                    records.append(found)
                elif found is not None:
                    damaged.append(found)
        return Contents(records=tuple(records), damaged=(*damaged, *self._list_aside()))

    def _remove_other_boots(self, kind: str) -> None:
        """Remove the records of other boots, and nothing that cannot be one."""
        for name in files.names(self.root / kind):
            directory = self.root / kind / name
            if name == self.boot_id or directory.is_symlink() or not directory.is_dir():
                continue
            for file in files.names(directory):
                if file.endswith((_SUFFIX, files.TEMPORARY_SUFFIX)):
                    # A power cut may have left a name without a file behind it, or a directory in its place.
                    with contextlib.suppress(OSError):
                        (directory / file).unlink()
            with contextlib.suppress(OSError):
                directory.rmdir()

    def _inspect_name(self, kind: str, name: str) -> Record | DamagedFile | None:
        path = self._directory(kind) / name
        key = name.removesuffix(_SUFFIX)
        if key == name or not _KEY.fullmatch(key):
            return _damaged(path, kind, "", Damage.FOREIGN, "its name is not <key>.json")
        return self._inspect(path, kind, key)

    def _inspect(self, path: Path, kind: str, key: str) -> Record | DamagedFile | None:
        """Read and judge one file."""
        try:
            if not stat.S_ISREG(path.lstat().st_mode):
                return _damaged(path, kind, key, Damage.FOREIGN, "it is not a regular file")
            content = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            return _damaged(path, kind, key, Damage.UNREADABLE, error.strerror or str(error))
        return _judge(content, path, kind, key, highest=self._version)

    def _refuse_damaged(self, path: Path, kind: str, key: str) -> None:
        found = self._inspect(path, kind, key)
        if isinstance(found, DamagedFile):
            raise DamagedRecordError(found)

    def _set_aside(self, file: DamagedFile) -> DamagedFile:
        if file.damage is Damage.SET_ASIDE:
            return file
        directory = self.root / ASIDE
        _make_directory(directory)
        for number in itertools.count(1):
            target = directory / f"{file.kind}.{file.path.name}.{number}"
            if target.exists() or target.is_symlink():
                continue
            files.move(file.path, target)
            return _aside(target)
        raise AssertionError("itertools.count ended")

    def _list_aside(self) -> tuple[DamagedFile, ...]:
        directory = self.root / ASIDE
        if not directory.is_dir():
            return ()
        return tuple(_aside(directory / name) for name in files.names(directory))


def _aside(path: Path) -> DamagedFile:
    kind, _, rest = path.name.partition(".")
    key = rest.rpartition(".")[0].removesuffix(_SUFFIX)
    detail = "remove it once it is of no more use"
    return _damaged(path, kind, key if _KEY.fullmatch(key) else "", Damage.SET_ASIDE, detail)


def _damaged(path: Path, kind: str, key: str, damage: Damage, detail: str) -> DamagedFile:
    return DamagedFile(path=path, kind=kind, key=key, damage=damage, detail=detail)


def _canonical(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def _checksum(envelope: Mapping[str, Any]) -> str:
    rest = {name: value for name, value in envelope.items() if name != "checksum"}
    return f"sha256:{hashlib.sha256(_canonical(rest)).hexdigest()}"


def _render(envelope: Mapping[str, Any]) -> bytes:
    try:
        return _canonical({**envelope, "checksum": _checksum(envelope)}) + b"\n"
    except (TypeError, ValueError, RecursionError) as error:
        record = f"{envelope['kind']}/{envelope['key']}"
        raise ValueError(f"ledger record {record}: its data is not a JSON object: {error}") from error


def _judge(content: bytes, path: Path, kind: str, key: str, *, highest: int) -> Record | DamagedFile:
    """Decide what the bytes of a file are: a record, or which kind of damage."""
    if not content.endswith(b"\n"):
        # Every record ends in a newline, and only there, so a missing one is a missing end.
        return _damaged(path, kind, key, Damage.TORN, f"it ends after {len(content)} bytes")
    try:
        envelope = json.loads(content, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        return _damaged(path, kind, key, Damage.CORRUPT, f"it is not JSON: {error}")
    problem = _find_problem(envelope, kind, key, highest=highest)
    if problem is not None:
        return _damaged(path, kind, key, *problem)
    return Record(
        kind=kind, key=key, version=envelope["version"], boot_id=envelope["bootID"], data=envelope["data"]
    )


def _find_problem(envelope: Any, kind: str, key: str, *, highest: int) -> tuple[Damage, str] | None:
    """Say why a JSON document is not the record of this key; None when it is."""
    if not isinstance(envelope, dict) or type(envelope.get("version")) is not int:
        return Damage.FOREIGN, "it has no version and so is no record"
    if envelope["version"] > highest:
        # Before any other check: the envelope itself may have grown.
        return Damage.NEWER, f"its version is {envelope['version']}; this release reads up to {highest}"
    if set(envelope) != _FIELDS or not isinstance(envelope["data"], dict):
        return Damage.FOREIGN, "its fields are not those of a record"
    if envelope["checksum"] != _checksum(envelope):
        return Damage.CORRUPT, "its checksum does not match"
    if (envelope["kind"], envelope["key"]) != (kind, key):
        return Damage.FOREIGN, f"it is a copy of {envelope['kind']}/{envelope['key']}"
    return None


def _refuse_constant(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def _make_directory(directory: Path) -> None:
    try:
        for path in (directory.parent, directory):
            path.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise files.FileError("create directory", directory, error) from error


def _read_boot_id(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError as error:
        raise files.FileError("read the boot id from", path, error) from error
