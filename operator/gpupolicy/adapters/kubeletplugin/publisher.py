"""Keeps the ResourceSlices of one driver on one node as the driver wants them, whatever else happens to them.

Theory of operation. One task owns all writes. It sleeps until it is woken: by a new wish of the driver (`publish`), by
a change that it did not make itself (`observe`), by the kubelet's registration (`wake`), or by a slow clock in case a
watch missed something. Awake it lists the live slices, asks `slices.plan` what to do, does it, and compares what the
API server kept with what was sent.

The kubelet deletes a node's slices when it starts, at the same moment at which it registers the plugin again, so
publishing once on registration is not enough; every deletion that is observed is repaired at once. Against a writer
who undoes every repair the pause between repairs doubles, up to half a minute.

A failed write leaves a pool that may be incomplete; it is planned anew from what is live, after a pause that grows.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from gpupolicy.adapters.kubeletplugin import callbacks, slices
from gpupolicy.adapters.kubeletplugin.slices import Pool  # The field `slices` below hides the module.

RESYNC_SECONDS: Final = 300.0

_FIRST_PAUSE_SECONDS: Final = 0.2
_LONGEST_PAUSE_SECONDS: Final = 30.0
_PARALLEL_WRITES: Final = 8

_log = logging.getLogger(__name__)


class SliceStore(Protocol):
    """The API server, as far as slices go. Any exception means: not done, or not known to be done."""

    async def list(self) -> Sequence[slices.Object]:
        """Return the live slices of the driver on the node, read from the API server and not from a cache."""
        ...

    async def create(self, item: slices.Object, *, dry_run: bool = False) -> slices.Object:
        """Create a slice; return it as stored."""
        ...

    async def replace(self, item: slices.Object) -> slices.Object:
        """Replace a slice if it is still the version that the metadata names; return it as stored."""
        ...

    async def delete(self, item: slices.Object) -> None:
        """Delete this very slice (by uid); one that is gone already is fine."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """Where publishing stands.

    Attributes:
        complete: the live slices are what is wanted, the essential fields included.
        generation: of the pool.
        slices: how many there are.
        devices: how many devices are published.
        dropped: fields that the API server did not keep, such as `spec.devices[].taints`.
        problem: why it is not complete; empty while the first attempt is still to come.
        pool: what was brought about last; a newer wish may be on its way.
    """

    complete: bool = False
    generation: int = 0
    slices: int = 0
    devices: int = 0
    dropped: tuple[str, ...] = ()
    problem: str = ""
    pool: Pool | None = None


class _RefusedError(Exception):
    """Publishing must not go on; the message says why."""


class Pacer:
    """Spaces attempts that follow trouble: the pause doubles with each one, and is forgotten after a quiet while."""

    def __init__(self, first_seconds: float, longest_seconds: float) -> None:
        self._first_seconds = first_seconds
        self._longest_seconds = longest_seconds
        self._pause_seconds = 0.0
        self._struck_at = float("-inf")

    def strike(self, now: float) -> None:
        """Note trouble at a time of the monotonic clock."""
        quiet = now - self._struck_at > 2 * max(self._pause_seconds, self._first_seconds)
        doubled = self._first_seconds if quiet else 2 * self._pause_seconds
        self._pause_seconds = min(doubled, self._longest_seconds)
        self._struck_at = now

    def due_seconds(self, now: float) -> float:
        """Return how long the next attempt has to wait."""
        return max(0.0, self._struck_at + self._pause_seconds - now)


class SlicePublisher:
    """The one writer of a driver's slices on a node.

    Args:
        store: the API server.
        dropped_fields: compares an object that was sent with what came back; returns the paths that are missing.
        on_change: called when the publication changed, and when a wish turned out to be fulfilled already; must not block.
        resync_seconds: how often to look even if nothing happened.
        first_pause_seconds: the pause after a first failure or repair.
    """

    def __init__(
        self,
        store: SliceStore,
        dropped_fields: Callable[[slices.Object, slices.Object], Sequence[str]],
        *,
        on_change: Callable[[Publication], None] | None = None,
        resync_seconds: float = RESYNC_SECONDS,
        first_pause_seconds: float = _FIRST_PAUSE_SECONDS,
    ) -> None:
        self._store = store
        self._dropped_fields = dropped_fields
        self._on_change = on_change
        self._resync_seconds = resync_seconds
        self._pacer = Pacer(first_pause_seconds, _LONGEST_PAUSE_SECONDS)
        self._wish: tuple[slices.Pool, slices.Owner] | None = None
        self._fulfilled: tuple[slices.Pool, slices.Owner] | None = None
        # Whether there was a wish since the listener heard of the last one; also one that went before it was looked at.
        self._is_asked = False
        self._wake = asyncio.Event()
        self._new_wish = asyncio.Event()
        self._publication = Publication()
        # By name, the uid and resource version that we know of, to tell our own echo from another's change.
        self._known: dict[str, tuple[str, str]] = {}
        self._settled: dict[str, slices.Settled] = {}
        self._dropped: dict[str, tuple[str, ...]] = {}
        self._proven: set[str] = set()
        self._generation = 1

    @property
    def publication(self) -> Publication:
        """Where publishing stands now."""
        return self._publication

    def publish(self, pool: slices.Pool, owner: slices.Owner) -> None:
        """Wish for this pool from now on, in place of any other; a pool without devices withdraws all slices."""
        if (pool, owner) != self._wish:
            self._wish = (pool, owner)
            self._is_asked = True
            self._new_wish.set()
            self._wake.set()

    def wake(self) -> None:
        """Look at the live slices now, for example because the kubelet has just registered the driver."""
        self._wake.set()

    def observe(self, change: str, item: Mapping[str, Any]) -> None:
        """Hear of a change (ADDED, MODIFIED, DELETED) of a slice of this driver and node, ours or not."""
        known = self._known.get(item["metadata"]["name"])
        seen = _version(item)
        # What we delete ourselves is forgotten before the call, so that it is no news here.
        if (known is not None and known[0] == seen[0]) if change == "DELETED" else known != seen:
            self._wake.set()

    async def run(self) -> None:
        """Keep the slices until cancelled. They stay published afterwards: a restart must not withdraw devices."""
        while True:
            await self._sleep()
            wish = self._wish
            if wish is None:
                continue
            asked, self._is_asked = self._is_asked, False
            try:
                changed = await self._bring_about(*wish, tell=asked)
            except _RefusedError as error:
                self._is_asked = True
                self._trouble(str(error))
            except Exception as error:  # noqa: BLE001 - whatever the store raises, the next attempt starts from what is live
                self._is_asked = True
                self._trouble(f"{type(error).__name__}: {error}")
                self._wake.set()
            else:
                if changed and wish == self._fulfilled:
                    self._pacer.strike(time.monotonic())
                self._fulfilled = wish

    async def _sleep(self) -> None:
        """Wait for a reason to look; after trouble also for the pause that is due, unless the wish is a new one."""
        await _wait(self._wake, self._resync_seconds)
        await _wait(self._new_wish, self._pacer.due_seconds(time.monotonic()))
        self._new_wish.clear()
        self._wake.clear()

    def _trouble(self, problem: str) -> None:
        if problem != self._publication.problem:
            _log.warning("ResourceSlices: %s", problem)
        self._pacer.strike(time.monotonic())
        self._tell(replace(self._publication, complete=False, dropped=self._all_dropped(), problem=problem))

    async def _bring_about(self, pool: slices.Pool, owner: slices.Owner, *, tell: bool) -> bool:
        """Make the live slices what is wished; return whether anything had to be written.

        Args:
            pool: the wish.
            owner: whose slices.
            tell: whether the listener waits for an answer, also if nothing had to be done.

        Raises:
            _RefusedError: the wish cannot be published as it is.
        """
        problems = slices.find_problems(pool)
        if problems:
            raise _RefusedError(f"the pool would be invalid: {'; '.join(problems[:3])}")
        live = await self._store.list()
        names = {item["metadata"]["name"] for item in slices.draft(pool, owner)}
        self._remember(live, names)
        changes = slices.plan(pool, owner, live, settled=self._settled, lowest_generation=self._generation)
        await self._prove(pool, changes.writes)
        await self._apply(pool, changes)
        self._generation = max(self._generation, changes.generation)
        self._tell(
            Publication(
                complete=True,
                generation=changes.generation,
                slices=len(names),
                devices=len(pool.devices),
                dropped=self._all_dropped(),
                pool=pool,
            ),
            always=tell,
        )
        return bool(changes)

    def _remember(self, live: Sequence[slices.Object], names: AbstractSet[str]) -> None:
        """Take over the versions that are live, and forget what is no longer wished for."""
        self._known = {
            item["metadata"]["name"]: _version(item) for item in live if item["metadata"]["name"] in names
        }
        for memory in (self._settled, self._dropped):
            for name in memory.keys() - names:
                del memory[name]

    async def _prove(self, pool: slices.Pool, writes: Sequence[slices.Object]) -> None:
        """Make sure that the API server keeps the essential fields, before it stores the first device.

        Raises:
            _RefusedError: it drops one of them.
        """
        for path in sorted(pool.essential - self._proven):
            sample = next((item for item in writes if slices.contains(item, path)), None)
            if sample is None:
                continue
            # A name of its own, since the slice itself may exist; a dry run stores nothing.
            probe = {**sample, "metadata": {"name": f"{sample['metadata']['name'][:240]}-probe"}}
            returned = await self._store.create(probe, dry_run=True)
            self._dropped[sample["metadata"]["name"]] = self._compare(probe, returned)
            self._check_essential(pool)
            self._proven.add(path)

    async def _apply(self, pool: slices.Pool, changes: slices.Changes) -> None:
        """Make the writes; raise the first failure after all of them were tried.

        Raises:
            _RefusedError: the API server dropped an essential field; what had it is withdrawn.
        """
        for item in changes.obstacles:
            await self._delete(item)
        running = asyncio.Semaphore(_PARALLEL_WRITES)

        async def write(item: slices.Object) -> slices.Object:
            async with running:
                return await self._write(item)

        # The fewer slices are missing, the sooner the pool is complete again: none waits for another's failure.
        results = await asyncio.gather(*map(write, changes.writes), return_exceptions=True)
        try:
            self._check_essential(pool)
        except _RefusedError:
            # Another replica of the API server answered than the one that was probed. Better no devices than these.
            self._proven.clear()
            for result in results:
                if not isinstance(result, BaseException):
                    await self._delete(result)
            raise
        for result in results:
            if isinstance(result, BaseException):
                raise result
        for item in changes.leftovers:
            await self._delete(item)

    async def _write(self, item: slices.Object) -> slices.Object:
        name = item["metadata"]["name"]
        exists = "resourceVersion" in item["metadata"]
        returned = await (self._store.replace(item) if exists else self._store.create(item))
        self._known[name] = _version(returned)
        self._settled[name] = slices.Settled(sent=item["spec"], returned=returned["spec"])
        self._dropped[name] = self._compare(item, returned)
        return returned

    async def _delete(self, item: slices.Object) -> None:
        for memory in (self._known, self._settled):
            memory.pop(item["metadata"]["name"], None)
        await self._store.delete(item)

    def _compare(self, sent: slices.Object, returned: slices.Object) -> tuple[str, ...]:
        return slices.generalize(self._dropped_fields({"spec": sent["spec"]}, {"spec": returned["spec"]}))

    def _check_essential(self, pool: slices.Pool) -> None:
        lost = [path for path in self._all_dropped() if any(_covers(path, field) for field in pool.essential)]
        if lost:
            raise _RefusedError(
                f"the API server does not keep {', '.join(lost)}, and without it devices would be handed out twice:"
                " turn on its feature gate, or use a release that has it"
            )

    def _all_dropped(self) -> tuple[str, ...]:
        return tuple(sorted({path for paths in self._dropped.values() for path in paths}))

    def _tell(self, publication: Publication, *, always: bool = False) -> None:
        if always or publication != self._publication:
            self._publication = publication
            callbacks.tell(self._on_change, publication)


def _version(item: Mapping[str, Any]) -> tuple[str, str]:
    metadata = item["metadata"]
    return metadata.get("uid", ""), metadata.get("resourceVersion", "")


def _covers(dropped: str, essential: str) -> bool:
    """Say whether losing one field loses another: the field itself, or something above or inside it."""
    return (
        dropped == essential
        or essential.startswith((f"{dropped}.", f"{dropped}["))
        or dropped.startswith((f"{essential}.", f"{essential}["))
    )


async def _wait(event: asyncio.Event, timeout_seconds: float) -> None:
    try:
        async with asyncio.timeout(timeout_seconds):
            await event.wait()
    except TimeoutError:
        return
