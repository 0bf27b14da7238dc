"""A local copy of the objects of one resource, kept up to date by list and watch.

Theory of operation.

    list (pages) ──> watch from the list's version ──> server ends it after 5 to 10 minutes ──> watch again
      ^                 │ broken, silent, refused: wait (jitter, 30 s at most), ask for the server's version
      │                 │                          not older than ours: watch again from ours
      └── 410, or older than ours ──┘

A server whose version is older than ours was restored from a backup. It would accept our watch and stay silent
until its versions have caught up with ours, so it is asked whenever a watch did not end in the ordinary way.

The version is that of the last event or bookmark, so nothing is lost between two watches. A list after the first is
compared with the copy: only what differs becomes an event, so callers see real changes however often the history
is lost. The copy stays readable while the server is away; `last_contact_age_seconds` says how old it may be.

Callers get each change once, in order, from one task; they must not block. An exception in their code is a bug and
ends `run`.
"""

import asyncio
import contextlib
import enum
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

from gpupolicy.adapters.kube import backoff, client, errors, resources, wire

logger = logging.getLogger(__name__)

Key = tuple[str, str]
"""Namespace (empty for cluster-scoped objects) and name."""

WATCH_SECONDS: Final = (300, 600)
"""A watch asks to be ended after a random time in between, so that watches do not return in step."""

INACTIVITY_SECONDS: Final = 70.0
"""API servers send a bookmark about every minute; a stream that is silent for longer is dead."""

_BACKOFF_FIRST_SECONDS: Final = 0.5
_BACKOFF_CAP_SECONDS: Final = 30.0
_SHORT_WATCH_SECONDS: Final = 5.0


class Change(enum.StrEnum):
    """What happened to an object."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"


class Event(NamedTuple):
    """One change of the copy.

    Attributes:
        change: what happened.
        key: namespace and name.
        object: the object as cached now; for DELETED its last known state.
        previous: the object as cached before; None for ADDED.
    """

    change: Change
    key: Key
    object: wire.Object
    previous: wire.Object | None


class _Entry(NamedTuple):
    uid: str
    resource_version: str
    object: wire.Object


class Reflector:
    """The copy of one resource; `run` keeps it until it is cancelled.

    Attributes:
        synced: set once the first list is complete and its events are delivered.
        answered: set with `synced`, or before it when the server said that we may not read this.
        refusal: why we may not read this, in the server's words; empty while we may, or do not know.
        cache: the objects by key, to be read and never written.
    """

    def __init__(
        self,
        kube: client.Kube,
        resource: resources.Resource,
        namespace: str | None = None,
        *,
        label_selector: str | None = None,
        field_selector: str | None = None,
        on_event: Callable[[Event], None] | None = None,
        on_rewind: Callable[[], None] | None = None,
        transform: wire.Transform | None = None,
        keep_managed_fields: bool = False,
        page_size: int = client.PAGE_SIZE,
        watch_seconds: tuple[int, int] = WATCH_SECONDS,
        inactivity_seconds: float = INACTIVITY_SECONDS,
    ) -> None:
        """Prepare a copy; nothing is requested before `run`.

        Args:
            kube: the client.
            resource: what to copy.
            namespace: only objects of this namespace.
            label_selector: only objects with these labels.
            field_selector: only objects with these fields.
            on_event: called for each change, in order.
            on_rewind: called when the server is found to be older than the copy, before it is listed again: whoever
                compares versions has to forget those that are known.
            transform: trims each object before it is cached, None drops it. A change that leaves the trimmed object
                as it was is no event. It may change the object in place.
            keep_managed_fields: keep `metadata.managedFields`, which often is half of an object.
            page_size: objects per page of a list.
            watch_seconds: bounds of the duration asked of each watch.
            inactivity_seconds: how long a stream may be silent.
        """
        self.synced = asyncio.Event()
        self.answered = asyncio.Event()
        self.refusal = ""
        self._kube = kube
        self._resource = resource
        self._namespace = namespace
        self._label_selector = label_selector
        self._field_selector = field_selector
        self._on_event = on_event
        self._on_rewind = on_rewind
        self._transform = transform
        self._keep_managed_fields = keep_managed_fields
        self._page_size = page_size
        self._watch_seconds = watch_seconds
        self._inactivity_seconds = inactivity_seconds
        self._entries: dict[Key, _Entry] = {}
        self._version: str | None = None
        self._doubtful = True
        self._contact_at: float | None = None
        self._backoff = backoff.Backoff(_BACKOFF_FIRST_SECONDS, _BACKOFF_CAP_SECONDS)
        self._trouble: str | None = None
        self.cache: Mapping[Key, wire.Object] = _Cache(self._entries)

    @property
    def resource(self) -> resources.Resource:
        """What this is a copy of."""
        return self._resource

    def get(self, name: str, namespace: str = "") -> wire.Object | None:
        """Return the cached object; None if there is none."""
        entry = self._entries.get((namespace, name))
        return None if entry is None else entry.object

    def last_contact_age_seconds(self) -> float:
        """Return how long ago the API server last sent anything; infinite before the first answer."""
        return float("inf") if self._contact_at is None else time.monotonic() - self._contact_at

    async def run(self) -> None:
        """List and watch until cancelled; errors of the API server are logged and outlived."""
        while True:
            try:
                if self._version is not None and self._doubtful:
                    await self._check_history(self._version)
                if self._version is None:
                    await self._list()
                self._doubtful = False
                await self._watch()
            except errors.Gone as error:
                logger.info("%s: the history is lost, listing again: %s", self._resource, error)
                self._version = None
                await self._pause(error)
            except errors.ApiError as error:
                if isinstance(error, errors.Forbidden):
                    self.refusal = error.message
                    self.answered.set()
                await self._pause(error)

    async def _check_history(self, version: str) -> None:
        """Forget our version if the server's history does not reach it."""
        found = await self._kube.list(
            self._resource,
            self._namespace,
            label_selector=self._label_selector,
            field_selector=self._field_selector,
            page_size=1,
            first_page_only=True,
            attempts=1,
        )
        current = found.resource_version
        if not (current.isdecimal() and version.isdecimal()) or int(current) < int(version):
            logger.warning(
                "%s: the server is at version %s and we at %s, listing again",
                self._resource,
                current,
                version,
            )
            self._version = None
            if self._on_rewind is not None:
                self._on_rewind()

    async def _pause(self, error: errors.ApiError) -> None:
        self._doubtful = True
        if error.reason != self._trouble:
            self._trouble = error.reason
            logger.warning("%s: %s; trying again", self._resource, error)
        seconds = self._backoff.next_seconds()
        if isinstance(error, errors.TooManyRequests):
            seconds = max(seconds, error.retry_after_seconds)
        await asyncio.sleep(seconds)

    def _contact(self) -> None:
        self._contact_at = time.monotonic()
        self.refusal = ""
        self._backoff.reset()
        if self._trouble is not None:
            logger.info("%s: in touch again after %s", self._resource, self._trouble)
            self._trouble = None

    async def _list(self) -> None:
        listed: dict[Key, _Entry] = {}

        def keep(item: wire.Object) -> None:
            self._contact_at = time.monotonic()
            key, entry = self._entry(item)
            if entry is not None:
                listed[key] = entry

        found = await self._kube.list(
            self._resource,
            self._namespace,
            label_selector=self._label_selector,
            field_selector=self._field_selector,
            transform=keep,
            page_size=self._page_size,
            attempts=1,
        )
        for key in [key for key in self._entries if key not in listed]:
            self._forget(key)
        for key, entry in listed.items():
            self._remember(key, entry)
        self._version = found.resource_version
        self._contact()
        self.synced.set()
        self.answered.set()

    async def _watch(self) -> None:
        assert self._version is not None  # noqa: S101 - run lists first
        began = time.monotonic()
        stream = self._kube.watch(
            self._resource,
            self._namespace,
            resource_version=self._version,
            label_selector=self._label_selector,
            field_selector=self._field_selector,
            timeout_seconds=round(backoff.between(*self._watch_seconds)),
            inactivity_seconds=self._inactivity_seconds,
        )
        quiet = True
        async with contextlib.aclosing(stream):
            async for event in stream:
                quiet = False
                self._contact()
                self._take(event)
        if quiet and time.monotonic() - began < _SHORT_WATCH_SECONDS:
            # A server or proxy that ends watches at once must not be asked in a tight loop.
            raise errors.Unavailable(0, "ShortWatch", "the server ended the watch at once")
        self._contact_at = time.monotonic()

    def _take(self, event: wire.WatchEvent) -> None:
        version = event.object.get("metadata", {}).get("resourceVersion")
        match event.type:
            case Change.ADDED | Change.MODIFIED:
                key, entry = self._entry(event.object)
                if entry is None:
                    self._forget(key)
                else:
                    self._remember(key, entry)
            case Change.DELETED:
                self._forget(_key(event.object))
            case _:
                # Bookmarks, and kinds of events that later servers may add, only move the version.
                pass
        if version:
            self._version = str(version)

    def _entry(self, item: wire.Object) -> tuple[Key, _Entry | None]:
        metadata = item.get("metadata", {})
        key = _key(item)
        uid, version = str(metadata.get("uid", "")), str(metadata.get("resourceVersion", ""))
        if not self._keep_managed_fields:
            metadata.pop("managedFields", None)
        kept = item if self._transform is None else self._transform(item)
        return key, None if kept is None else _Entry(uid, version, kept)

    def _remember(self, key: Key, entry: _Entry) -> None:
        known = self._entries.get(key)
        if known is not None and known.uid != entry.uid:
            # The name was deleted and taken again while we did not look.
            self._forget(key)
            known = None
        self._entries[key] = entry
        if known is None:
            self._tell(Event(Change.ADDED, key, entry.object, None))
        elif known.resource_version != entry.resource_version and known.object != entry.object:
            self._tell(Event(Change.MODIFIED, key, entry.object, known.object))

    def _forget(self, key: Key) -> None:
        known = self._entries.pop(key, None)
        if known is not None:
            self._tell(Event(Change.DELETED, key, known.object, known.object))

    def _tell(self, event: Event) -> None:
        if self._on_event is not None:
            self._on_event(event)


class _Cache(Mapping[Key, wire.Object]):
    """A read-only view on the entries."""

    def __init__(self, entries: Mapping[Key, _Entry]) -> None:
        self._entries = entries

    def __getitem__(self, key: Key) -> wire.Object:
        return self._entries[key].object

    def __iter__(self) -> Iterator[Key]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


def _key(item: wire.Object) -> Key:
    metadata = item.get("metadata", {})
    return str(metadata.get("namespace") or ""), str(metadata.get("name", ""))
