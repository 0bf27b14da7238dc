"""What the agent measures: wrappers around the claims handler and the cards, and the gauges of the node's state.

The wrapped parts know nothing of metrics; their results and errors pass through unchanged.
"""

import time
from collections.abc import Awaitable, Sequence
from typing import TypeVar

from gpupolicy import __version__
from gpupolicy.adapters import logs, metrics
from gpupolicy.adapters.kubeletplugin import claims as wire
from gpupolicy.adapters.metrics import Metrics
from gpupolicy.adapters.nvml.errors import NvmlError
from gpupolicy.adapters.nvml.instances import Mode
from gpupolicy.adapters.nvml.session import Nvml, Observation
from gpupolicy.agent.journal import Journal
from gpupolicy.agent.state import NodeState
from gpupolicy.core.inventory import Gpu, Health, Instance, Placement
from gpupolicy.core.refusals import Refusal

_T = TypeVar("_T")


def for_node(state: NodeState) -> Metrics:
    """Return the metrics of the agent of a node."""

    def one(value: float) -> metrics.Samples:
        return [({}, value)]

    return Metrics(
        metrics.AGENT,
        version=__version__,
        observed={
            "gpupolicy_node_gpus": lambda: one(len(state.inventory.gpus)),
            "gpupolicy_node_devices": lambda: one(len(state.devices)),
            "gpupolicy_node_unhealthy_devices": lambda: one(
                sum(health is not Health.HEALTHY for health, _ in state.health.values())
            ),
            "gpupolicy_node_prepared_claims": lambda: one(len(state.claims)),
            "gpupolicy_node_allocated_devices": lambda: one(
                len({d.device.name for claim in state.claims.values() for d in claim.devices})
            ),
        },
    )


class MeasuredLoop(Journal):
    """Counts and times what the reconcile loop tells."""

    def __init__(self, measured: Metrics) -> None:
        self._metrics = measured

    def looked(self, seconds: float) -> None:
        """Time a pass."""
        self._metrics.observe("gpupolicy_node_reconcile_time_seconds", seconds)

    def applied(self, seconds: float, failure: Refusal | None) -> None:
        """Count and time an attempt."""
        self._metrics.count("gpupolicy_node_apply_total", result="error" if failure else "success")
        if failure:
            self._metrics.count("gpupolicy_node_apply_errors_total", reason=failure.reason.value)
        self._metrics.observe("gpupolicy_node_apply_duration_seconds", seconds)

    def drifted(self) -> None:
        """Count a card that has not its layout any more."""
        self._metrics.count("gpupolicy_node_drift_total")


class MeasuredClaims:
    """A claims handler whose calls are counted and timed; what is logged in one call carries one id."""

    def __init__(self, handler: wire.ClaimHandler, measured: Metrics) -> None:
        self._handler = handler
        self._metrics = measured

    async def prepare(
        self, claims_to_prepare: Sequence[wire.ClaimRef]
    ) -> dict[str, wire.PreparedClaim | wire.ClaimError]:
        """Prepare claims, see the handler."""
        began = time.monotonic()
        with logs.operation("prepare"):
            answers = dict(await self._handler.prepare(claims_to_prepare))
        self._metrics.observe("gpupolicy_dra_prepare_duration_seconds", time.monotonic() - began)
        for answer in answers.values():
            self._metrics.count("gpupolicy_dra_prepare_claims_total", result=_result(answer))
        return answers

    async def unprepare(self, claims_to_undo: Sequence[wire.ClaimRef]) -> dict[str, wire.ClaimError | None]:
        """Undo claims, see the handler."""
        began = time.monotonic()
        with logs.operation("unprepare"):
            answers = dict(await self._handler.unprepare(claims_to_undo))
        self._metrics.observe("gpupolicy_dra_unprepare_duration_seconds", time.monotonic() - began)
        for answer in answers.values():
            self._metrics.count("gpupolicy_dra_unprepare_claims_total", result=_result(answer))
        return answers


class MeasuredCards:
    """The cards, with changes counted and timed, and errors counted."""

    def __init__(self, nvml: Nvml, measured: Metrics) -> None:
        self._nvml = nvml
        self._metrics = measured

    async def observe(self, *, skip: frozenset[str] = frozenset()) -> Observation:
        """Read every card, see `Nvml.observe`."""
        return await self._nvml.observe(skip=skip)

    def slow(self) -> dict[str, str]:
        """Say which cards do not answer, see `Nvml.slow`."""
        return self._nvml.slow()

    async def read(self, gpu_uuid: str) -> Gpu:
        """Read one card, see `Nvml.read`."""
        try:
            return await self._nvml.read(gpu_uuid)
        except NvmlError as error:
            self._metrics.count("gpupolicy_nvml_errors_total", fault=error.fault.value)
            raise

    async def set_mig_mode(self, gpu_uuid: str, *, enabled: bool) -> Mode:
        """Set the MIG mode, see `Nvml.set_mig_mode`."""
        return await self._measure("set_mig_mode", self._nvml.set_mig_mode(gpu_uuid, enabled=enabled))

    async def create_instance(self, gpu_uuid: str, profile_id: int, placement: Placement) -> Instance:
        """Create an instance, see `Nvml.create_instance`."""
        return await self._measure(
            "create_instance", self._nvml.create_instance(gpu_uuid, profile_id, placement)
        )

    async def destroy_instance(
        self, gpu_uuid: str, profile_id: int, placement: Placement, *, uuid: str = ""
    ) -> bool:
        """Destroy an instance, see `Nvml.destroy_instance`."""
        return await self._measure(
            "destroy_instance", self._nvml.destroy_instance(gpu_uuid, profile_id, placement, uuid=uuid)
        )

    async def _measure(self, operation: str, work: Awaitable[_T]) -> _T:
        began = time.monotonic()
        result = "error"
        try:
            answer = await work
            result = "success"
        except NvmlError as error:
            self._metrics.count("gpupolicy_nvml_errors_total", fault=error.fault.value)
            raise
        finally:
            self._metrics.count("gpupolicy_partition_operations_total", operation=operation, result=result)
            self._metrics.observe(
                "gpupolicy_partition_operation_duration_seconds",
                time.monotonic() - began,
                operation=operation,
            )
        return answer


def _result(answer: wire.PreparedClaim | wire.ClaimError | None) -> str:
    return "error" if isinstance(answer, wire.ClaimError) else "success"
