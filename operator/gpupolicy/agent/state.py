"""What the node's agent knows now: shared by the reconcile loop, the claims handler and the health service.

Everything here lives on one event loop. The rules of the shared parts:

- `inventory`, `devices`, `health`, `gpus` are written by the reconcile loop, `claims` by the claims handler.
- `devices` holds a name exactly while the thing that it names stands on the hardware and may be claimed or is still
  held: a device that was withdrawn from the slices stays until just before its instance is destroyed, and is
  removed under the card's lock. So a handler that holds the lock and finds the name may prepare the device.
- Whoever changes a card or prepares a device on it holds that card's lock. Locks of several cards are taken in the
  order of their UUIDs; `hold` does that. No lock is held across an API request other than the one that decides it.
- Ledger first: `claims` and `gpus` are mirrors of the ledger, updated after the write succeeded.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final, Protocol

from gpupolicy.api import names
from gpupolicy.core import records
from gpupolicy.core.inventory import Health, Inventory
from gpupolicy.core.records import ClaimRecord, DeviceRecord, GpuRecord, InstanceKey


class Ledger(Protocol):
    """The part of `adapters.ledger.Ledger` that the state stands on."""

    async def write(self, kind: str, key: str, data: Mapping[str, Any]) -> object:
        """Write one record, replacing an earlier one as a whole."""
        ...

    async def remove(self, kind: str, key: str) -> bool:
        """Remove one record; False when there was none."""
        ...


CLAIM_KIND: Final = "claim"
GPU_KIND: Final = "gpu"
"""Kinds of the ledger; `LEDGER_KINDS` is what it is opened with."""
LEDGER_KINDS: Final = (CLAIM_KIND, GPU_KIND)
VOLATILE_KINDS: Final = (CLAIM_KIND,)
"""What a claim holds ends with the boot: containers, CDI files, instances cut for it. So its record may end with it too,
and need not wait for the disk; prepare would wait twice, and unprepare once."""


RELEASE_SECONDS: Final = 0.25
"""How soon the reconcile loop looks at what a claim gave back. Not at once: pods end in crowds, and one look at all cards
for each of them would make the others wait."""


class Wakeup:
    """A signal that coalesces: any number of `set` before a `wait` wake it once."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self._later: asyncio.TimerHandle | None = None

    def set(self) -> None:
        """Wake whoever waits, or the next one who will."""
        if self._later is not None:
            self._later.cancel()
            self._later = None
        self._event.set()

    def set_within(self, seconds: float) -> None:
        """Wake after that time, unless something wakes earlier; a call while one is due changes nothing."""
        if self._later is None and not self._event.is_set():
            self._later = asyncio.get_running_loop().call_later(seconds, self.set)

    async def wait(self, timeout_seconds: float | None = None) -> bool:
        """Wait for a signal and consume it; False when the time was up first."""
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._event.wait()
        except TimeoutError:
            return False
        self._event.clear()
        return True


class NodeState:
    """The node in memory; see the module for who writes what.

    Attributes:
        node: name of the node.
        pool: name of its pool.
        inventory: the last observation, with ownership and claims filled in.
        devices: devices that may be prepared, by name.
        health: health of each device in `devices`, with a message when it is not healthy.
        claims: claim records by claim UID.
        gpus: card records by card UUID.
        loaded: set once the first observation is in and `devices` can be relied on. Prepare waits for it.
        reconcile: set by anyone to have the reconcile loop run soon.
        changed: notified whenever `devices`, `health` or `claims` changed; for those who wait for a device to be
            free, and for the health stream.
    """

    def __init__(self, node: str, ledger: Ledger) -> None:
        self.node = node
        self.pool = names.pool_name(node)
        self.inventory = Inventory(node=node)
        self.devices: dict[str, DeviceRecord] = {}
        self.health: dict[str, tuple[Health, str]] = {}
        self.claims: dict[str, ClaimRecord] = {}
        self.gpus: dict[str, GpuRecord] = {}
        self.loaded = asyncio.Event()
        self.reconcile = Wakeup()
        self.changed = asyncio.Condition()
        self._ledger = ledger
        self._locks: dict[str, asyncio.Lock] = {}

    @asynccontextmanager
    async def hold(self, gpu_uuids: Iterable[str]) -> AsyncIterator[None]:
        """Hold the locks of these cards, taken in the order of their UUIDs."""
        async with AsyncExitStack() as stack:
            for uuid in sorted(set(gpu_uuids)):
                await stack.enter_async_context(self._locks.setdefault(uuid, asyncio.Lock()))
            yield

    def is_held(self, gpu_uuid: str) -> bool:
        """Return whether somebody holds the lock of a card now."""
        return gpu_uuid in self._locks and self._locks[gpu_uuid].locked()

    async def save_claim(self, record: ClaimRecord) -> None:
        """Write a claim's record to the ledger, then to `claims`. Only the claims handler calls it.

        Raises:
            files.FileError: nothing was changed.
            DamagedRecordError: a file stands there that is no record of ours; nothing was changed.
        """
        await self._ledger.write(CLAIM_KIND, record.uid, records.encode_claim(record))
        self.claims[record.uid] = record
        await self.announce()

    async def drop_claim(self, uid: str) -> None:
        """Remove a claim's record and have the reconcile loop look at what became free.

        Raises:
            files.FileError: the record is still there.
            DamagedRecordError: a file stands there that is no record of ours.
        """
        await self._ledger.remove(CLAIM_KIND, uid)
        self.claims.pop(uid, None)
        self.reconcile.set_within(RELEASE_SECONDS)
        await self.announce()

    async def save_gpu(self, record: GpuRecord) -> None:
        """Write a card's record to the ledger, then to `gpus`. The caller holds the card's lock.

        Raises:
            files.FileError: nothing was changed.
            DamagedRecordError: a file stands there that is no record of ours; nothing was changed.
        """
        await self._ledger.write(GPU_KIND, record.gpu_uuid, records.encode_gpu(record))
        self.gpus[record.gpu_uuid] = record

    async def announce(self) -> None:
        """Wake everyone who waits on `changed`."""
        async with self.changed:
            self.changed.notify_all()

    def holders(self, gpu_uuid: str, instance: InstanceKey | None = None) -> tuple[ClaimRecord, ...]:
        """Return the claims that hold a whole card, or with `instance` that instance; sorted by UID."""
        return tuple(
            claim
            for _, claim in sorted(self.claims.items())
            if any(
                held.device.gpu_uuid == gpu_uuid and held.device.instance == instance
                for held in claim.devices
            )
        )
