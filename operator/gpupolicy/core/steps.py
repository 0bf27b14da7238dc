"""The single writes that carry out a card's change, each with its inverse.

Order: instances go first, then the mode is set, then instances are made. That is the only order that NVML allows:
the mode cannot change while instances exist, and instances need the mode. Within a card the steps run one
after another; cards do not wait for each other. If a step fails, what was done is undone in reverse order by
`inverse`, or the card is planned again from what is observed then.

After `SetMigMode` the card has to be read again: where a mode needs a reset it is only pending, and the steps that
follow are not to be tried.
"""

from dataclasses import dataclass, replace

from gpupolicy.core.inventory import Gpu, Instance, Ownership, Placement
from gpupolicy.core.planner import CardPlan, Change


@dataclass(frozen=True, slots=True)
class SetMigMode:
    """Set the MIG mode of a card."""

    gpu_uuid: str
    enabled: bool
    reason: str = ""

    def __str__(self) -> str:
        return f"turn MIG mode {'on' if self.enabled else 'off'}"


@dataclass(frozen=True, slots=True)
class DestroyInstance:
    """Destroy a compute instance and then its GPU instance."""

    gpu_uuid: str
    profile_id: int
    profile: str
    placement: Placement
    gpu_instance_id: int | None = None
    """None where it is not known beforehand (the inverse of a creation): find it by profile and placement."""
    compute_instance_id: int | None = None
    """None: there is none, or it is not known beforehand."""
    mig_uuid: str = ""
    reason: str = ""

    def __str__(self) -> str:
        return f"destroy {self.profile}@{self.placement.start}:{self.placement.size}"


@dataclass(frozen=True, slots=True)
class CreateInstance:
    """Create a GPU instance at this placement, and the compute instance that fills it."""

    gpu_uuid: str
    profile_id: int
    profile: str
    placement: Placement
    reason: str = ""

    def __str__(self) -> str:
        return f"create {self.profile}@{self.placement.start}:{self.placement.size}"


Step = SetMigMode | DestroyInstance | CreateInstance


def steps_of(plan: CardPlan) -> tuple[Step, ...]:
    """Return the writes that a plan allows now, in the order to do them. Empty where there is nothing to do."""
    return steps_of_change(plan.uuid, plan.now, f"layout {plan.layout}")


def steps_of_change(gpu_uuid: str, change: Change, reason: str = "") -> tuple[Step, ...]:
    """Return the writes of one change of one card, in the order to do them."""
    steps: list[Step] = [
        DestroyInstance(
            gpu_uuid=gpu_uuid,
            profile_id=instance.profile_id,
            profile=instance.profile,
            placement=instance.placement,
            gpu_instance_id=instance.gpu_instance_id,
            compute_instance_id=instance.compute_instance_id,
            mig_uuid=instance.uuid,
            reason=reason,
        )
        for instance in change.destroy
    ]
    if change.mig_mode is not None:
        steps.append(SetMigMode(gpu_uuid, change.mig_mode, reason))
    steps += [
        CreateInstance(gpu_uuid, pair.profile_id, pair.profile, pair.placement, reason)
        for pair in change.create
    ]
    return tuple(steps)


def inverse(step: Step) -> Step:
    """Return the step that undoes a step. A destroyed instance comes back with other ids and maybe another UUID."""
    reason = f"undo: {step}"
    match step:
        case SetMigMode():
            return replace(step, enabled=not step.enabled, reason=reason)
        case DestroyInstance():
            return CreateInstance(step.gpu_uuid, step.profile_id, step.profile, step.placement, reason)
        case CreateInstance():
            return DestroyInstance(
                step.gpu_uuid, step.profile_id, step.profile, step.placement, reason=reason
            )


def undo(done: tuple[Step, ...]) -> tuple[Step, ...]:
    """Return the steps that undo these, last first."""
    return tuple(inverse(step) for step in reversed(done))


def card_after(gpu: Gpu, step: Step) -> Gpu:
    """Return the card as a step is meant to leave it: a model for previews and for checks of a result.

    Ids of new instances are made up (the lowest that are free), and their UUIDs are empty. A mode that needs a reset
    is pending afterwards.
    """
    match step:
        case SetMigMode():
            return _after_mode(gpu, enabled=step.enabled)
        case DestroyInstance():
            rest = tuple(
                i for i in gpu.instances if (i.profile_id, i.placement) != (step.profile_id, step.placement)
            )
            return replace(gpu, instances=rest)
        case CreateInstance():
            taken = {i.gpu_instance_id for i in gpu.instances}
            instance = Instance(
                profile_id=step.profile_id,
                profile=step.profile,
                placement=step.placement,
                gpu_instance_id=next(n for n in range(len(taken) + 1) if n not in taken),
                compute_instance_id=0,
                ownership=Ownership.OWNED,
            )
            instances = sorted((*gpu.instances, instance), key=lambda i: i.placement)
            return replace(gpu, instances=tuple(instances))


def _after_mode(gpu: Gpu, *, enabled: bool) -> Gpu:
    if gpu.mig.mode_needs_reset and enabled != gpu.mig.enabled:
        return replace(gpu, mig=replace(gpu.mig, pending_enabled=enabled))
    return replace(gpu, mig=replace(gpu.mig, enabled=enabled, pending_enabled=None))
