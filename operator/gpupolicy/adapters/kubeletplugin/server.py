"""The life of a plugin: its two sockets, its registration with the kubelet, and its end.

Theory of operation. The kubelet watches its registry directory. When a registration socket appears there it asks
who serves it (`GetInfo`), connects to the service socket that the answer names, and tells the result
(`NotifyRegistrationStatus`). When the registration socket vanishes, so does the registration, and 30 seconds later
the node's ResourceSlices of this driver. A restarted kubelet finds the sockets that are there.

So the plugin looks at both files every second: a missing one (a wiped directory, a careless cleanup) is made anew,
which registers the driver again. One that was replaced belongs to another instance now; the plugin says so and leaves
it alone, because two instances that take a socket from each other in turn would serve nobody.

At the end the registration goes first, so that the kubelet turns to another instance if there is one; then calls
under way are finished, and only then the service is closed.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from grpclib.server import Server

from gpupolicy.adapters.kubeletplugin import callbacks, claims, services, sockets

VERSIONS: Final = (services.DRA_V1, services.DRA_V1BETA1, services.HEALTH_V1, services.HEALTH_V1ALPHA1)
"""Everything that this plugin can speak, newest first."""

WATCH_INTERVAL_SECONDS: Final = 1.0
_CLOSE_SECONDS: Final = 1.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginStatus:
    """What is known of the plugin's standing with the kubelet.

    Attributes:
        registered: the kubelet accepted the registration, and the sockets are in place.
        problem: why not, or what is wrong besides; empty when all is well.
        in_flight: calls under way.
        last_call_at: end of the last answered call, on the monotonic clock; None before the first.
    """

    registered: bool = False
    problem: str = ""
    in_flight: int = 0
    last_call_at: float | None = None


class KubeletPlugin:
    """One instance of a DRA driver on one node.

    Args:
        driver_name: name of the driver, a DNS subdomain of at most 63 characters.
        plugin_dir: the driver's own directory, such as /var/lib/kubelet/plugins/<driver>; made when missing.
        registry_dir: the kubelet's, such as /var/lib/kubelet/plugins_registry; made when missing.
        handler: prepares and unprepares claims.
        health: tells the health of devices; None leaves the health services out.
        instance_id: uid of the pod, when two instances may overlap during a rolling update.
        versions: what to offer, newest first.
        on_status: called after every change of `registered` or `problem`; must not block.
        on_call: called after every prepare and unprepare; must not block.
        watch_interval_seconds: how often the sockets are looked at.
        health_interval_seconds: how often health is repeated.
    """

    def __init__(
        self,
        driver_name: str,
        plugin_dir: Path,
        registry_dir: Path,
        handler: claims.ClaimHandler,
        *,
        health: claims.HealthSource | None = None,
        instance_id: str | None = None,
        versions: Sequence[str] = VERSIONS,
        on_status: Callable[[PluginStatus], None] | None = None,
        on_call: Callable[[services.CallReport], None] | None = None,
        watch_interval_seconds: float = WATCH_INTERVAL_SECONDS,
        health_interval_seconds: float = services.HEALTH_INTERVAL_SECONDS,
    ) -> None:
        unknown = set(versions) - set(VERSIONS)
        if unknown:
            raise ValueError(f"versions {sorted(unknown)}: want some of {', '.join(VERSIONS)}")
        self.paths = sockets.name_sockets(driver_name, plugin_dir, registry_dir, instance_id)
        self._driver_name = driver_name
        self._handler = handler
        self._watch_interval_seconds = watch_interval_seconds
        self._on_status = on_status
        self._on_call = on_call
        self._registered = False
        self._registration_error = ""
        self._last_call_at: float | None = None
        self._reported = (False, "")
        self._gate = services.Gate()
        if health is None:
            versions = [version for version in versions if version in (services.DRA_V1, services.DRA_V1BETA1)]
        self._health = (
            None if health is None else services.HealthService(versions, health, health_interval_seconds)
        )
        self._versions = tuple(versions)
        self._service = _Endpoint(self.paths.service, self._service_handlers())
        self._registration = _Endpoint(self.paths.registration, [self._registration_handler()])
        self._watch: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @property
    def status(self) -> PluginStatus:
        """The plugin's standing now."""
        trouble = [problem for problem in (self._service.problem, self._registration.problem) if problem]
        in_place = self._service.in_place and self._registration.in_place
        return PluginStatus(
            registered=self._registered and in_place,
            problem="; ".join(trouble) or self._registration_error,
            in_flight=self._gate.in_flight,
            last_call_at=self._last_call_at,
        )

    async def start(self) -> None:
        """Serve both sockets, then keep them in place.

        Raises:
            sockets.SocketError: a socket cannot be served, because of its directory or of who is there already.
        """
        for path in (self.paths.service, self.paths.registration):
            # The kubelet makes its own directories too, but the order in which a node comes up is anyone's.
            with contextlib.suppress(OSError):
                path.parent.mkdir(mode=0o755, exist_ok=True)
        removed = sockets.remove_stale(
            self._driver_name, self.paths.service.parent, self.paths.registration.parent
        )
        for path in removed:
            _log.info("removed the socket of an instance that is gone: %s", path)
        try:
            # The service first: the kubelet connects to it as soon as it has seen the registration.
            await self._service.open()
            await self._registration.open()
        except BaseException:
            await self._registration.close()
            await self._service.close()
            raise
        self._watch = asyncio.create_task(self._keep_in_place(), name="kubelet-plugin-sockets")

    async def stop(self, *, grace_seconds: float = 10.0) -> None:
        """Withdraw the registration, finish the calls under way, close. Calls that take longer are cancelled."""
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
            self._watch = None
        await self._registration.close()
        self._registered = False
        if not await self._gate.drain(grace_seconds):
            _log.warning("%d calls were still running after %g s", self._gate.in_flight, grace_seconds)
        await self._service.close()

    def health_changed(self) -> None:
        """Send the health of all devices to the kubelet now, not at the next interval."""
        if self._health is not None:
            self._health.wake()

    def _service_handlers(self) -> list[Any]:
        handlers: list[Any] = [
            services.DraService(version, self._handler, self._gate, self._hear_call)
            for version in self._versions
            if version in (services.DRA_V1, services.DRA_V1BETA1)
        ]
        return handlers if self._health is None else [*handlers, self._health]

    def _registration_handler(self) -> services.RegistrationService:
        return services.RegistrationService(
            self._driver_name, str(self.paths.service), self._versions, self._hear_registration
        )

    def _hear_registration(self, registered: bool, error: str) -> None:
        self._registered = registered
        self._registration_error = (
            "" if registered else f"the kubelet refused the registration: {error or 'no reason given'}"
        )
        if not registered:
            _log.error("%s", self._registration_error)
        # Also when nothing changed: a kubelet that registers us again has restarted and wiped the slices.
        self._report(always=True)

    def _hear_call(self, report: services.CallReport) -> None:
        self._last_call_at = time.monotonic()
        callbacks.tell(self._on_call, report)

    def _report(self, *, always: bool = False) -> None:
        status = self.status
        summary = (status.registered, status.problem)
        if always or summary != self._reported:
            callbacks.tell(self._on_status, status)
        self._reported = summary

    async def _keep_in_place(self) -> None:
        while True:
            await asyncio.sleep(self._watch_interval_seconds)
            try:
                await self._service.restore()
                if await self._registration.restore():
                    # The kubelet saw the old socket go and will tell what it thinks of the new one.
                    self._registered = False
            except Exception:  # noqa: BLE001 - whatever it was (no descriptor left, for one), nobody else would try again
                _log.exception("the sockets cannot be looked at")
            self._report()


class _Endpoint:
    """One socket and the gRPC servers behind it."""

    def __init__(self, path: Path, handlers: Sequence[Any]) -> None:
        self._path = path
        self._handlers = handlers
        self._bound: sockets.BoundSocket | None = None
        # Servers of a socket that was removed live on: the kubelet's connection to it does too.
        self._servers: list[Server] = []
        self.problem = ""

    @property
    def in_place(self) -> bool:
        return self._bound is not None and not self.problem

    async def open(self) -> None:
        bound = sockets.bind(self._path)
        server = Server(self._handlers)
        try:
            await server.start(sock=bound.listener)
        except BaseException:
            bound.unlink()
            bound.listener.close()
            raise
        self._bound = bound
        self._servers.append(server)

    async def restore(self) -> bool:
        """Put a missing socket back; True when it was missing and is there again."""
        if self._bound is None:
            return False
        match self._bound.state():
            case "ours":
                self.problem = ""
                return False
            case "replaced":
                self._complain(
                    f"{self._path} was taken over by another process: stop one of the two instances"
                )
                return False
        try:
            with contextlib.suppress(OSError):
                self._path.parent.mkdir(mode=0o755, exist_ok=True)
            await self.open()
        except sockets.SocketError as error:
            self._complain(str(error))
            return False
        _log.warning("the socket %s was removed and is served again", self._path)
        self.problem = ""
        return True

    async def close(self) -> None:
        if self._bound is not None:
            self._bound.unlink()
            self._bound = None
        for server in self._servers:
            server.close()
        for server in self._servers:
            # From Python 3.12 this also waits for the kubelet to hang up, which it need not do.
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(server.wait_closed(), _CLOSE_SECONDS)
        self._servers.clear()

    def _complain(self, problem: str) -> None:
        if problem != self.problem:
            _log.error("%s", problem)
        self.problem = problem
