"""Prometheus metrics: what each process exposes, as data, and the registry that is built from it.

The two tables are the only list there is: the registries are built from them, docs/metrics.md and the tests of dashboard
and alerts read them. Every label has a bounded set of values that stands here, except the name of a policy, which is as
bounded as the admin's own objects. Nodes, pods, namespaces and texts are no labels: the node comes from the scrape.
Series of known values exist from the start, with zero, so that a rate is right from its first increment.

prometheus_client costs 0.75 MiB beside what the agent has loaded anyway; own code for the text format would not pay.
"""

import itertools
import platform
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.process_collector import ProcessCollector

from gpupolicy.api.conditions import Reason

CONTENT_TYPE: Final = CONTENT_TYPE_LATEST
OPEN: Final = ()
"""The values of a label that are not known beforehand."""

_RESULTS: Final = ("success", "error")
_RECONCILE_BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_NODE_BUCKETS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 45.0)


class Kind(StrEnum):
    """How a metric behaves."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"
    OBSERVED = "observed"
    """A gauge that is computed when it is scraped."""


@dataclass(frozen=True, slots=True)
class Descriptor:
    """One family of series.

    Attributes:
        name: with prefix and unit; a counter ends in `_total`.
        kind: how it behaves.
        text: what it counts, for `# HELP` and the documentation.
        labels: label -> its values, `OPEN` where they are not known beforehand.
        buckets: upper bounds of a histogram, in the unit of the name.
    """

    name: str
    kind: Kind
    text: str
    labels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    buckets: tuple[float, ...] = ()


_BUILD = Descriptor(
    "gpupolicy_build_info", Kind.GAUGE, "1, with the versions as labels.", {"version": OPEN, "python": OPEN}
)
_KINDS: Final = {"controller": ("policy", "node", "names")}
_REQUESTS = Descriptor(
    "gpupolicy_api_requests_total",
    Kind.COUNTER,
    "Requests to the API server by class of answer, retries included; a watch counts when it begins.",
    {"method": ("GET", "POST", "PUT", "PATCH", "DELETE"), "code": ("2xx", "4xx", "5xx", "none")},
)

CONTROLLER: Final[tuple[Descriptor, ...]] = (
    _BUILD,
    _REQUESTS,
    Descriptor("gpupolicy_leader", Kind.OBSERVED, "1 in the process that leads."),
    Descriptor(
        "gpupolicy_reconcile_total",
        Kind.COUNTER,
        "Runs of reconciliation.",
        {**_KINDS, "result": _RESULTS},
    ),
    Descriptor(
        "gpupolicy_reconcile_time_seconds",
        Kind.HISTOGRAM,
        "How long runs took.",
        _KINDS,
        buckets=_RECONCILE_BUCKETS,
    ),
    Descriptor("gpupolicy_active_workers", Kind.GAUGE, "Runs under way.", _KINDS),
    Descriptor(
        "gpupolicy_drift_total",
        Kind.COUNTER,
        "Objects of ours that somebody else had changed or deleted, and that were put right.",
    ),
    Descriptor("gpupolicy_queue_length", Kind.OBSERVED, "Keys that wait or run."),
    Descriptor("gpupolicy_queue_oldest_seconds", Kind.OBSERVED, "For how long the oldest key has been due."),
    Descriptor(
        "gpupolicy_policy_ready",
        Kind.OBSERVED,
        "1 for a policy whose condition Ready is True, else 0.",
        {"policy": OPEN},
    ),
    Descriptor(
        "gpupolicy_policy_gpus",
        Kind.OBSERVED,
        "Cards of a policy: those it selects, and those of them that have its layout.",
        {"policy": OPEN, "state": ("selected", "applied")},
    ),
    Descriptor(
        "gpupolicy_policy_devices", Kind.OBSERVED, "Devices published for a policy.", {"policy": OPEN}
    ),
    Descriptor(
        "gpupolicy_policy_allocated_devices",
        Kind.OBSERVED,
        "Devices of a policy that claims hold.",
        {"policy": OPEN},
    ),
    Descriptor(
        "gpupolicy_policy_free_devices",
        Kind.OBSERVED,
        "Devices of a policy that a new claim could get now.",
        {"policy": OPEN},
    ),
    Descriptor("gpupolicy_nodes", Kind.OBSERVED, "Nodes whose agent has reported cards."),
)

OPERATIONS: Final = ("set_mig_mode", "create_instance", "destroy_instance")
FAULTS: Final = (
    "Unavailable",
    "NotSupported",
    "NotFound",
    "NoPermission",
    "InUse",
    "InsufficientResources",
    "InvalidArgument",
    "GpuLost",
    "Hangs",
    "Changed",
    "Failed",
)
"""The values of `nvml.errors.Fault`; a test holds the two to each other."""
_APPLY_REASONS: Final = (
    Reason.DEGRADED,
    Reason.GPU_UNHEALTHY,
    Reason.LEDGER_CORRUPT,
    Reason.NVML_UNAVAILABLE,
    Reason.OWNERSHIP_CONFLICT,
    Reason.WAITING_FOR_CLAIMS,
    Reason.WAITING_FOR_SLICES,
)
"""Why a card can miss its layout after an attempt; a test holds them to `agent.changes`."""

AGENT: Final[tuple[Descriptor, ...]] = (
    _BUILD,
    _REQUESTS,
    Descriptor(
        "gpupolicy_node_reconcile_time_seconds",
        Kind.HISTOGRAM,
        "How long a look at all cards took, with what follows from it at once.",
        buckets=_NODE_BUCKETS,
    ),
    Descriptor(
        "gpupolicy_node_apply_total",
        Kind.COUNTER,
        "Attempts to bring a card to its layout.",
        {"result": _RESULTS},
    ),
    Descriptor(
        "gpupolicy_node_apply_errors_total",
        Kind.COUNTER,
        "Attempts after which a card had not its layout, by the reason that its GpuNode tells.",
        {"reason": tuple(reason.value for reason in _APPLY_REASONS)},
    ),
    Descriptor(
        "gpupolicy_node_apply_duration_seconds",
        Kind.HISTOGRAM,
        "How long an attempt took, from the withdrawal of devices to the last write.",
        buckets=_NODE_BUCKETS,
    ),
    Descriptor(
        "gpupolicy_node_drift_total",
        Kind.COUNTER,
        "Times that a card was found without the layout that it had, though nothing else was asked for.",
    ),
    Descriptor(
        "gpupolicy_dra_prepare_claims_total", Kind.COUNTER, "Claims prepared, or not.", {"result": _RESULTS}
    ),
    Descriptor(
        "gpupolicy_dra_unprepare_claims_total", Kind.COUNTER, "Claims undone, or not.", {"result": _RESULTS}
    ),
    Descriptor(
        "gpupolicy_dra_prepare_duration_seconds",
        Kind.HISTOGRAM,
        "How long the kubelet waited for a prepare call.",
        buckets=_NODE_BUCKETS,
    ),
    Descriptor(
        "gpupolicy_dra_unprepare_duration_seconds",
        Kind.HISTOGRAM,
        "How long the kubelet waited for an unprepare call.",
        buckets=_NODE_BUCKETS,
    ),
    Descriptor(
        "gpupolicy_partition_operations_total",
        Kind.COUNTER,
        "Changes of cards.",
        {"operation": OPERATIONS, "result": _RESULTS},
    ),
    Descriptor(
        "gpupolicy_partition_operation_duration_seconds",
        Kind.HISTOGRAM,
        "How long a change of a card took.",
        {"operation": OPERATIONS},
        buckets=_NODE_BUCKETS,
    ),
    Descriptor(
        "gpupolicy_nvml_errors_total",
        Kind.COUNTER,
        "NVML calls on cards that did not do what was asked, by kind of fault.",
        {"fault": FAULTS},
    ),
    Descriptor("gpupolicy_node_gpus", Kind.OBSERVED, "Cards seen on this node."),
    Descriptor("gpupolicy_node_devices", Kind.OBSERVED, "Devices of this node that can be prepared."),
    Descriptor(
        "gpupolicy_node_unhealthy_devices", Kind.OBSERVED, "Devices of this node that are not healthy."
    ),
    Descriptor("gpupolicy_node_prepared_claims", Kind.OBSERVED, "Claims that hold devices of this node."),
    Descriptor("gpupolicy_node_allocated_devices", Kind.OBSERVED, "Devices of this node that claims hold."),
)

Samples = Iterable[tuple[Mapping[str, str], float]]
"""What an observed gauge returns: labels and value of each series."""


class Metrics:
    """The registry of one process. Nothing is global, so that tests do not see each other's numbers."""

    def __init__(
        self,
        descriptors: Iterable[Descriptor],
        *,
        version: str,
        observed: Mapping[str, Callable[[], Samples]],
    ) -> None:
        """Build the registry.

        Args:
            descriptors: `CONTROLLER` or `AGENT`.
            version: of the program.
            observed: for every observed gauge, by name, what returns its series now.

        Raises:
            KeyError: an observed gauge has nobody who computes it.
        """
        # When a counter was made is of no use to anybody, and would double the number of families.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._counters: dict[str, Counter] = {}
        self._gauges: dict[str, Gauge] = {}
        self._histograms: dict[str, Histogram] = {}
        for descriptor in descriptors:
            names = list(descriptor.labels)
            match descriptor.kind:
                case Kind.COUNTER:
                    counter = Counter(descriptor.name, descriptor.text, names, registry=self.registry)
                    self._counters[descriptor.name] = counter
                    _create(counter, descriptor)
                case Kind.GAUGE:
                    gauge = Gauge(descriptor.name, descriptor.text, names, registry=self.registry)
                    self._gauges[descriptor.name] = gauge
                    _create(gauge, descriptor)
                case Kind.HISTOGRAM:
                    histogram = Histogram(
                        descriptor.name,
                        descriptor.text,
                        names,
                        registry=self.registry,
                        buckets=descriptor.buckets,
                    )
                    self._histograms[descriptor.name] = histogram
                    _create(histogram, descriptor)
                case Kind.OBSERVED:
                    self.registry.register(_Observed(descriptor, observed[descriptor.name]))
        self.set("gpupolicy_build_info", 1, version=version, python=platform.python_version())

    def count(self, name: str, amount: int = 1, **labels: str) -> None:
        """Add to a counter."""
        counter = self._counters[name]
        (counter.labels(**labels) if labels else counter).inc(amount)

    def set(self, name: str, value: float, **labels: str) -> None:
        """Set a gauge."""
        gauge = self._gauges[name]
        (gauge.labels(**labels) if labels else gauge).set(value)

    def add(self, name: str, amount: float, **labels: str) -> None:
        """Add to a gauge, or take away from it."""
        gauge = self._gauges[name]
        (gauge.labels(**labels) if labels else gauge).inc(amount)

    def observe(self, name: str, value: float, **labels: str) -> None:
        """Put a value into a histogram."""
        histogram = self._histograms[name]
        (histogram.labels(**labels) if labels else histogram).observe(value)

    def request(self, method: str, status: int, _seconds: float) -> None:
        """Count a request to the API server; an observer of `kube.Kube`."""
        code = f"{status // 100}xx" if status else "none"
        self.count("gpupolicy_api_requests_total", method=method, code=code)

    def exposition(self) -> bytes:
        """Return all series in the text format, of content type `CONTENT_TYPE`."""
        return generate_latest(self.registry)


class _Observed:
    def __init__(self, descriptor: Descriptor, sample: Callable[[], Samples]) -> None:
        self._descriptor = descriptor
        self._sample = sample

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """Name the family without computing it: registration must not look at what is not there yet."""
        return [self._family()]

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """Compute the series."""
        family = self._family()
        for labels, value in self._sample():
            family.add_metric([labels[name] for name in self._descriptor.labels], value)
        return [family]

    def _family(self) -> GaugeMetricFamily:
        return GaugeMetricFamily(
            self._descriptor.name, self._descriptor.text, labels=list(self._descriptor.labels)
        )


def _create(metric: Counter | Gauge | Histogram, descriptor: Descriptor) -> None:
    """Make the series of all known label values."""
    if not descriptor.labels or OPEN in descriptor.labels.values():
        return
    for values in itertools.product(*descriptor.labels.values()):
        metric.labels(*values)
