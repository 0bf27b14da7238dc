"""Prepares and unprepares claims: the driver's half of the kubelet plugin.

What is to be done for a claim is decided by `core.claims` (what it asks for) and `core.prepare` (the table of its
life); this module fetches, waits and carries the effects out, under the locks of the cards concerned.

Two things make a prepare wait instead of failing, because the kubelet tries again only after 60 to 90 seconds:

- The device is not there (yet): the agent has just started, or a layout is being restored after a reboot.
- The device is still held by another claim. Usually its pod is ending and the kubelet's unprepare comes in a moment. If
  not, and the API server says that the claim is gone or holds the device no more, it is unprepared here, once no
  process is left on the device.

Both are bounded by the deadline of the kubelet's call; then the claim is refused with what it waited for.
"""

import asyncio
import contextlib
import logging
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

from gpupolicy.adapters import cdi, devicefiles, files, kube, ledger
from gpupolicy.adapters.kubeletplugin import claims as wire
from gpupolicy.agent.state import CLAIM_KIND, NodeState
from gpupolicy.api import names
from gpupolicy.core import claims, prepare, records
from gpupolicy.core.prepare import Effect, Event
from gpupolicy.core.records import ClaimRecord, ClaimState, DeviceRecord, PreparedDevice

_T = TypeVar("_T")

_log = logging.getLogger(__name__)

CALL_SECONDS: Final = 38.0
"""How long one claim may take in all: less than the 45 seconds after which the kubelet hangs up."""

ABSENT_SECONDS: Final = 30.0
"""How long to wait for a device that is not there."""

HOLDER_GRACE_SECONDS: Final = 2.0
"""How long the kubelet gets to unprepare a holder by itself before the API server is asked about it."""

LOOK_AGAIN_SECONDS: Final = 0.5

FETCH_SECONDS: Final = 30.0
"""How long the API server may take for a claim."""

FRESH_SECONDS: Final = 5.0
"""How old a claim's content may be when its effects begin; after a longer wait it is fetched again."""


class ClaimSource(Protocol):
    """The part of `kube.Kube` that is needed here."""

    async def get(
        self,
        resource: kube.Resource,
        name: str,
        namespace: str | None = None,
        *,
        timeout_seconds: float = ...,
    ) -> Mapping[str, Any]:
        """Return an object as it is now."""
        ...


class _RefusedError(Exception):
    """A claim that is not prepared; carries the text for the pod's event."""


class ClaimHandler:
    """Implements `kubeletplugin.claims.ClaimHandler` for this node.

    Args:
        state: the node; its `claims` and the ledger's claim records are written here only.
        source: where claims are fetched.
        device_files: what a container needs for a device.
        cdi_directory: where the runtime looks for CDI specs.
        store: the ledger, for damaged records only; records go through `state`.
        busy: tells whether any process runs on a device now.
        between: called before each effect, with its name. Tests stop the process here.
    """

    def __init__(
        self,
        state: NodeState,
        source: ClaimSource,
        device_files: devicefiles.DeviceFiles,
        cdi_directory: Path,
        *,
        store: ledger.Ledger,
        busy: Callable[[PreparedDevice], Awaitable[bool]],
        between: Callable[[str], None] = lambda _effect: None,
    ) -> None:
        self._state = state
        self._source = source
        self._device_files = device_files
        self._cdi_directory = cdi_directory
        self._store = store
        self._busy = busy
        self._between = between
        self._damaged: dict[str, ledger.DamagedFile] = {}
        self._disk_problem = ""
        # Kept only as long as a call uses it.
        self._turns: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()

    @property
    def disk_problem(self) -> str:
        """Why the last prepare could not write its files; empty once one could. The node is not ready meanwhile."""
        return self._disk_problem

    def _tell_disk(self, problem: str) -> None:
        if problem != self._disk_problem:
            self._disk_problem = problem
            self._state.reconcile.set()

    @property
    def damaged(self) -> Mapping[str, ledger.DamagedFile]:
        """Records of claims that cannot be read, by claim UID. What they hold is pinned and refused to others."""
        return self._damaged

    async def recover(self, contents: ledger.Contents, standing: Mapping[str, DeviceRecord]) -> None:
        """Take up what an earlier process of this node left; called once, before the first plan is made.

        The ledger holds claims of this boot only: containers of earlier ones ended with them, and the kubelet asks again
        for those that it starts. CDI files without a record go. A damaged record stays as it is; the devices that
        its CDI file names are pinned until the kubelet says that the claim is over.

        Args:
            contents: what the ledger holds.
            standing: every device that stands on the node, by name.

        Raises:
            files.FileError: the CDI directory or the ledger cannot be written.
        """
        for record in contents.records:
            if record.kind == CLAIM_KIND:
                self._take_up(record, standing)
        for file in contents.damaged:
            if file.kind == CLAIM_KIND and file.damage is not ledger.Damage.SET_ASIDE:
                self._pin(file, standing)
        await self._mend()

    def _take_up(self, record: ledger.Record, standing: Mapping[str, DeviceRecord]) -> None:
        try:
            self._state.claims[record.key] = records.decode_claim(record.data)
        except ValueError as error:
            # The envelope is whole, so this release wrote it or an older one; the reader is at fault, not the disk.
            path = self._store.path(CLAIM_KIND, record.key)
            _log.error("the record of claim %s has no shape that this release knows: %s", record.key, error)
            file = ledger.DamagedFile(
                path=path, kind=CLAIM_KIND, key=record.key, damage=ledger.Damage.CORRUPT, detail=str(error)
            )
            self._pin(file, standing)

    def _pin(self, file: ledger.DamagedFile, standing: Mapping[str, DeviceRecord]) -> None:
        """Hold the devices of a damaged record, as far as its CDI file tells them."""
        self._damaged[file.key or file.path.name] = file
        if not file.key:
            return
        try:
            spec = cdi.read_spec(cdi.spec_path(self._cdi_directory, names.CDI_KIND, file.key))
        except (cdi.SpecError, files.FileError) as error:
            _log.error(
                "%s cannot be read (%s), and what it held is not known: %s", file.path, file.detail, error
            )
            return
        held = [name.removeprefix(f"{file.key}-") for name in spec.devices]
        self._state.claims[file.key] = ClaimRecord(
            uid=file.key,
            namespace="",
            name=f"unknown, its record {file.path} is damaged",
            state=ClaimState.PREPARE_COMPLETED,
            devices=tuple(
                PreparedDevice(device=standing[name], pool=self._state.pool)
                for name in held
                if name in standing
            ),
        )

    async def _mend(self) -> None:
        """Remove CDI files that belong to no claim, and write those that somebody removed.

        Raises:
            files.FileError: the CDI directory cannot be read or written.
        """
        await asyncio.to_thread(cdi.sweep_specs, self._cdi_directory, names.CDI_KIND)
        for uid in await asyncio.to_thread(cdi.list_specs, self._cdi_directory, names.CDI_KIND):
            if self._is_known(uid):
                continue
            async with self._turn(uid):
                if not self._is_known(uid):
                    await asyncio.to_thread(cdi.remove_spec, self._cdi_directory, names.CDI_KIND, uid)
        await self._restore_specs()

    def _is_known(self, uid: str) -> bool:
        return uid in self._state.claims or uid in self._damaged

    async def prepare(
        self, claims_to_prepare: Sequence[wire.ClaimRef]
    ) -> dict[str, wire.PreparedClaim | wire.ClaimError]:
        """Prepare claims, each on its own: one that waits or fails does not hold up the others."""
        answers = await asyncio.gather(*(self._prepare_or_tell(ref) for ref in claims_to_prepare))
        return {ref.uid: answer for ref, answer in zip(claims_to_prepare, answers, strict=True)}

    async def unprepare(self, claims_to_undo: Sequence[wire.ClaimRef]) -> dict[str, wire.ClaimError | None]:
        """Undo claims; a claim that is not known here is done."""
        answers = await asyncio.gather(*(self._unprepare_or_tell(ref) for ref in claims_to_undo))
        return {ref.uid: answer for ref, answer in zip(claims_to_undo, answers, strict=True)}

    async def sweep(self) -> bool:
        """Unprepare records whose claim the API server no longer knows and that no process uses; mend CDI files.

        For claims that the kubelet will never unprepare, because its own state was lost. Called now and then. One that
        cannot be undone now, whatever the reason, is left for the next time.

        Returns:
            Whether the CDI files are in order now.
        """
        for record in list(self._state.claims.values()):
            if record.uid in self._damaged:
                continue
            try:
                await self._take_back(record)
            except kube.KubeError:
                continue
            except (cdi.SpecError, files.FileError, ledger.DamagedRecordError) as error:
                _log.warning(
                    "claim %s/%s (%s) is gone and was not unprepared: %s",
                    record.namespace,
                    record.name,
                    record.uid,
                    error,
                )
        try:
            await self._mend()
        except files.FileError as error:
            self._tell_disk(str(error))
            return False
        return True

    async def _restore_specs(self) -> None:
        """Write the CDI files of prepared claims that somebody removed.

        Without its file no container of a running pod can be started again, and the kubelet does not prepare a second
        time what it knows to be prepared.

        Raises:
            files.FileError: the CDI directory cannot be read.
        """
        present = await asyncio.to_thread(cdi.list_specs, self._cdi_directory, names.CDI_KIND)
        for uid in self._state.claims.keys() - set(present) - self._damaged.keys():
            async with self._turn(uid):
                record = self._state.claims.get(uid)
                if record is None or record.state is not ClaimState.PREPARE_COMPLETED:
                    continue
                if not all(claims.stands(d, self._state.devices) for d in record.devices):
                    continue
                try:
                    await _to_the_end(self._perform(Effect.WRITE_CDI, record))
                except (cdi.SpecError, devicefiles.DeviceFilesError, files.FileError) as error:
                    _log.warning("the CDI file of claim %s is gone and was not written again: %s", uid, error)
                else:
                    _log.warning("the CDI file of claim %s was gone and is written again", uid)

    @contextlib.asynccontextmanager
    async def _turn(self, uid: str) -> AsyncIterator[None]:
        """Let one call at a time work on a claim: the end of a claim must not overtake its beginning.

        Taken before the locks of cards, and never two at a time.
        """
        async with self._turns.setdefault(uid, asyncio.Lock()):
            yield

    def _has_turn(self, uid: str) -> bool:
        """Return whether some call works on a claim now."""
        turn = self._turns.get(uid)
        return turn is not None and turn.locked()

    async def _prepare_or_tell(self, ref: wire.ClaimRef) -> wire.PreparedClaim | wire.ClaimError:
        try:
            async with asyncio.timeout(CALL_SECONDS), self._turn(ref.uid):
                record = await self._prepare(ref)
        except TimeoutError:
            return _told(
                ref, f"not ready within {CALL_SECONDS:.0f} s: the card is being changed or does not answer"
            )
        except (_RefusedError, kube.KubeError, cdi.SpecError, devicefiles.DeviceFilesError) as error:
            return _told(ref, str(error))
        except files.FileError as error:
            self._tell_disk(str(error))
            return _told(ref, str(error))
        except ledger.DamagedRecordError as error:
            return _told(ref, str(error))
        self._tell_disk("")
        _log.info("claim %s is prepared: %s", ref, ", ".join(d.device.name for d in record.devices))
        return wire.PreparedClaim(
            devices=tuple(
                wire.PreparedDevice(
                    pool=d.pool,
                    device=d.device.name,
                    requests=d.requests,
                    cdi_ids=d.cdi_ids,
                    share_id=d.share_id or None,
                )
                for d in record.devices
            )
        )

    async def _unprepare_or_tell(self, ref: wire.ClaimRef) -> wire.ClaimError | None:
        try:
            async with asyncio.timeout(CALL_SECONDS), self._turn(ref.uid):
                await self._unprepare(ref.uid)
        except TimeoutError:
            return _told(ref, f"not undone within {CALL_SECONDS:.0f} s: the card does not answer")
        except (cdi.SpecError, files.FileError, ledger.DamagedRecordError) as error:
            return _told(ref, str(error))
        _log.info("claim %s is unprepared", ref)
        return None

    async def _prepare(self, ref: wire.ClaimRef) -> ClaimRecord:
        """Return the completed record of a claim; the caller has its turn.

        Raises:
            _RefusedError and the errors of the adapters: as `_prepare_or_tell` handles them.
        """
        loop = asyncio.get_running_loop()
        # Before the first observation nothing is known to exist, and every claim would be refused.
        (fetched, fetched_at), _ = await asyncio.gather(self._fetch(ref), self._state.loaded.wait())
        while True:
            devices = await self._existing(fetched, ref)
            holders = claims.holders(ref.uid, devices, self._state.claims)
            if holders:
                await self._make_free(ref, devices, holders)
            if loop.time() - fetched_at >= FRESH_SECONDS:
                # The claim may have been given back meanwhile, or allocated elsewhere. While the API server is away it
                # was not.
                try:
                    fetched, fetched_at = await self._fetch(ref, timeout_seconds=FRESH_SECONDS)
                except kube.KubeError:
                    fetched_at = loop.time()
                continue
            async with self._state.hold({d.device.gpu_uuid for d in devices}):
                # The world moved while we waited for the locks: a layout change may have come first.
                again = claims.resolve(fetched, ref.uid, self._state.pool, self._state.devices)
                taken = claims.holders(ref.uid, devices, self._state.claims)
                is_fresh = loop.time() - fetched_at < FRESH_SECONDS
                if is_fresh and again == devices and not taken:
                    return await _to_the_end(self._do(ref, devices, claims.reserved_pods(fetched)))

    async def _fetch(
        self, ref: wire.ClaimRef, *, timeout_seconds: float = FETCH_SECONDS
    ) -> tuple[Mapping[str, Any], float]:
        """Return the claim, and when the API server had answered: one that is slow is asked no more often for it."""
        try:
            claim = await self._source.get(
                kube.RESOURCE_CLAIMS, ref.name, ref.namespace, timeout_seconds=timeout_seconds
            )
        except kube.NotFound as error:
            raise _RefusedError("the claim does not exist in the API server") from error
        return claim, asyncio.get_running_loop().time()

    async def _existing(self, claim: Mapping[str, Any], ref: wire.ClaimRef) -> tuple[PreparedDevice, ...]:
        """Return the claim's devices, waiting a while for those that do not exist."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + ABSENT_SECONDS
        while True:
            found = claims.resolve(claim, ref.uid, self._state.pool, self._state.devices)
            if isinstance(found, tuple):
                return found
            if not found.waits or loop.time() >= deadline:
                raise _RefusedError(found.message)
            await self._change()

    async def _make_free(
        self, ref: wire.ClaimRef, devices: tuple[PreparedDevice, ...], holders: tuple[ClaimRecord, ...]
    ) -> None:
        """Wait until no other claim holds the devices; raise when one holds them rightly."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        while holders:
            if loop.time() - began >= HOLDER_GRACE_SECONDS:
                for holder in holders:
                    if holder.uid not in self._damaged:
                        await self._take_back(holder)
            holders = claims.holders(ref.uid, devices, self._state.claims)
            if holders and loop.time() - began >= CALL_SECONDS - 2 * HOLDER_GRACE_SECONDS:
                told = ", ".join(f"{h.namespace}/{h.name}" for h in holders)
                raise _RefusedError(
                    f"its device is still held by claim {told}; it is free when that claim's pod is gone"
                )
            if holders:
                await self._change()

    async def _is_current(self, record: ClaimRecord) -> bool:
        try:
            claim = await self._source.get(kube.RESOURCE_CLAIMS, record.name, record.namespace)
        except kube.NotFound:
            return False
        return claims.is_current(claim, record)

    async def _take_back(self, record: ClaimRecord) -> None:
        """Unprepare a claim if it is gone, unless something still runs on one of its devices or works on it.

        Raises:
            KubeError: the API server does not say whether it is gone.
            SpecError, FileError, DamagedRecordError: it cannot be undone.
        """
        if self._has_turn(record.uid):
            return
        # In its turn, so that nobody prepares it between the look and the deed: it may have been allocated again.
        async with self._turn(record.uid):
            if self._state.claims.get(record.uid) is not record or await self._is_current(record):
                return
            for device in record.devices:
                if await self._busy(device):
                    return
            _log.warning(
                "claim %s/%s (%s) is gone from the API server and was not unprepared by the kubelet; doing it now",
                record.namespace,
                record.name,
                record.uid,
            )
            await self._unprepare(record.uid)

    async def _change(self) -> None:
        """Wait for a change of devices or claims, or for a moment."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LOOK_AGAIN_SECONDS), self._state.changed:
                await self._state.changed.wait()

    async def _do(
        self, ref: wire.ClaimRef, devices: tuple[PreparedDevice, ...], pods: tuple[str, ...]
    ) -> ClaimRecord:
        """Carry a prepare out for these pods; the caller holds the locks."""
        record = self._state.claims.get(ref.uid)
        event = Event.PREPARE if record is None or claims.same_devices(record, devices) else Event.REPLACE
        wanted = ClaimRecord(
            uid=ref.uid,
            namespace=ref.namespace,
            name=ref.name,
            state=ClaimState.PREPARE_STARTED,
            devices=tuple(
                replace(d, cdi_ids=(cdi.qualified_name(names.CDI_KIND, ref.uid, d.device.name),))
                for d in devices
            ),
            pods=pods,
        )
        for effect in prepare.steps(record.state if record else None, event):
            await self._perform(effect, wanted)
        return self._state.claims[ref.uid]

    async def _unprepare(self, uid: str) -> None:
        """Undo a claim; the caller has its turn."""
        record = self._state.claims.get(uid)
        async with self._state.hold(record.gpu_uuids if record else ()):
            await _to_the_end(self._undo(uid, record))

    async def _undo(self, uid: str, record: ClaimRecord | None) -> None:
        if uid in self._damaged:
            # The kubelet vouches that the claim is over, so its record may go out of the way; it is kept for people.
            kept = await self._store.set_aside(self._damaged[uid])
            _log.warning("the damaged record of claim %s was kept as %s", uid, kept.path)
            del self._damaged[uid]
            self._state.claims.pop(uid, None)
            record = None
        blank = ClaimRecord(uid=uid, namespace="", name="", state=ClaimState.UNPREPARING)
        for effect in prepare.steps(record.state if record else None, Event.UNPREPARE):
            await self._perform(effect, record or blank)

    async def _perform(self, effect: Effect, record: ClaimRecord) -> None:
        self._between(effect)
        match effect:
            case Effect.RECORD_STARTED:
                await self._state.save_claim(replace(record, state=ClaimState.PREPARE_STARTED))
            case Effect.RECORD_COMPLETED:
                await self._state.save_claim(replace(record, state=ClaimState.PREPARE_COMPLETED))
            case Effect.RECORD_UNPREPARING:
                held = self._state.claims[record.uid]
                await self._state.save_claim(replace(held, state=ClaimState.UNPREPARING))
            case Effect.REMOVE_RECORD:
                await self._state.drop_claim(record.uid)
            case Effect.WRITE_CDI:
                await asyncio.to_thread(self._write_cdi, record)
            case Effect.REMOVE_CDI:
                await asyncio.to_thread(cdi.remove_spec, self._cdi_directory, names.CDI_KIND, record.uid)
            case Effect.MAKE_READY | Effect.RELEASE:
                # Exclusive cards and static instances stand already. Instances cut on demand are made and removed
                # here, and shares get their settings.
                pass

    def _write_cdi(self, record: ClaimRecord) -> None:
        cdi.write_spec(
            self._cdi_directory,
            names.CDI_KIND,
            record.uid,
            {d.device.name: self._device_files.edits(d.device) for d in record.devices},
            self._device_files.common(),
        )


def _told(ref: wire.ClaimRef, message: str) -> wire.ClaimError:
    _log.warning("claim %s: %s", ref, message)
    return wire.ClaimError(message)


async def _to_the_end(work: Coroutine[Any, Any, _T]) -> _T:
    """Run effects to their end even if the kubelet hangs up: half of them is what a crash leaves, not a deadline.

    The caller holds the card's lock for as long as this takes, also when it is cancelled.
    """
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        # Told to end once more (the deadline of the claim, then that of the call) it waits all the same.
        while not task.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([task])
        raise
