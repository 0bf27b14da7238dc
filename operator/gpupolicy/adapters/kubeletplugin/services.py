"""The gRPC services of a plugin: each translates messages and guards its caller, and decides nothing.

What the kubelet is promised whatever the driver's handler does: an entry for every claim it asked for, an error per
claim rather than a failed call, and an answer before its deadline. The two versions of the DRA service differ in
one field, so one class serves both.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from grpclib.const import Cardinality, Handler, Status
from grpclib.exceptions import GRPCError
from grpclib.server import Stream

from gpupolicy.adapters.kubeletplugin import claims, messages

# Entries of `supported_versions`; the kubelet takes the first that it knows, so the newest stands first.
DRA_V1: Final = "v1.DRAPlugin"
DRA_V1BETA1: Final = "v1beta1.DRAPlugin"
HEALTH_V1: Final = "v1.DRAResourceHealth"
HEALTH_V1ALPHA1: Final = "v1alpha1.DRAResourceHealth"

HEALTH_INTERVAL_SECONDS: Final = 15.0
"""The kubelet forgets a device's health after 30 seconds of silence, so the list is repeated after half of that."""

_PLUGIN_TYPE: Final = "DRAPlugin"
_HEALTH_MESSAGE_BYTES: Final = 1024
# Kept back from the kubelet's deadline, so that our own words arrive instead of a bare DeadlineExceeded.
_MARGIN_SECONDS: Final = 2.0
_MARGIN_SHARE: Final = 0.1

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallReport:
    """One answered call, for metrics and logs.

    Attributes:
        method: `prepare` or `unprepare`.
        version: entry of `supported_versions` under which it came.
        claims: how many claims it asked for.
        errors: by claim uid, what was answered.
        seconds: from the request to the answer.
    """

    method: str
    version: str
    claims: int
    errors: Mapping[str, str]
    seconds: float


class Gate:
    """Counts the calls under way and turns new ones away once the plugin is to stop."""

    def __init__(self) -> None:
        self.in_flight = 0
        self._closed = False
        self._idle = asyncio.Event()
        self._idle.set()

    def __enter__(self) -> None:
        if self._closed:
            raise GRPCError(Status.UNAVAILABLE, "this instance of the driver is stopping")
        self.in_flight += 1
        self._idle.clear()

    def __exit__(self, *_: object) -> None:
        self.in_flight -= 1
        if not self.in_flight:
            self._idle.set()

    async def drain(self, timeout_seconds: float) -> bool:
        """Let no new call in and wait for those under way; False when some are still running."""
        self._closed = True
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True


class DraService:
    """`DRAPlugin`, in one version."""

    def __init__(
        self, version: str, handler: claims.ClaimHandler, gate: Gate, report: Callable[[CallReport], None]
    ) -> None:
        self._version = version
        self._types = messages.DRA_V1 if version == DRA_V1 else messages.DRA_V1BETA1
        self._handler = handler
        self._gate = gate
        self._report = report

    def __mapping__(self) -> dict[str, Handler]:
        """Return the methods by their path, as grpclib asks for them."""
        types, service = self._types, f"/k8s.io.kubelet.pkg.apis.dra.{self._version}"
        return {
            f"{service}/NodePrepareResources": Handler(
                self._prepare,
                Cardinality.UNARY_UNARY,
                types.NodePrepareResourcesRequest,
                types.NodePrepareResourcesResponse,
            ),
            f"{service}/NodeUnprepareResources": Handler(
                self._unprepare,
                Cardinality.UNARY_UNARY,
                types.NodeUnprepareResourcesRequest,
                types.NodeUnprepareResourcesResponse,
            ),
        }

    async def _prepare(self, stream: Stream[Any, Any]) -> None:
        with self._gate:
            outcomes = await self._answer("prepare", stream, self._handler.prepare, claims.PreparedClaim)
            reply = self._types.NodePrepareResourcesResponse()
            for uid, outcome in outcomes.items():
                entry = reply.claims[uid]
                if isinstance(outcome, claims.ClaimError):
                    entry.error = outcome.message
                else:
                    entry.devices.extend(self._render(device) for device in outcome.devices)
            await stream.send_message(reply)

    async def _unprepare(self, stream: Stream[Any, Any]) -> None:
        with self._gate:
            outcomes = await self._answer("unprepare", stream, self._handler.unprepare, type(None))
            reply = self._types.NodeUnprepareResourcesResponse()
            for uid, outcome in outcomes.items():
                # Mentioning the uid is what counts; without an error the entry is empty.
                entry = reply.claims[uid]
                if isinstance(outcome, claims.ClaimError):
                    entry.error = outcome.message
            await stream.send_message(reply)

    async def _answer(
        self,
        method: str,
        stream: Stream[Any, Any],
        call: Callable[[Sequence[claims.ClaimRef]], Awaitable[object]],
        success: type,
    ) -> dict[str, Any]:
        """Ask the handler; return one outcome for every claim of the request."""
        started = time.monotonic()
        request = await stream.recv_message()
        if request is None:
            raise GRPCError(Status.INVALID_ARGUMENT, "the request has no message")
        asked = {
            claim.uid: claims.ClaimRef(namespace=claim.namespace, name=claim.name, uid=claim.uid)
            for claim in request.claims
        }
        remaining = None if stream.deadline is None else stream.deadline.time_remaining()
        answers = await _call(call, tuple(asked.values()), remaining)
        outcomes = {uid: _outcome(answers, uid, success) for uid in asked}
        errors = {
            uid: outcome.message
            for uid, outcome in outcomes.items()
            if isinstance(outcome, claims.ClaimError)
        }
        self._report(
            CallReport(
                method=method,
                version=self._version,
                claims=len(asked),
                errors=errors,
                seconds=time.monotonic() - started,
            )
        )
        return outcomes

    def _render(self, device: claims.PreparedDevice) -> Any:
        # A result may name `request/subrequest`, the kubelet's books know only the request.
        requests = dict.fromkeys(name.partition("/")[0] for name in device.requests)
        message = self._types.Device(
            request_names=requests,
            pool_name=device.pool,
            device_name=device.device,
            cdi_device_ids=device.cdi_ids,
        )
        if device.share_id is not None and self._version != DRA_V1BETA1:
            message.share_id = device.share_id
        return message


class RegistrationService:
    """`Registration`: tells the kubelet who we are, and hears what it thinks of that."""

    def __init__(
        self,
        driver_name: str,
        endpoint: str,
        versions: Sequence[str],
        notify: Callable[[bool, str], None],
    ) -> None:
        self._info = messages.REGISTRATION.PluginInfo(
            type=_PLUGIN_TYPE, name=driver_name, endpoint=endpoint, supported_versions=versions
        )
        self._notify = notify

    def __mapping__(self) -> dict[str, Handler]:
        """Return the methods by their path, as grpclib asks for them."""
        types = messages.REGISTRATION
        return {
            "/pluginregistration.Registration/GetInfo": Handler(
                self._get_info, Cardinality.UNARY_UNARY, types.InfoRequest, types.PluginInfo
            ),
            "/pluginregistration.Registration/NotifyRegistrationStatus": Handler(
                self._hear_status,
                Cardinality.UNARY_UNARY,
                types.RegistrationStatus,
                types.RegistrationStatusResponse,
            ),
        }

    async def _get_info(self, stream: Stream[Any, Any]) -> None:
        await stream.recv_message()
        await stream.send_message(self._info)

    async def _hear_status(self, stream: Stream[Any, Any]) -> None:
        status = await stream.recv_message()
        if status is None:
            raise GRPCError(Status.INVALID_ARGUMENT, "the request has no message")
        self._notify(status.plugin_registered, status.error)
        await stream.send_message(messages.REGISTRATION.RegistrationStatusResponse())


class HealthService:
    """`DRAResourceHealth`, in every version asked for: the full list on every change and at least every interval."""

    def __init__(
        self,
        versions: Sequence[str],
        source: claims.HealthSource,
        interval_seconds: float = HEALTH_INTERVAL_SECONDS,
    ) -> None:
        self._versions = versions
        self._source = source
        self._interval_seconds = interval_seconds
        self._wakes: set[asyncio.Event] = set()

    def wake(self) -> None:
        """Send the list again now, on every open stream."""
        for wake in self._wakes:
            wake.set()

    def __mapping__(self) -> dict[str, Handler]:
        """Return the methods by their path, as grpclib asks for them."""
        return {
            f"/{version}/NodeWatchResources": Handler(
                self._streamer(types),
                Cardinality.UNARY_STREAM,
                types.NodeWatchResourcesRequest,
                types.NodeWatchResourcesResponse,
            )
            for version, types in (
                (HEALTH_V1, messages.HEALTH_V1),
                (HEALTH_V1ALPHA1, messages.HEALTH_V1ALPHA1),
            )
            if version in self._versions
        }

    def _streamer(self, types: Any) -> Callable[[Stream[Any, Any]], Awaitable[None]]:
        async def stream_health(stream: Stream[Any, Any]) -> None:
            await stream.recv_message()
            wake = asyncio.Event()
            self._wakes.add(wake)
            try:
                while True:
                    # Cleared before the list is read: a change while it is being sent is sent next.
                    wake.clear()
                    await self._send(stream, types)
                    await _wait(wake, self._interval_seconds)
            finally:
                self._wakes.discard(wake)

        return stream_health

    async def _send(self, stream: Stream[Any, Any], types: Any) -> None:
        try:
            async with asyncio.timeout(self._interval_seconds):
                devices = await self._source.health()
        except Exception:  # noqa: BLE001 - a driver may raise anything, and the stream must live on
            # Silence says Unknown after the kubelet's time-out, which is the truth.
            _log.exception("the health of the devices cannot be told")
            return
        now = time.time()
        await stream.send_message(
            types.NodeWatchResourcesResponse(
                devices=[_render_health(types, device, now) for device in devices]
            )
        )


async def _call(
    call: Callable[[Sequence[claims.ClaimRef]], Awaitable[object]],
    asked: Sequence[claims.ClaimRef],
    remaining_seconds: float | None,
) -> Mapping[str, Any]:
    """Call the handler; whatever goes wrong becomes the error of each claim."""
    limit = None
    if remaining_seconds is not None:
        limit = remaining_seconds - min(_MARGIN_SECONDS, _MARGIN_SHARE * remaining_seconds)
    try:
        async with asyncio.timeout(limit) as deadline:
            answers = await call(asked)
    except TimeoutError as error:
        if deadline.expired():
            message = f"not done after {limit:.0f} s and stopped: the kubelet will ask again"
        else:
            _log.exception("the driver failed")
            message = _describe(error)
    except Exception as error:  # noqa: BLE001 - whatever a driver raises is an answer to its claims
        _log.exception("the driver failed")
        message = _describe(error)
    else:
        if isinstance(answers, Mapping):
            return answers
        message = f"the driver answered with {type(answers).__name__} in place of a mapping by claim uid"
    return dict.fromkeys((claim.uid for claim in asked), claims.ClaimError(message))


def _outcome(answers: Mapping[str, Any], uid: str, success: type) -> Any:
    """Take one claim's outcome, or make one that says what is wrong with it."""
    if not uid:
        return claims.ClaimError("the kubelet asked for a claim without a uid")
    if uid not in answers:
        return claims.ClaimError("the driver gave no answer for this claim")
    outcome = answers[uid]
    if isinstance(outcome, claims.ClaimError):
        # An empty error would read as success; and half a surrogate pair, which JSON of a tenant may hold, as no text.
        text = outcome.message.encode(errors="replace").decode()
        return claims.ClaimError(text or "the driver failed without saying why")
    if isinstance(outcome, success):
        return outcome
    return claims.ClaimError(f"the driver answered with {type(outcome).__name__} for this claim")


def _render_health(types: Any, device: claims.DeviceHealth, now: float) -> Any:
    text = device.message.encode()[:_HEALTH_MESSAGE_BYTES].decode(errors="ignore")
    return types.DeviceHealth(
        device=types.DeviceIdentifier(pool_name=device.pool, device_name=device.device),
        health=device.state.value,
        last_updated_time=int(now if device.observed_at is None else device.observed_at),
        health_check_timeout_seconds=device.timeout_seconds or 0,
        message=text,
    )


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


async def _wait(event: asyncio.Event, timeout_seconds: float) -> None:
    try:
        async with asyncio.timeout(timeout_seconds):
            await event.wait()
    except TimeoutError:
        return
