"""The node's cards through NVML, for asyncio: observe them all, change one.

One `Nvml` per process. Observing never fails as a whole because of one card: a card that does not answer is reported
with what was last known of it, unhealthy or unknown, and nobody waits for it longer than a call's deadline. A card
that was seen once and is gone stays in the inventory as unhealthy until another card sits at its PCI address.

What XIDs say of a card is decided in `core.xids`; here they are heard and remembered, and it is noticed when a card was
reset (within a session its handle changes then) or the driver was loaded anew.
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, TypeVar

import pynvml

from gpupolicy.adapters.nvml import events, instances
from gpupolicy.adapters.nvml.errors import NO_CODE, Fault, NvmlError, fault_of
from gpupolicy.adapters.nvml.facts import CardFacts, read_facts
from gpupolicy.adapters.nvml.instances import Mode
from gpupolicy.adapters.nvml.lanes import Lanes
from gpupolicy.adapters.nvml.library import Library
from gpupolicy.core import xids
from gpupolicy.core.inventory import Gpu, Health, Instance, MigProfile, MigState, Placement
from gpupolicy.core.xids import Xid

_log = logging.getLogger(__name__)

_T = TypeVar("_T")

CALL_SECONDS: Final = 30.0
"""How long one NVML call may take. Under load some take ten seconds on a healthy machine."""
PATIENCE_SECONDS: Final = 3.0
"""How long an observation waits for a card before it goes on with what was last known."""
_DRIVER_LANE: Final = "driver"
_DRIVER_AWAY: Final = frozenset({9, 18})
"""Codes after which the driver that comes back is a newly loaded one: not loaded, or of another release."""
_RECOVERY_FIELD: Final = pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION
_COUNTING: Final = -1
"""Key of the task that counts the cards; those of cards are their indices."""


@dataclass(frozen=True, slots=True)
class Observation:
    """All cards, as far as they could be seen.

    `available` is False while NVML itself does not work; then `message` says why and the cards are those of before.
    `read_at` tells on the monotonic clock when the reading of each card began that is reported here, `xids` for which XID a
    card counts as sick.
    """

    available: bool
    gpus: tuple[Gpu, ...] = ()
    driver_version: str = ""
    cuda_version: str = ""
    message: str = ""
    read_at: Mapping[str, float] = field(default_factory=dict)
    xids: Mapping[str, Xid] = field(default_factory=dict)


@dataclass(slots=True)
class _Card:
    """What is kept of a card between observations."""

    uuid: str
    index: int
    handle: Any
    facts: CardFacts | None = None
    compute_profiles: instances.ComputeProfiles | None = None
    last: Gpu | None = None
    read_at: float = -math.inf
    session: int = 0
    """In which session the handle was given."""
    was_reset: bool = False
    """Whether the card was reset since this was last looked at."""
    recovery: int | None = None
    """What the driver says has to be done to the card; None where it says nothing."""
    tells_recovery: bool = True


class Nvml:
    """NVML of this node.

    Args:
        library_path: the library to load; None leaves it to the loader.
        sysfs: root of sysfs.
        call_seconds: deadline of one call.
        heard: called, on the event loop, after an XID or a change of availability was noticed.
    """

    def __init__(
        self,
        library_path: Path | None = None,
        *,
        sysfs: Path = Path("/sys"),
        call_seconds: float = CALL_SECONDS,
        heard: Callable[[], None] = lambda: None,
    ) -> None:
        self._library = Library(library_path)
        self._sysfs = sysfs
        self._lanes = Lanes(call_seconds=call_seconds)
        self.heard = heard
        self._started = False
        self._sessions = 0
        self._versions = ("", "")
        self._cards: dict[str, _Card] = {}
        self._by_index: dict[int, str] = {}
        """UUID by index, of the cards that have said which they are."""
        self._count_before = 0
        self._generation = 0
        self._tasks: dict[int, asyncio.Task[Any]] = {}
        self._listener: events.Listener | None = None
        self._listening: frozenset[str] = frozenset()
        self._xids: dict[str, Xid] = {}

    def remember(self, gpu_uuid: str, xid: Xid) -> None:
        """Take up an XID of which an earlier process of this boot has heard."""
        self._xids[gpu_uuid] = xid

    async def observe(
        self, *, skip: frozenset[str] = frozenset(), patience_seconds: float = PATIENCE_SECONDS
    ) -> Observation:
        """Read every card but those to `skip`, which are reported as they were. Never raises for what NVML does.

        A card that has not answered in time is reported as it was; its answer is kept for the next observation, and
        `heard` is called when it is there.
        """
        counting = self._task(_COUNTING, self._counted)
        await asyncio.wait([counting], timeout=patience_seconds)
        if not counting.done():
            return self._unavailable("NVML does not answer")
        del self._tasks[_COUNTING]
        count: int | NvmlError = counting.result()
        if isinstance(count, NvmlError):
            return self._unavailable(str(count))
        if count != self._count_before:
            # A card came or went, so indices may have moved; lanes and identities follow the UUID from now on.
            self._by_index, self._generation = {}, self._generation + 1
            self._count_before = count
        indices = [index for index in range(count) if self._by_index.get(index) not in skip]
        readings = {index: self._task(index, self._observer(index)) for index in indices}
        if readings:
            await asyncio.wait(readings.values(), timeout=patience_seconds)
        results = [self._answer(index, readings.get(index)) for index in range(count)]
        seen = {gpu.uuid: gpu for gpu in results if isinstance(gpu, Gpu)}
        problems = [problem for problem in results if isinstance(problem, str)]
        gpus = (*seen.values(), *self._missing(seen, complete=not problems))
        await self._listen()
        return Observation(
            available=True,
            gpus=_sorted(gpus),
            driver_version=self._versions[0],
            cuda_version=self._versions[1],
            message="; ".join(problems),
            read_at={uuid: card.read_at for uuid, card in self._cards.items()},
            xids=dict(self._xids),
        )

    async def read(self, gpu_uuid: str) -> Gpu:
        """Read one card that was observed before.

        Raises:
            NvmlError: it cannot be read, or its slot holds another card now (CHANGED).
        """
        return self._judged(await self._on_card(gpu_uuid, self._read))

    async def set_mig_mode(self, gpu_uuid: str, *, enabled: bool) -> Mode:
        """Set the MIG mode; see `instances.set_mode`."""
        return await self._on_card(
            gpu_uuid, lambda card: instances.set_mode(self._library, card.handle, enabled=enabled)
        )

    async def create_instance(self, gpu_uuid: str, profile_id: int, placement: Placement) -> Instance:
        """Create an instance; see `instances.create`."""
        return await self._on_card(
            gpu_uuid,
            lambda card: instances.create(
                self._library, card.handle, _profile(card, profile_id), placement, _compute_profiles(card)
            ),
        )

    async def destroy_instance(
        self, gpu_uuid: str, profile_id: int, placement: Placement, *, uuid: str = ""
    ) -> bool:
        """Destroy an instance; see `instances.destroy`."""
        return await self._on_card(
            gpu_uuid,
            lambda card: instances.destroy(
                self._library,
                card.handle,
                _profile(card, profile_id),
                placement,
                _compute_profiles(card),
                uuid=uuid,
            ),
        )

    def slow(self) -> dict[str, str]:
        """Return what a card has not answered for longer than an observation waits, by UUID, in words."""
        calls = self._lanes.slow(PATIENCE_SECONDS)
        return {
            uuid: f"{call} has not returned since {since:%Y-%m-%dT%H:%M:%SZ}"
            for uuid, (call, since) in calls.items()
            if uuid in self._cards
        }

    async def close(self) -> None:
        """Stop listening, shut NVML down and let the threads go. A hung call is left to the end of the process."""
        for task in self._tasks.values():
            task.cancel()
        if self._listener is not None:
            await self._listener.stop()
        if self._started and not self._lanes.busy:
            self._started = False
            await self._lanes.run(_DRIVER_LANE, self._library.stop)
        self._lanes.close()

    def _task(self, key: int, work: Callable[[], Coroutine[Any, Any, Any]]) -> asyncio.Task[Any]:
        """Return the task of this key that is under way, or begin it."""
        if key not in self._tasks:
            self._tasks[key] = asyncio.create_task(work())
        return self._tasks[key]

    def _answer(self, index: int, reading: asyncio.Task[Gpu | str] | None) -> Gpu | str:
        """Return the answer of a card, or what was last known of one that is skipped or has not answered."""
        if reading is not None:
            if reading.done():
                del self._tasks[index]
                return self._latest(reading.result())
            reading.add_done_callback(lambda _: self.heard())
        card = self._cards.get(self._by_index.get(index, ""))
        if card is None or card.last is None:
            return f"card {index} has not answered yet"
        return self._judged(card.last)

    def _latest(self, answer: Gpu | str) -> Gpu | str:
        """Return an answer, or what was read since: it may have been given to an observation that did not wait."""
        if isinstance(answer, Gpu) and answer.health is Health.HEALTHY:
            card = self._cards.get(answer.uuid)
            return self._judged(card.last) if card is not None and card.last is not None else answer
        return answer

    def _unavailable(self, message: str) -> Observation:
        return Observation(
            available=False,
            gpus=self._last_known(f"NVML: {message}"),
            driver_version=self._versions[0],
            cuda_version=self._versions[1],
            message=message,
            # Nothing newer can be had.
            read_at=dict.fromkeys(self._cards, math.inf),
            xids=dict(self._xids),
        )

    async def _counted(self) -> int | NvmlError:
        try:
            return await self._lanes.run(_DRIVER_LANE, self._count)
        except NvmlError as error:
            await self._restart_if_gone(error)
            return error

    def _observer(self, index: int) -> Callable[[], Coroutine[Any, Any, Gpu | str]]:
        return lambda: self._observe_index(index)

    def _count(self) -> int:
        """Return how many cards there are, starting NVML where it is not started. Runs on the driver's lane."""
        if not self._started:
            self._library.start()
            self._started = True
            self._sessions += 1
            self._versions = self._read_versions()
        return int(self._library.call("nvmlDeviceGetCount"))

    def _read_versions(self) -> tuple[str, str]:
        driver = self._library.optional("nvmlSystemGetDriverVersion")
        cuda = self._library.optional("nvmlSystemGetCudaDriverVersion")
        return (
            "" if isinstance(driver, NvmlError) else str(driver),
            "" if isinstance(cuda, NvmlError) else f"{int(cuda) // 1000}.{int(cuda) % 1000 // 10}",
        )

    async def _restart_if_gone(self, error: NvmlError) -> None:
        """Forget a session that the driver ended, so that the next observation starts another."""
        if error.code in _DRIVER_AWAY:
            self._xids.clear()
        if not self._started or error.fault is not Fault.UNAVAILABLE:
            return
        self._started = False
        self._by_index = {}
        for card in self._cards.values():
            # The driver that comes back may be another release, with other names and profiles.
            card.facts, card.compute_profiles = None, None
        if self._listener is not None:
            await self._listener.stop()
            self._listener, self._listening = None, frozenset()

    async def _observe_index(self, index: int) -> Gpu | str:
        """Read the card at an index: a card, or what is wrong with one that nothing is known of."""
        known, generation, began = self._by_index.get(index), self._generation, time.monotonic()
        lane = known or f"index {index}"
        try:
            card = await self._lanes.run(lane, lambda: self._identify(index))
        except NvmlError as error:
            if known is None or known not in self._cards:
                return f"card {index}: {error}"
            self._cards[known].read_at = began
            return _sick(self._cards[known], error)
        if generation == self._generation:
            self._by_index[index] = card.uuid
        if card.was_reset:
            self._note_reset(card)
        try:
            gpu = await self._lanes.run(card.uuid, lambda: self._read(card))
        except NvmlError as error:
            card.read_at = began
            return _sick(card, error)
        return self._judged(gpu)

    def _identify(self, index: int) -> _Card:
        handle = self._library.call("nvmlDeviceGetHandleByIndex", index)
        uuid = str(self._library.call("nvmlDeviceGetUUID", handle))
        card = self._cards.setdefault(uuid, _Card(uuid, index, handle, session=self._sessions))
        if card.session == self._sessions and events.address(card.handle) != events.address(handle):
            card.was_reset = True
        card.index, card.handle, card.session = index, handle, self._sessions
        return card

    def _note_reset(self, card: _Card) -> None:
        """Forget what a reset has put an end to; the listener holds a handle of before."""
        _log.info("card %d (%s) was reset", card.index, card.uuid)
        self._xids.pop(card.uuid, None)
        card.was_reset, card.recovery, card.facts, card.compute_profiles = False, None, None, None
        self._listening = frozenset()

    def _recovery(self, card: _Card) -> int | None:
        """Return what the driver says has to be done to a card; older drivers do not know the question."""
        if not card.tells_recovery:
            return None
        answer = self._library.optional("nvmlDeviceGetFieldValues", card.handle, [_RECOVERY_FIELD])
        code = answer.code if isinstance(answer, NvmlError) else int(answer[0].nvmlReturn)
        if code != 0 or isinstance(answer, NvmlError):
            card.tells_recovery = fault_of(code) is not Fault.NOT_SUPPORTED
            return None
        return int(answer[0].value.uiVal)

    def _read(self, card: _Card) -> Gpu:
        """Read one card. Runs on its lane.

        Raises:
            NvmlError: something that a plan would rest on cannot be told.
        """
        read_at = time.monotonic()
        if str(self._library.call("nvmlDeviceGetUUID", card.handle)) != card.uuid:
            raise NvmlError(
                "nvmlDeviceGetUUID", NO_CODE, "another card answers in its place", fault=Fault.CHANGED
            )
        mode = instances.read_mode(self._library, card.handle)
        if card.facts is not None and card.facts.minor not in (None, self._minor(card)):
            # The card left the bus and came back between two looks; its node may be another card's by now.
            card.facts = None
        if card.facts is not None and card.facts.mig_capable is not (mode is not None):
            if mode is None:
                text = "the driver says that the card has no MIG, and said before that it has"
                raise NvmlError("nvmlDeviceGetMigMode", NO_CODE, text, fault=Fault.FAILED)
            # Its profiles were not asked for.
            card.facts = None
        if card.facts is None or not card.facts.complete:
            card.facts = read_facts(
                self._library, card.handle, card.uuid, sysfs=self._sysfs, mig_capable=mode is not None
            )
        if mode is not None and mode.enabled and card.facts.profiles_gap is not None:
            raise card.facts.profiles_gap
        standing = (
            instances.read_instances(self._library, card.handle, card.facts.profiles, _compute_profiles(card))
            if mode is not None and mode.enabled
            else ()
        )
        processes = instances.read_processes(self._library, card.handle)
        card.recovery = self._recovery(card)
        card.last, card.read_at = _gpu(card, mode, standing, processes), read_at
        return card.last

    def _minor(self, card: _Card) -> int | None:
        """Return the number of the card's device node; what is known of it where the card does not say."""
        answer = self._library.optional("nvmlDeviceGetMinorNumber", card.handle)
        known = card.facts.minor if card.facts else None
        return known if isinstance(answer, NvmlError) else int(answer)

    async def _on_card(self, gpu_uuid: str, work: Callable[[_Card], _T]) -> _T:
        card = self._cards.get(gpu_uuid)
        if card is None:
            raise NvmlError("find card", NO_CODE, f"{gpu_uuid} has not been seen", fault=Fault.NOT_FOUND)
        return await self._lanes.run(gpu_uuid, lambda: work(card))

    def _missing(self, seen: dict[str, Gpu], *, complete: bool) -> list[Gpu]:
        """Return the cards that were there once and are not now; a slot that holds another card is no loss."""
        taken = {gpu.pci_bus_id for gpu in seen.values() if gpu.pci_bus_id}
        missing = []
        for uuid, card in list(self._cards.items()):
            if uuid in seen:
                continue
            if card.last is None or card.last.pci_bus_id in taken:
                del self._cards[uuid]
                self._xids.pop(uuid, None)
                continue
            # It may come back in another slot, or with another device node.
            card.facts = None
            # While a card does not say which it is, it may be this one.
            text = "the driver no longer lists it" if complete else "a card does not say which it is"
            fault = Fault.LOST if complete else Fault.FAILED
            missing.append(_sick(card, NvmlError("list cards", NO_CODE, text, fault=fault)))
        return missing

    def _last_known(self, message: str) -> tuple[Gpu, ...]:
        gpus = (card.last for card in self._cards.values() if card.last is not None)
        return _sorted(replace(gpu, health=Health.UNKNOWN, health_message=message) for gpu in gpus)

    def _judged(self, gpu: Gpu) -> Gpu:
        """Return the card with the health that its XIDs and its driver leave it."""
        card = self._cards.get(gpu.uuid)
        recovery = card.recovery if card is not None else None
        xid = xids.standing(self._xids.get(gpu.uuid), recovery, datetime.now(UTC))
        if xid is None:
            self._xids.pop(gpu.uuid, None)
        text = xids.sickness(xid, recovery)
        return replace(gpu, health=Health.UNHEALTHY, health_message=text) if text else gpu

    async def _listen(self) -> None:
        """Have the listener hear exactly the cards that are there."""
        wanted = frozenset(self._by_index.values())
        if wanted == self._listening and self._listener is not None:
            return
        if self._listener is not None:
            await self._listener.stop()
        self._listening = wanted
        handles = {uuid: self._cards[uuid].handle for uuid in sorted(wanted) if uuid in self._cards}
        self._listener = events.Listener(self._library, handles, self._hear)
        self._listener.start()

    def _hear(self, event: events.Xid) -> None:
        before = self._xids.get(event.gpu_uuid)
        after = xids.heard(before, event.number, datetime.now(UTC))
        if after is None or after == before:
            return
        self._xids[event.gpu_uuid] = after
        if (card := self._cards.get(event.gpu_uuid)) is not None:
            # What the driver said before it happened says nothing about it.
            card.recovery = None
        self.heard()


def _sorted(gpus: Iterable[Gpu]) -> tuple[Gpu, ...]:
    return tuple(sorted(gpus, key=lambda g: (g.pci_bus_id, g.index, g.uuid)))


def _profile(card: _Card, profile_id: int) -> MigProfile:
    offered = card.facts.profiles if card.facts else ()
    for profile in offered:
        if profile.id == profile_id:
            return profile
    raise NvmlError(
        "find profile", NO_CODE, f"the card offers no profile of id {profile_id}", fault=Fault.INVALID
    )


def _compute_profiles(card: _Card) -> instances.ComputeProfiles:
    if card.compute_profiles is None:
        card.compute_profiles = {}
    return card.compute_profiles


def _gpu(
    card: _Card,
    mode: Mode | None,
    standing: tuple[Instance, ...],
    processes: dict[int | None, tuple[Any, ...]],
) -> Gpu:
    known = card.facts
    if known is None:
        raise AssertionError("facts are read before the card is put together")
    pending = None if mode is None or mode.pending_enabled is mode.enabled else mode.pending_enabled
    ids = {instance.gpu_instance_id for instance in standing}
    # A process of an instance that has just gone holds the card for a moment longer.
    whole = [p for where, listed in processes.items() if where not in ids for p in listed]
    return Gpu(
        uuid=card.uuid,
        index=card.index,
        minor=known.minor,
        pci_bus_id=known.pci_bus_id,
        product_name=known.product_name,
        architecture=known.architecture,
        brand=known.brand,
        memory_bytes=known.memory_bytes,
        compute_capability=known.compute_capability,
        numa_node=known.numa_node,
        pcie_root=known.pcie_root,
        serial=known.serial,
        mig=MigState(
            capable=mode is not None,
            enabled=mode is not None and mode.enabled,
            pending_enabled=pending,
            mode_needs_reset=known.mode_needs_reset,
            profiles=known.profiles,
        ),
        instances=tuple(
            replace(instance, processes=processes.get(instance.gpu_instance_id, ())) for instance in standing
        ),
        processes=tuple(whole),
    )


def _sick(card: _Card, error: NvmlError) -> Gpu:
    """Return what is last known of a card that does not answer."""
    health = Health.UNHEALTHY if error.fault in (Fault.LOST, Fault.CHANGED) else Health.UNKNOWN
    last = card.last or Gpu(uuid=card.uuid, index=card.index)
    return replace(last, health=health, health_message=str(error))
