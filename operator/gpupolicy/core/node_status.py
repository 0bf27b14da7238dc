"""What an agent says of its node: the inventory, card by card why it is as it is, and four conditions.

A card tells one reason, the first that applies: nobody wants it; it is sick; a call of its change does not return; its last
change failed; the wish cannot be fulfilled or waits; it is being changed; it stands and the API server does not show it yet;
it is applied.

Times of transition move only when a status does, so equal facts give an equal status, and nothing is written.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from gpupolicy.api.conditions import Condition, ConditionType, Reason, Status
from gpupolicy.api.node import (
    Allocator,
    ClaimReference,
    GpuNodeStatus,
    GpuStatus,
    InstanceStatus,
    MigStatus,
    PlacementStatus,
    ProcessStatus,
    ProfileStatus,
)
from gpupolicy.core.convergence import CardDecision
from gpupolicy.core.devices import quantity
from gpupolicy.core.inventory import ClaimUse, Gpu, Health, Instance, Inventory, Process
from gpupolicy.core.layouts import StaticLayout
from gpupolicy.core.planner import CardPlan
from gpupolicy.core.records import GpuRecord
from gpupolicy.core.refusals import Refusal, cards_text, listing
from gpupolicy.core.steps import steps_of

MESSAGE_LIMIT = 2048
_CONDITION_LIMIT = 4096
_PROCESSES_SHOWN = 16

WHOLE = "whole"
"""How a status writes the layout of a card that is not partitioned."""
EMPTY = "empty"
"""How it writes that of a card in MIG mode without instances."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """Everything that a status is made from.

    Attributes:
        inventory: the cards, with ownership and claims.
        decisions: the decision on each card, by UUID.
        records: what the ledger says of each card, by UUID.
        failures: why the last change of a card failed, by UUID; only of cards that still need a change.
        slow: which call of the driver has not returned, and since when, by UUID.
        shown: names of the devices that the API server shows.
        troubles: what keeps the node as a whole from being ready.
        blind: why the cards cannot be seen; None while they can.
        was_seen: whether they could be seen before.
        allocator: who hands out the cards.
        generation: generation of the spec that was decided on.
        agent_version: version of the agent.
    """

    inventory: Inventory
    decisions: Mapping[str, CardDecision] = field(default_factory=dict)
    records: Mapping[str, GpuRecord] = field(default_factory=dict)
    failures: Mapping[str, Refusal] = field(default_factory=dict)
    slow: Mapping[str, str] = field(default_factory=dict)
    shown: frozenset[str] = frozenset()
    troubles: tuple[Refusal, ...] = ()
    blind: str | None = None
    was_seen: bool = False
    allocator: Allocator = Allocator.NONE
    generation: int = 0
    agent_version: str = ""


def node_status(facts: NodeFacts, previous: GpuNodeStatus | None, *, now: str) -> GpuNodeStatus:
    """Return the status of a node.

    Args:
        facts: what it is made from.
        previous: the status before; its transition times are kept where nothing changed.
        now: RFC 3339 time for the transitions. `last_observed_time` is taken from `previous`.
    """
    gpus = [_card(gpu, facts) for gpu in facts.inventory.gpus]
    before = {c.type: c for c in previous.conditions} if previous else {}
    conditions = [
        _condition(verdict, before.get(verdict[0]), facts.generation, now)
        for verdict in _verdicts(facts, gpus)
    ]
    offered = [d for x in facts.decisions.values() for d in x.published.offered if d.name in facts.shown]
    taken = {d.name for d in offered if _is_taken(facts, d.record.gpu_uuid, d.name)}
    return GpuNodeStatus(
        observed_generation=facts.generation,
        conditions=conditions,
        driver_version=facts.inventory.driver_version or None,
        cuda_version=facts.inventory.cuda_version or None,
        boot_id=facts.inventory.boot_id or None,
        agent_version=facts.agent_version or None,
        allocator=facts.allocator,
        last_observed_time=previous.last_observed_time if previous else None,
        gpu_count=len(gpus),
        mig_gpus=sum(g.mig.enabled for g in gpus),
        devices=len(offered),
        allocated=len(taken),
        gpus=gpus,
    )


def card_reason(gpu: Gpu, facts: NodeFacts) -> Refusal:
    """Return the one reason that a card tells, with its message."""
    decision = facts.decisions.get(gpu.uuid)
    if decision is None or decision.plan is None:
        return Refusal(Reason.IDLE, "")
    candidates = (
        _sickness(gpu),
        _slow(decision, facts),
        None if decision.needs_change else decision.waiting,
        facts.failures.get(gpu.uuid),
        decision.waiting,
        None if decision.is_applied else _pending(decision, facts),
        _unseen(decision, facts),
    )
    settled = Reason.APPLIED if decision.assignment is not None else Reason.IDLE
    return next((c for c in candidates if c is not None), Refusal(settled, ""))


def allocator(*, device_plugin: bool, ours: bool) -> Allocator:
    """Return who hands out the cards, given whether a device plugin advertises any, and whether we do."""
    if device_plugin:
        return Allocator.BOTH if ours else Allocator.DEVICE_PLUGIN
    return Allocator.DRA if ours else Allocator.NONE


def layout_text(gpu: Gpu) -> str:
    """Return what stands on a card, in short: `whole`, `empty`, `2x1g.10gb 1x3g.40gb`."""
    if gpu.instances:
        return str(StaticLayout.of((i.profile, 1) for i in gpu.instances))
    return EMPTY if gpu.mig.enabled else WHOLE


def _sickness(gpu: Gpu) -> Refusal | None:
    if gpu.health is Health.HEALTHY:
        return None
    return Refusal(Reason.GPU_UNHEALTHY, gpu.health_message or f"health is {gpu.health}")


def _slow(decision: CardDecision, facts: NodeFacts) -> Refusal | None:
    """Return that a change hangs, before its deadline makes the card a sick one: nobody needs to wait for pods meanwhile."""
    call = facts.slow.get(decision.gpu.uuid)
    if call is None or not decision.needs_change:
        return None
    besides = f"; besides, it {decision.waiting.message}" if decision.waiting else ""
    return Refusal(Reason.ROLLOUT_PENDING, f"{_pending(decision, facts).message}; {call}{besides}")


def _pending(decision: CardDecision, facts: NodeFacts) -> Refusal:
    plan = decision.plan
    if facts.troubles and not decision.needs_change:
        # There is something to do, and a trouble of the whole node keeps us from it.
        return facts.troubles[0]
    todo = listing(map(str, steps_of(plan))) if isinstance(plan, CardPlan) else ""
    return Refusal(Reason.ROLLOUT_PENDING, f"under way: {todo}" if todo else "under way")


def _unseen(decision: CardDecision, facts: NodeFacts) -> Refusal | None:
    offered = decision.published.offered
    missing = sum(d.name not in facts.shown for d in offered)
    if not missing:
        return None
    which = f"{missing} of its {len(offered)} devices" if len(offered) > 1 else "its device"
    return Refusal(Reason.WAITING_FOR_SLICES, f"the API server does not show {which} yet")


def _is_taken(facts: NodeFacts, gpu_uuid: str, name: str) -> bool:
    decision = facts.decisions[gpu_uuid]
    device = next(d for d in decision.published.offered if d.name == name)
    if device.record.placement is None:
        return bool(decision.gpu.claims)
    key = (device.record.profile_id, device.record.placement)
    return any(i.claims for i in decision.gpu.instances if (i.profile_id, i.placement) == key)


_Verdict = tuple[ConditionType, Status, Reason, str]


def _verdicts(facts: NodeFacts, gpus: list[GpuStatus]) -> list[_Verdict]:
    observed = _observed(facts)
    healthy = _healthy(gpus)
    applied = _applied(facts, gpus)
    return [observed, applied, healthy, _ready(facts, observed, applied, healthy, gpus)]


def _observed(facts: NodeFacts) -> _Verdict:
    if facts.blind is not None:
        status: Status = "Unknown" if facts.was_seen else "False"
        return ConditionType.OBSERVED, status, Reason.NVML_UNAVAILABLE, facts.blind
    if facts.inventory.message:
        return ConditionType.OBSERVED, "False", Reason.GPU_UNHEALTHY, facts.inventory.message
    return ConditionType.OBSERVED, "True", Reason.OBSERVED, f"{len(facts.inventory.gpus)} cards"


def _healthy(gpus: Iterable[GpuStatus]) -> _Verdict:
    sick = [g for g in gpus if g.health != Health.HEALTHY]
    if not sick:
        return ConditionType.HEALTHY, "True", Reason.HEALTHY, ""
    status: Status = "False" if any(g.health == Health.UNHEALTHY for g in sick) else "Unknown"
    text = "; ".join(f"card {g.index} ({g.uuid}): {g.health_message or g.health}" for g in sick)
    return ConditionType.HEALTHY, status, Reason.GPU_UNHEALTHY, text


def _applied(facts: NodeFacts, gpus: list[GpuStatus]) -> _Verdict:
    assigned = [
        g for g in gpus if (d := facts.decisions.get(g.uuid)) is not None and d.assignment is not None
    ]
    if not assigned:
        return ConditionType.APPLIED, "True", Reason.IDLE, "no policy has a card of this node"
    behind = [g for g in assigned if not facts.decisions[g.uuid].is_applied]
    if not behind:
        return ConditionType.APPLIED, "True", Reason.APPLIED, f"{len(assigned)} cards as wanted"
    return ConditionType.APPLIED, "False", Reason(behind[0].reason), _cards_text(behind)


def _ready(
    facts: NodeFacts, observed: _Verdict, applied: _Verdict, healthy: _Verdict, gpus: list[GpuStatus]
) -> _Verdict:
    for _, status, reason, message in (observed, applied, healthy):
        if status != "True":
            return ConditionType.READY, "False", reason, message
    if facts.troubles:
        text = "; ".join(t.message for t in facts.troubles)
        return ConditionType.READY, "False", facts.troubles[0].reason, text
    behind = [g for g in gpus if g.reason not in (Reason.APPLIED, Reason.IDLE)]
    if behind:
        return ConditionType.READY, "False", Reason(behind[0].reason), _cards_text(behind)
    return ConditionType.READY, "True", Reason.READY, ""


def _cards_text(gpus: Iterable[GpuStatus]) -> str:
    """Return what cards say; those that say the same share a line."""
    told: dict[str, list[int]] = {}
    for gpu in gpus:
        told.setdefault(gpu.message or gpu.reason, []).append(gpu.index)
    return "; ".join(f"{cards_text(indexes)}: {text}" for text, indexes in told.items())


def _condition(verdict: _Verdict, before: Condition | None, generation: int, now: str) -> Condition:
    kind, status, reason, message = verdict
    return Condition(
        type=kind,
        status=status,
        observed_generation=generation,
        last_transition_time=before.last_transition_time if before and before.status == status else now,
        reason=reason,
        message=_shortened(message, _CONDITION_LIMIT),
    )


def _card(gpu: Gpu, facts: NodeFacts) -> GpuStatus:
    decision, record = facts.decisions.get(gpu.uuid), facts.records.get(gpu.uuid)
    assignment = decision.assignment if decision else None
    told = card_reason(gpu, facts)
    stands = decision is not None and decision.is_applied
    revision = assignment.revision if assignment and stands else record.revision if record else ""
    return GpuStatus(
        uuid=gpu.uuid,
        index=gpu.index,
        minor=gpu.minor,
        pci_bus_id=gpu.pci_bus_id or None,
        product_name=gpu.product_name or None,
        architecture=gpu.architecture or None,
        brand=gpu.brand or None,
        serial=gpu.serial or None,
        memory=None if gpu.memory_bytes is None else quantity(gpu.memory_bytes),
        compute_capability=gpu.compute_capability or None,
        numa_node=gpu.numa_node,
        pcie_root=gpu.pcie_root or None,
        mig=_mig(gpu),
        instances=[_instance(i) for i in gpu.instances],
        claims=[_claim(c) for c in gpu.claims],
        processes=_processes(gpu.processes),
        health=gpu.health.value,
        health_message=_shortened(gpu.health_message, MESSAGE_LIMIT) or None,
        ownership=gpu.ownership.value,
        policy=(assignment.policy if assignment else record.policy if record else "") or None,
        layout=layout_text(gpu),
        applied_revision=revision,
        devices=len([d for d in decision.published.offered if d.name in facts.shown]) if decision else 0,
        reason=told.reason.value,
        message=_shortened(told.message, MESSAGE_LIMIT) or None,
    )


def _mig(gpu: Gpu) -> MigStatus:
    return MigStatus(
        capable=gpu.mig.capable,
        enabled=gpu.mig.enabled,
        pending_enabled=gpu.mig.pending_enabled,
        mode_needs_reset=gpu.mig.mode_needs_reset,
        profiles=[
            ProfileStatus(
                id=p.id,
                name=p.name,
                slices=p.slices,
                memory_mi_b=p.memory_mib,
                max_instances=p.max_instances,
                placements=[PlacementStatus(start=x.start, size=x.size) for x in p.placements],
                multiprocessors=p.multiprocessors,
                copy_engines=p.copy_engines,
                decoders=p.decoders,
                encoders=p.encoders,
                jpeg_engines=p.jpeg_engines,
                ofa_engines=p.ofa_engines,
            )
            for p in gpu.mig.profiles
        ],
    )


def _instance(instance: Instance) -> InstanceStatus:
    return InstanceStatus(
        profile=instance.profile,
        profile_id=instance.profile_id,
        placement=PlacementStatus(start=instance.placement.start, size=instance.placement.size),
        uuid=instance.uuid,
        gpu_instance_id=instance.gpu_instance_id,
        compute_instance_id=instance.compute_instance_id,
        ownership=instance.ownership.value,
        claims=[_claim(c) for c in instance.claims],
        processes=_processes(instance.processes),
    )


def _claim(use: ClaimUse) -> ClaimReference:
    return ClaimReference(
        namespace=use.namespace, name=use.name, uid=use.uid, pods=list(use.pods), prepared=use.prepared
    )


def _processes(processes: tuple[Process, ...]) -> list[ProcessStatus]:
    return [ProcessStatus(pid=p.pid, name=p.name or None) for p in processes[:_PROCESSES_SHOWN]]


def _shortened(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"
