"""The controller's process: composes the parts, leads or waits, and ends in an orderly way.

    CRDs there ─> reflectors and kopf fill the copies ─> synced ─> lease ─> workers run keys
                                                                    │ lost: workers end, the lease is asked for again
    SIGTERM ─> workers end ─> lease given back ─> watches end ─> connections close

A candidate that does not lead keeps its copies up to date, so that it can act at once when it does.
"""

import argparse
import asyncio
import contextlib
import datetime as dt
import logging
import math
import os
import signal
import socket
import sys
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpupolicy import __version__
from gpupolicy.adapters import kube, listening, logs
from gpupolicy.controller import (
    cleanup,
    evaluation,
    expressions,
    health,
    metrics,
    policy_watch,
    preflight,
    reconcile,
    watches,
)
from gpupolicy.controller.queue import WorkQueue
from gpupolicy.controller.world import World

# Not __name__, which is __main__ when the module is run as a program.
logger = logging.getLogger("gpupolicy.controller.app")

WORKERS: Final = 4
SPACING_SECONDS: Final = 0.3
"""Least time between two runs of one key: a burst of events becomes one run at once and one after it."""

OVERDUE_SECONDS: Final = 180.0
SILENCE_SECONDS: Final = 180.0
"""Reflectors hear from the API server at least once a minute (a bookmark)."""

LEASE_NAME: Final = "gpupolicy-controller"
_RENEW_SECONDS: Final = 10.0
_LONGEST_SECONDS: Final = 86400
_NAMESPACE_FILE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


@dataclass(frozen=True, slots=True)
class Options:
    """What the process is started with.

    Attributes:
        kubeconfig: path of a kubeconfig file; None as in `kube.Kube.connect`.
        namespace: where the Lease lives.
        identity: who we are in the Lease and in events.
        health_host: address of the health endpoints.
        health_port: their port; 0 takes a free one.
        stale_after_seconds: when an agent that is silent is no longer believed.
        clean_up_seconds: make cards whole where idle, waiting for agents this long, in place of running; None runs.
    """

    kubeconfig: str | None
    namespace: str
    identity: str
    health_host: str = "0.0.0.0"  # noqa: S104 - the kubelet asks from outside of the pod
    health_port: int = 8080
    stale_after_seconds: float = reconcile.STALE_AFTER_SECONDS
    clean_up_seconds: float | None = None


class Controller:
    """All parts of one process."""

    def __init__(self, client: kube.Kube, options: Options) -> None:
        self._client = client
        self._options = options
        self.world = World()
        self.queue: WorkQueue[reconcile.Key] = WorkQueue(spacing_seconds=SPACING_SECONDS)
        router = watches.Router(self.world, self.queue)
        self._reflectors = watches.reflectors(client, self.world, router)
        self._access_reflectors = watches.access_reflectors(client, self.world, router)
        self._policies = policy_watch.PolicyWatch(client, options.kubeconfig, router.policy)
        self._election = kube.LeaderElection(
            client,
            options.namespace,
            LEASE_NAME,
            options.identity,
            duration_seconds=cleanup.LEADER_SECONDS,
            renew_seconds=_RENEW_SECONDS,
        )
        self._trouble = logs.Trouble(logger)
        self._refused: set[reconcile.Key] = set()
        """Keys whose last run the API server did not answer, or not let in."""
        self.metrics = metrics.for_controller(self.world, self.queue, lambda: self._election.leads)
        self.reconciler = reconcile.Reconciler(
            client,
            self.world,
            self.queue,
            judges=expressions.Expressions(client, evaluation.evaluate, evaluation.reads),
            poster=metrics.MeasuredPoster(client, options.identity, self.metrics),
            clock=_now,
            stale_after_seconds=options.stale_after_seconds,
            unreadable=self._unreadable,
        )
        self._health = health.HealthServer(
            health.Checks(
                alive={"work": self._overdue},
                ready={"copies": self._not_synced, "api-server": self._silence},
            ),
            self.metrics,
            host=options.health_host,
            port=options.health_port,
        )

    async def run(self) -> None:
        """Run until cancelled."""
        logger.info("gpupolicy-controller %s as %s", __version__, self._options.identity)
        await self._health.start(lambda port: logger.info("health on port %d", port))
        try:
            await preflight.wait(self._client, _now)
            async with asyncio.TaskGroup() as tasks:
                for reflector in (*self._reflectors, *self._access_reflectors):
                    tasks.create_task(reflector.run(), name=f"reflector-{reflector.resource}")
                tasks.create_task(self._policies.run(), name="policies")
                await self._synced()
                logger.info("The copies are complete: %d policies, %d nodes", *self._sizes())
                await self._election.run(self._lead)
        finally:
            await self._health.stop()

    async def _synced(self) -> None:
        for reflector in self._reflectors:
            await reflector.synced.wait()
        for reflector in self._access_reflectors:
            await reflector.answered.wait()
        await self._policies.synced.wait()

    def _unreadable(self, kind: str) -> str:
        return next((r.refusal for r in self._access_reflectors if r.resource.kind == kind), "")

    def _sizes(self) -> tuple[int, int]:
        return len(self.world.policies), len(self.world.nodes)

    async def _lead(self) -> None:
        """Do the work of the leader until cancelled."""
        self.reconciler.add_all()
        async with asyncio.TaskGroup() as tasks:
            for number in range(WORKERS):
                tasks.create_task(self._work(), name=f"worker-{number}")

    async def _work(self) -> None:
        while True:
            key = await self.queue.get()
            with logs.operation(" ".join(key).strip()):
                await self._run(key)

    async def _run(self, key: reconcile.Key) -> None:
        """Run one key and say in the queue what came of it."""
        began = time.monotonic()
        try:
            with metrics.run(self.metrics, key[0]):
                await self.reconciler.run(key)
        except kube.ApiError as error:
            least = error.retry_after_seconds if isinstance(error, kube.TooManyRequests) else 0.0
            seconds = self.queue.retry(key, at_least_seconds=least)
            text = "%s %s failed and is tried again in %.1f seconds: %s"
            if isinstance(error, kube.Unauthorized | kube.Unavailable):
                # It is the same for all keys, and every one of them would say it at every attempt.
                self._refused.add(key)
                self._trouble.tell(error.reason, text, *key, seconds, error)
            else:
                logger.warning(text, *key, seconds, error)
        except asyncio.CancelledError:
            self.queue.done(key)
            raise
        except Exception:
            # A bug in what one key does must not stop the others.
            seconds = self.queue.retry(key, at_least_seconds=5.0)
            logger.exception("%s %s failed and is tried again in %.1f seconds", *key, seconds)
        else:
            self.queue.done(key)
            self._note_success(key)
            logger.debug("%s %s is in line, after %.3f seconds", *key, time.monotonic() - began)

    def _note_success(self, key: reconcile.Key) -> None:
        if key in self._refused:
            self._refused.discard(key)
            if not self._refused:
                self._trouble.over("The API server takes all requests again")

    def _overdue(self) -> str | None:
        seconds = self.queue.oldest_seconds() if self._election.leads else 0.0
        return f"work is due for {seconds:.0f} seconds" if seconds > OVERDUE_SECONDS else None

    def _not_synced(self) -> str | None:
        waiting = [str(r.resource) for r in self._reflectors if not r.synced.is_set()]
        waiting += [str(r.resource) for r in self._access_reflectors if not r.answered.is_set()]
        waiting += [] if self._policies.synced.is_set() else [str(kube.GPUPOLICIES)]
        return f"not read yet: {', '.join(waiting)}" if waiting else None

    def _silence(self) -> str | None:
        heard = (*self._reflectors, *(r for r in self._access_reflectors if not r.refusal))
        ages = {r.resource: r.last_contact_age_seconds() for r in heard}
        silent = [
            f"{resource} for {age:.0f} seconds" for resource, age in ages.items() if age > SILENCE_SECONDS
        ]
        if not self._policies.is_alive:
            silent.append(f"{kube.GPUPOLICIES}: the watch is down")
        return f"silent: {', '.join(silent)}" if silent else None


def _now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)


async def serve(options: Options) -> None:
    """Run a controller until SIGTERM or SIGINT."""
    loop = asyncio.get_running_loop()
    client = kube.Kube.connect(options.kubeconfig, user_agent=f"gpupolicy-controller/{__version__}")
    async with client:
        controller = Controller(client, options)
        client.observe(controller.metrics.request)
        work = asyncio.ensure_future(controller.run())
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, work.cancel)
        with contextlib.suppress(asyncio.CancelledError):
            await work
    logger.info("Stopped")


async def clean_up(options: Options, seconds: float) -> int:
    """Make cards whole where they are idle; return the exit code."""
    client = kube.Kube.connect(options.kubeconfig, user_agent=f"gpupolicy-cleanup/{__version__}")
    async with client:
        work = cleanup.Cleanup(
            client,
            options.namespace,
            LEASE_NAME,
            f"cleanup_{options.identity}",
            seconds=seconds,
            stale_after_seconds=options.stale_after_seconds,
            tell=cleanup.print_line,
        )
        try:
            await work.run()
        except kube.ApiError as error:
            logger.error("The clean-up failed: %s", error)  # noqa: TRY400 - the message says all
            return 1
    return 0


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    # Not a number is neither above nor below any age: with it no agent would ever count as silent.
    if not 0 <= seconds <= _LONGEST_SECONDS:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no time: give seconds from 0 to {_LONGEST_SECONDS}, which is a day"
        )
    return seconds


def _parse(arguments: Sequence[str] | None) -> tuple[Options, str]:
    parser = argparse.ArgumentParser(
        prog="gpupolicy-controller",
        description="Turns GpuPolicies into DeviceClasses, and says on each GpuNode which card gets which layout.",
    )
    parser.add_argument(
        "--kubeconfig", help="kubeconfig file (default: KUBECONFIG, ~/.kube/config, the pod's account)"
    )
    parser.add_argument(
        "--namespace", default=_own_namespace(), help="namespace of the Lease (default: %(default)s)"
    )
    parser.add_argument(
        "--identity", default=_own_identity(), help="who this is in the Lease (default: the host name)"
    )
    parser.add_argument("--health-host", default="0.0.0.0", help="address of /healthz and /readyz")  # noqa: S104
    parser.add_argument(
        "--health-port", type=listening.port, default=8080, help="their port (default: %(default)s)"
    )
    parser.add_argument(
        "--stale-after-seconds",
        type=_seconds,
        default=reconcile.STALE_AFTER_SECONDS,
        help="when a silent agent is no longer believed (default: %(default)s)",
    )
    parser.add_argument(
        "--clean-up-seconds",
        type=_seconds,
        metavar="SECONDS",
        help="do not run, but make cards whole where they are idle, waiting for agents no longer than this",
    )
    parser.add_argument("--log-level", choices=["debug", "info", "warning", "error"], default="info")
    parser.add_argument("--version", action="version", version=__version__)
    found = parser.parse_args(arguments)
    options = Options(
        kubeconfig=found.kubeconfig,
        namespace=found.namespace,
        identity=found.identity,
        health_host=found.health_host,
        health_port=found.health_port,
        stale_after_seconds=found.stale_after_seconds,
        clean_up_seconds=found.clean_up_seconds,
    )
    return options, found.log_level


def _own_namespace() -> str:
    with contextlib.suppress(OSError):
        return _NAMESPACE_FILE.read_text(encoding="utf-8").strip()
    return os.environ.get("POD_NAMESPACE", "gpupolicy")


def _own_identity() -> str:
    # A restarted container keeps the host name; it must not take the Lease of its predecessor for its own.
    return f"{os.environ.get('POD_NAME') or socket.gethostname()}_{uuid.uuid4().hex[:8]}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the controller; the entry point of `gpupolicy-controller`."""
    options, level = _parse(arguments)
    logs.configure(level)
    if level != "debug":
        # Kopf says at every start in a thread that it leaves signals alone, which is what we want of it.
        logging.getLogger("kopf._core.reactor.running").setLevel(logging.ERROR)
    try:
        if options.clean_up_seconds is not None:
            return asyncio.run(clean_up(options, options.clean_up_seconds))
        asyncio.run(serve(options))
    except kube.ConfigurationError as error:
        logger.error("%s", error)  # noqa: TRY400 - the message says all, a traceback would hide it
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
