"""What the controller measures: its runs, its queue, and what stands in the policies' status.

The numbers of policies are those of `kubectl get gpupolicies`: both come from the status, so they never disagree.
"""

import datetime as dt
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from gpupolicy import __version__
from gpupolicy.adapters import kube, metrics
from gpupolicy.adapters.metrics import Metrics
from gpupolicy.api.conditions import ConditionType
from gpupolicy.api.policy import GpuPolicyStatus
from gpupolicy.controller import apply, events
from gpupolicy.controller.queue import WorkQueue
from gpupolicy.controller.reconcile import Key
from gpupolicy.controller.world import World


def for_controller(world: World, queue: WorkQueue[Key], leads: Callable[[], bool]) -> Metrics:
    """Return the metrics of a controller.

    Args:
        world: the copies.
        queue: what is due.
        leads: whether this process leads now.
    """

    def one(value: float) -> metrics.Samples:
        return [({}, value)]

    def each(value: Callable[[GpuPolicyStatus], float]) -> Callable[[], metrics.Samples]:
        return lambda: [({"policy": name}, value(status)) for name, status in _statuses(world)]

    return Metrics(
        metrics.CONTROLLER,
        version=__version__,
        observed={
            "gpupolicy_leader": lambda: one(leads()),
            "gpupolicy_queue_length": lambda: one(len(queue)),
            "gpupolicy_queue_oldest_seconds": lambda: one(queue.oldest_seconds()),
            "gpupolicy_policy_ready": each(_ready),
            "gpupolicy_policy_gpus": lambda: _gpus(world),
            "gpupolicy_policy_devices": each(lambda status: status.devices),
            "gpupolicy_policy_allocated_devices": each(lambda status: status.allocated),
            "gpupolicy_policy_free_devices": each(lambda status: status.free),
            "gpupolicy_nodes": lambda: one(len(world.nodes)),
        },
    )


class MeasuredPoster(apply.Poster):
    """Posts events, and counts those that tell of drift."""

    def __init__(self, client: kube.Kube, identity: str, measured: Metrics) -> None:
        super().__init__(client, identity)
        self._metrics = measured

    async def post(self, event: events.Event, now: dt.datetime) -> None:
        """Count and post one event."""
        if event.reason == events.EventReason.DRIFT:
            self._metrics.count("gpupolicy_drift_total")
        await super().post(event, now)


@contextmanager
def run(measured: Metrics, kind: str) -> Iterator[None]:
    """Count and time one run; an exception makes it an error and passes on."""
    began = time.monotonic()
    result = "error"
    measured.add("gpupolicy_active_workers", 1, controller=kind)
    try:
        yield
        result = "success"
    finally:
        measured.add("gpupolicy_active_workers", -1, controller=kind)
        measured.count("gpupolicy_reconcile_total", controller=kind, result=result)
        measured.observe("gpupolicy_reconcile_time_seconds", time.monotonic() - began, controller=kind)


def _statuses(world: World) -> list[tuple[str, GpuPolicyStatus]]:
    found: Mapping[str, GpuPolicyStatus] = {
        name: entry.policy.status for name, entry in world.policies.items()
    }
    return sorted(found.items(), key=lambda item: item[0])


def _ready(status: GpuPolicyStatus) -> float:
    return float(any(c.type == ConditionType.READY and c.status == "True" for c in status.conditions))


def _gpus(world: World) -> metrics.Samples:
    for name, status in _statuses(world):
        applied, _, selected = status.gpus.partition("/")
        yield {"policy": name, "state": "applied"}, float(applied)
        yield {"policy": name, "state": "selected"}, float(selected)
