"""Watches GpuPolicies with kopf, in a thread and an event loop of its own.

Why so: kopf cancels at its exit every task that was made in its loop after it started, whoever made it, and waits
five seconds for them. In a loop of its own there are none but its own, so it stops at once and touches nobody.

Only `on.event` handlers are used: no finalizer, no annotation, no progress, nothing that kopf would write. What kopf
does not tell is added here:

- it does not say when the first list is complete, and a list after a lost history does not report what was deleted
  meanwhile. So the policies are listed by our own client before the watch begins, whenever kopf lists again, and
  every few minutes;
- it ends when the CRD is missing or a token was refused twice. Then it is started again;
- it looks up once which kinds are served. Started while the CRD is missing it would watch nothing for ever, so it is
  started when the CRD is there.
"""

import asyncio
import contextlib
import datetime as dt
import itertools
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from gpupolicy.adapters import (
    kube,  # Before kopf: this makes kopf's import of kubernetes_asyncio a cheap one.
    logs,
)
from gpupolicy.adapters.kube import backoff
from gpupolicy.api import names

import kopf  # isort: skip

logger = logging.getLogger(__name__)

LIST_SECONDS: Final = 600.0
"""How often the policies are listed although nothing seems wrong."""

LOGIN_SECONDS: Final = 300.0
"""How long kopf uses a token before it asks for it again. Each answer expires at another time, so that kopf never
takes the same token, refused once, for a hopeless one."""

STOP_SECONDS: Final = 5.0

Take = Callable[..., None]
"""Called with the object, and `deleted` by keyword, in the caller's loop."""


class _EndlessBackoff:
    """Pauses between attempts that never end; kopf would give up after the last of a finite list."""

    def __iter__(self) -> Iterator[float]:
        pause = backoff.Backoff(0.5, 30.0)
        return (pause.next_seconds() for _ in itertools.count())


class _Stop:
    """Sets an event of another thread's loop, also when asked before that loop runs.

    A `threading.Event` would do too, but kopf waits for one in an executor thread, which outlives a kopf that ends by
    itself and keeps its loop from closing.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._target: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None
        self._is_set = False

    def attach(self, loop: asyncio.AbstractEventLoop, flag: asyncio.Event) -> None:
        """Name the event; called in its loop."""
        with self._lock:
            self._target = loop, flag
            if self._is_set:
                flag.set()

    def set(self) -> None:
        """Set the event; called from any thread."""
        with self._lock:
            self._is_set = True
            if self._target is not None:
                loop, flag = self._target
                # The loop may have closed meanwhile: then there is nothing to stop.
                with contextlib.suppress(RuntimeError):
                    loop.call_soon_threadsafe(flag.set)


class PolicyWatch:
    """The watch on all GpuPolicies; `run` keeps it until it is cancelled."""

    def __init__(self, client: kube.Kube, kubeconfig: str | None, take: Take) -> None:
        """Prepare; nothing is requested before `run`.

        Args:
            client: the API server, for lists.
            kubeconfig: path of the kubeconfig file that kopf is to use as well; None as in `kube.Kube.connect`.
            take: called for every policy that appears, changes or goes, in the loop of `run`.
        """
        self.synced = asyncio.Event()
        self._client = client
        self._kubeconfig = kubeconfig
        self._take = take
        self._relist = asyncio.Event()
        self._known: dict[str, Mapping[str, Any]] = {}
        self._thread: threading.Thread | None = None

    @property
    def is_alive(self) -> bool:
        """Whether kopf runs."""
        return self._thread is not None and self._thread.is_alive()

    async def run(self) -> None:
        """List and watch until cancelled; what goes wrong is logged and outlived."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._list_forever(), name="policy-lists")
            tasks.create_task(self._watch_forever(), name="policy-watch")

    async def _list_forever(self) -> None:
        pause = backoff.Backoff(0.5, 30.0)
        trouble = logs.Trouble(logger)
        while True:
            try:
                await self._list()
            except kube.ApiError as error:
                trouble.tell(error.reason, "The policies cannot be listed: %s", error)
                await asyncio.sleep(pause.next_seconds())
                continue
            pause.reset()
            trouble.over("The policies can be listed again")
            self.synced.set()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LIST_SECONDS):
                    await self._relist.wait()
            # Of a burst of listed objects the first asks for the list; the others are over by then.
            await asyncio.sleep(1.0)
            self._relist.clear()

    async def _list(self) -> None:
        known = dict(self._known)
        found = await self._client.list(kube.GPUPOLICIES)
        listed = {item["metadata"]["uid"] for item in found.items}
        for item in found.items:
            self._receive(item, deleted=False)
        # What came while the list was under way is not in `known`, and so is not taken for deleted.
        for uid, body in known.items():
            if uid not in listed and self._known.get(uid) is body:
                self._receive(body, deleted=True)

    async def _watch_forever(self) -> None:
        pause = backoff.Backoff(1.0, 30.0)
        while True:
            began = asyncio.get_running_loop().time()
            if await self._is_served():
                await self._watch()
            if asyncio.get_running_loop().time() - began > LOGIN_SECONDS:
                pause.reset()
            seconds = pause.next_seconds()
            logger.warning("GpuPolicies are not watched; the next attempt is in %.1f seconds", seconds)
            await asyncio.sleep(seconds)
            self._relist.set()

    async def _is_served(self) -> bool:
        try:
            return await self._client.serves(kube.GPUPOLICIES)
        except kube.KubeError as error:
            logger.warning("Whether GpuPolicies are served is not known: %s", error)
            return False

    async def _watch(self) -> None:
        """Run kopf in its thread until it ends, or until this is cancelled."""
        loop = asyncio.get_running_loop()
        stop = _Stop()
        ended = asyncio.Event()

        def work() -> None:
            try:
                asyncio.run(self._kopf(loop, stop))
            except Exception:
                logger.exception("The watch on policies failed")
            finally:
                with contextlib.suppress(RuntimeError):
                    loop.call_soon_threadsafe(ended.set)

        self._thread = threading.Thread(target=work, name="kopf", daemon=True)
        self._thread.start()
        try:
            await ended.wait()
        finally:
            stop.set()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(STOP_SECONDS):
                    await ended.wait()

    async def _kopf(self, loop: asyncio.AbstractEventLoop, stop: "_Stop") -> None:
        flag = asyncio.Event()
        stop.attach(asyncio.get_running_loop(), flag)
        registry = kopf.OperatorRegistry()

        @kopf.on.login(registry=registry)
        async def login(**_: Any) -> kopf.ConnectionInfo:
            return await self._login()

        @kopf.on.event(names.GROUP, names.VERSION, kube.GPUPOLICIES.plural, registry=registry)
        async def policy(event: Mapping[str, Any], **_: Any) -> None:
            kind, body = event["type"], dict(event["object"])
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(self._event, kind, body)

        await kopf.operator(registry=registry, settings=_settings(), clusterwide=True, stop_flag=flag)

    async def _login(self) -> kopf.ConnectionInfo:
        async with kube.Kube.connect(self._kubeconfig) as client:
            found = await client.credentials()
        scheme, _, token = (found.authorization or "").partition(" ")
        seconds = LOGIN_SECONDS * backoff.between(0.8, 1.0)
        return kopf.ConnectionInfo(
            server=found.server,
            ca_path=found.ca_file,
            insecure=not found.verify,
            scheme=scheme or None,
            token=token or None,
            certificate_path=found.certificate_file,
            private_key_path=found.key_file,
            proxy_url=found.proxy_url(),
            expiration=dt.datetime.now(dt.UTC) + dt.timedelta(seconds=seconds),
        )

    def _event(self, kind: str | None, body: Mapping[str, Any]) -> None:
        if kind is None and self.synced.is_set():
            # Listed, not watched: kopf lost the history, and does not know what was deleted since.
            self._relist.set()
        self._receive(body, deleted=kind == "DELETED")

    def _receive(self, body: Mapping[str, Any], *, deleted: bool) -> None:
        uid = body["metadata"]["uid"]
        if deleted:
            self._known.pop(uid, None)
        else:
            self._known[uid] = body
        self._take(body, deleted=deleted)


def _settings() -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.peering.standalone = True
    settings.posting.enabled = False
    settings.posting.loggers = False
    # Scanning would watch all CRDs and namespaces of the cluster; the CRDs are waited for at the start.
    settings.scanning.disabled = True
    settings.watching.server_timeout = 600
    settings.watching.client_timeout = 660
    settings.watching.connect_timeout = 10
    settings.networking.request_timeout = 30
    settings.networking.connect_timeout = 10
    settings.networking.error_backoffs = _EndlessBackoff()
    # A worker per object stays for this long; a limit on their number would make the next object wait for that.
    settings.queueing.idle_timeout = 1.0
    settings.process.ultimate_exiting_timeout = None
    settings.persistence.finalizer = f"{names.GROUP}/unused"
    return settings
