"""Leader election on a Lease: of several processes one leads, and never two at a time.

Theory of operation.

The leader writes the Lease every `renew_seconds`. A candidate takes it when it is free, or when it has not changed
for the holder's `leaseDurationSeconds` as measured by the candidate's own monotonic clock from its first sight of
that state: what the holder's clock says (`renewTime`) is for people. Writes carry the resource version, so of two
candidates one wins. The leader counts its time from before it sent the last successful renewal, which no candidate
can have seen earlier, and stops leading `margin` before the duration is over:

    leader     send renewal ─────────────── stop leading │ (margin: cancelled work ends)
    candidate          └ sees it ──────────────────────────────────── may take it
               0                        duration - margin  duration

Two leaders are excluded as long as work that is cancelled ends within the margin and clocks run at one speed; no
Lease can do better. At rest both sides send one request in `renew_seconds`.

`seize` takes a Lease from a leader that is not silent. That one can renew no more, so it stops at the latest when the
duration that it wrote itself is over; who seizes waits for that long before it acts.
"""

import asyncio
import datetime as dt
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

from gpupolicy.adapters import logs
from gpupolicy.adapters.kube import backoff, client, errors, resources, wire

logger = logging.getLogger(__name__)

RELEASE_SECONDS: Final = 5.0
_RETRY_SECONDS: Final = 1.0
_SEIZE_ATTEMPTS: Final = 5


def _now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)


class LeaderElection:
    """One candidate for one Lease."""

    def __init__(
        self,
        kube: client.Kube,
        namespace: str,
        name: str,
        identity: str,
        *,
        duration_seconds: int = 15,
        renew_seconds: float = 10.0,
        margin_seconds: float = 2.0,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], dt.datetime] = _now,
    ) -> None:
        """Prepare a candidate.

        Args:
            kube: the client.
            namespace: of the Lease.
            name: of the Lease.
            identity: of this process, different from that of every other one (the pod's name or UID).
            duration_seconds: how long a silent leader keeps the Lease.
            renew_seconds: how often the leader renews and a candidate looks.
            margin_seconds: how long before the end a leader that cannot renew stops leading.
            clock: seconds that never go back; all decisions are made by it.
            wall_clock: what the Lease shows to people.

        Raises:
            ValueError: there would be no time for a second attempt to renew.
        """
        if not 0 < renew_seconds < duration_seconds - margin_seconds:
            raise ValueError(
                f"renew_seconds {renew_seconds} must be less than duration_seconds {duration_seconds} "
                f"less margin_seconds {margin_seconds}"
            )
        self._kube = kube
        self._namespace = namespace
        self._name = name
        self._identity = identity
        self._duration_seconds = duration_seconds
        self._renew_seconds = renew_seconds
        self._margin_seconds = margin_seconds
        self._clock = clock
        self._wall_clock = wall_clock
        self._lease: wire.Object | None = None
        self._trouble = logs.Trouble(logger)
        self._held_since: float | None = None
        self._seen: tuple[str, float] = ("", 0.0)

    @property
    def leads(self) -> bool:
        """Whether this process may act as the leader now."""
        return self._left_seconds() > 0

    async def run(self, lead: Callable[[], Awaitable[None]]) -> None:
        """Become leader and call `lead`; cancel it when the Lease is lost, and become leader again.

        Returns when `lead` returns. The Lease is given back whenever `lead` has ended, also when this is cancelled.

        Raises:
            Exception: whatever `lead` raised.
        """
        while True:
            await self._acquire()
            logger.info("Leading as %s", self._identity)
            done = await self._lead(lead)
            if done:
                return
            logger.warning("The lease %s/%s is lost", self._namespace, self._name)

    async def _lead(self, lead: Callable[[], Awaitable[None]]) -> bool:
        """Return whether `lead` came to its own end; False if the Lease was lost."""
        work = asyncio.ensure_future(lead())
        renewal = asyncio.create_task(self._renew_while_possible())
        try:
            await asyncio.wait({work, renewal}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                # It is told before it is cancelled, so that its last steps do not take it for the leader.
                self._held_since = None
                return False
            work.result()
            return True
        finally:
            # The Lease goes back only after the work has ended, or the next leader would meet it.
            await _ended(work)
            await _ended(renewal)
            await self._release()

    async def _acquire(self) -> None:
        pause = backoff.Backoff(_RETRY_SECONDS, self._renew_seconds)
        while True:
            try:
                seconds = await self._try_acquire()
                self._trouble.over("The lease %s/%s can be read again", self._namespace, self._name)
                if seconds is None:
                    return
            except errors.ApiError as error:
                self._trouble.tell(
                    f"read {error.reason}",
                    "The lease %s/%s cannot be read: %s",
                    self._namespace,
                    self._name,
                    error,
                )
                seconds = pause.next_seconds()
            else:
                pause.reset()
            await asyncio.sleep(seconds)

    async def _try_acquire(self) -> float | None:
        """Take the Lease and return None, or return when to look again."""
        try:
            lease = await self._kube.get(resources.LEASES, self._name, self._namespace)
        except errors.NotFound:
            lease = None
        if lease is not None and (left := self._foreign_seconds(lease)) > 0:
            return min(left, self._renew_seconds * backoff.between(0.9, 1.1))
        started = self._clock()
        try:
            self._lease = await (self._create() if lease is None else self._write(lease, taking=True))
        except errors.Conflict:
            return self._renew_seconds * backoff.between(0.9, 1.1)
        self._held_since = started
        return None

    def _foreign_seconds(self, lease: wire.Object) -> float:
        """Return for how long the Lease is another's unless it changes; 0 when it may be taken."""
        spec = lease.get("spec") or {}
        if spec.get("holderIdentity") in {None, "", self._identity}:
            return 0.0
        version = str(lease["metadata"]["resourceVersion"])
        if version != self._seen[0]:
            self._seen = (version, self._clock())
        duration = spec.get("leaseDurationSeconds") or self._duration_seconds
        # A tenth of a second more, because the wait ends a little early or late.
        return max(0.0, self._seen[1] + duration + 0.1 - self._clock())

    async def _renew_while_possible(self) -> None:
        """Return when the Lease is lost or its time is over."""
        wait = self._renew_seconds
        while (left := self._left_seconds()) > 0:
            await asyncio.sleep(min(wait, left))
            if (left := self._left_seconds()) <= 0 or self._lease is None:
                return
            started = self._clock()
            try:
                # A connection that hangs must leave time for another attempt.
                timeout_seconds = max(left / 2, _RETRY_SECONDS / 2)
                self._lease = await self._write(self._lease, taking=False, timeout_seconds=timeout_seconds)
            except errors.Conflict:
                held = await self._still_ours(left)
                if held is False:
                    return
                wait = 0.0 if held else _RETRY_SECONDS
            except errors.ApiError as error:
                self._trouble.tell(
                    f"renew {error.reason}",
                    "The lease %s/%s was not renewed: %s",
                    self._namespace,
                    self._name,
                    error,
                )
                wait = _RETRY_SECONDS
            else:
                self._held_since = started
                self._trouble.over("The lease %s/%s is renewed again", self._namespace, self._name)
                wait = self._renew_seconds

    async def _still_ours(self, timeout_seconds: float) -> bool | None:
        """Look at the Lease after a conflict: our own write whose answer got lost, a label, or another leader.

        None means that it could not be read.
        """
        try:
            lease = await self._kube.get(
                resources.LEASES, self._name, self._namespace, timeout_seconds=timeout_seconds
            )
        except errors.NotFound:
            return False
        except errors.ApiError:
            return None
        self._lease = lease
        return (lease.get("spec") or {}).get("holderIdentity") == self._identity

    def _left_seconds(self) -> float:
        if self._held_since is None:
            return 0.0
        return self._held_since + self._duration_seconds - self._margin_seconds - self._clock()

    async def _create(self) -> wire.Object:
        body = {
            "metadata": {"name": self._name, "namespace": self._namespace},
            "spec": self._spec({}, taking=True),
        }
        return await self._kube.create(resources.LEASES, body, timeout_seconds=self._renew_seconds)

    async def _write(
        self, lease: wire.Object, *, taking: bool, timeout_seconds: float | None = None
    ) -> wire.Object:
        body = {**lease, "spec": self._spec(lease.get("spec") or {}, taking=taking)}
        limit = self._renew_seconds if timeout_seconds is None else timeout_seconds
        return await self._kube.replace(resources.LEASES, body, timeout_seconds=limit)

    def _spec(self, previous: dict[str, Any], *, taking: bool) -> dict[str, Any]:
        now = wire.micro_time(self._wall_clock())
        spec = {
            **previous,
            "holderIdentity": self._identity,
            "leaseDurationSeconds": self._duration_seconds,
            "renewTime": now,
        }
        if taking:
            spec["acquireTime"] = now
            changed = previous.get("holderIdentity") != self._identity
            spec["leaseTransitions"] = (previous.get("leaseTransitions") or 0) + int(
                changed and bool(previous)
            )
        return spec

    async def _release(self) -> None:
        """Give the Lease back if it is ours, so that another candidate need not wait; never raise for it."""
        lease, was_ours = self._lease, self.leads
        self._lease, self._held_since = None, None
        if lease is None or not was_ours:
            return
        body = {**lease, "spec": {**lease.get("spec", {}), "holderIdentity": "", "leaseDurationSeconds": 1}}
        write = self._kube.replace(resources.LEASES, body, timeout_seconds=RELEASE_SECONDS)
        try:
            await asyncio.shield(asyncio.ensure_future(write))
        except errors.ApiError as error:
            logger.info("The lease %s/%s was not given back: %s", self._namespace, self._name, error)


async def _ended(task: "asyncio.Future[None]") -> None:
    """Cancel a task unless it is done, and wait for its end; an error on the way out is logged."""
    if task.done():
        return
    task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        pass
    except Exception:
        logger.exception("Work that was told to stop leading failed")


async def seize(kube: client.Kube, namespace: str, name: str, identity: str, *, seconds: int) -> float:
    """Take a Lease whoever holds it, for one thing that has to be done without a leader.

    Args:
        kube: the client.
        namespace: of the Lease.
        name: of the Lease.
        identity: who holds it from now on; the same one may call this again, to say for how long from then on.
        seconds: how long candidates leave it alone from now on.

    Returns:
        For how many seconds the leader before may still act.

    Raises:
        ApiError: the API server refused, or somebody else wrote it at every attempt.
    """
    for attempt in range(_SEIZE_ATTEMPTS):
        now = wire.micro_time(_now())
        spec: dict[str, Any] = {"holderIdentity": identity, "leaseDurationSeconds": seconds, "renewTime": now}
        try:
            lease = await kube.get(resources.LEASES, name, namespace)
        except errors.NotFound:
            body: wire.Object = {"metadata": {"name": name, "namespace": namespace}, "spec": spec}
            held_seconds, writing = 0.0, kube.create(resources.LEASES, body)
        else:
            before = lease.get("spec") or {}
            is_held = before.get("holderIdentity") not in {None, "", identity}
            held_seconds = float(before.get("leaseDurationSeconds") or 0) if is_held else 0.0
            writing = kube.replace(resources.LEASES, {**lease, "spec": {**before, **spec}})
        try:
            await writing
        except errors.Conflict:
            if attempt + 1 == _SEIZE_ATTEMPTS:
                raise
        else:
            return held_seconds
    raise AssertionError("unreachable")
