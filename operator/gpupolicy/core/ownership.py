"""Who made what stands on a card, and who holds it: the ledger's records laid over what NVML shows.

Proof of ownership. An instance is ours when a record of this boot names its profile and placement, and its MIG UUID
is the recorded one. A record that was never completed has no UUID; then profile and placement decide, because the
intent to make (or destroy) exactly this was written before anything was done, and creation refuses a place where
something stands already. An instance whose compute instance is gone has no UUID of its own and stays ours.

Anything else is foreign: also an instance that somebody made where ours was.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from gpupolicy.core.devices import gpu_name, mig_name
from gpupolicy.core.inventory import ClaimUse, Gpu, Instance, Ownership, Placement
from gpupolicy.core.records import (
    ClaimRecord,
    GpuRecord,
    InstanceKey,
    InstanceRecord,
    InstanceState,
)

Allocations = Mapping[str, tuple[ClaimUse, ...]]
"""Claims that the API server shows as allocated, by the name of our device."""


def after_boot(record: GpuRecord) -> GpuRecord:
    """Return what a record of another boot is still good for: a reboot has removed every instance."""
    return replace(record, instances=(), mode_intent=None, revision="", xid=None)


def settled(record: GpuRecord, gpu: Gpu) -> GpuRecord:
    """Return the record as the hardware bears it out: what was begun is done or was not, what is gone is gone.

    Args:
        record: what the ledger says, of this boot.
        gpu: the card as it was read just now. It bears nothing out about profiles that it does not list, nor anything
            at all if it says that it has no MIG: with a wrong word of the driver the proof would be gone for good.
    """
    if not gpu.mig.capable:
        return record
    listed = {profile.id for profile in gpu.mig.profiles}
    standing = {(i.profile_id, i.placement): i for i in gpu.instances}
    entries: dict[tuple[int, Placement], InstanceRecord] = {}
    for entry in record.instances:
        found = standing.get((entry.profile_id, entry.placement))
        if entry.profile_id not in listed:
            entries[entry.profile_id, entry.placement] = entry
        elif found is not None and _is_ours(entry, found):
            # The UUID is the proof; while there is no compute instance, what it was is not to be forgotten.
            entries[entry.profile_id, entry.placement] = replace(made(found), uuid=found.uuid or entry.uuid)
    instances = tuple(sorted(entries.values(), key=lambda e: (e.placement, e.profile_id)))
    return replace(record, instances=instances, mode_before=_mode_before(record, gpu), mode_intent=None)


def mode_is_ours(record: GpuRecord | None) -> bool:
    """Whether we switched MIG mode on, on a card that we found without."""
    return record is not None and record.mode_before is False


def _mode_before(record: GpuRecord, gpu: Gpu) -> bool | None:
    """Return the mode to go back to; None once the card is back there, since who switches it next may not be us."""
    is_back = gpu.mig.enabled is record.mode_before and gpu.mig.pending_enabled in (None, gpu.mig.enabled)
    return None if is_back else record.mode_before


def made(instance: Instance) -> InstanceRecord:
    """Return the record of an instance that stands and is ours."""
    return InstanceRecord(
        profile_id=instance.profile_id,
        profile=instance.profile,
        placement=instance.placement,
        state=InstanceState.CREATED,
        gpu_instance_id=instance.gpu_instance_id,
        uuid=instance.uuid,
    )


def owned(gpu: Gpu, record: GpuRecord | None) -> Gpu:
    """Return the card with the ownership of its instances, and its own, filled in."""
    ours = {(e.profile_id, e.placement): e for e in record.instances} if record else {}

    def owner(instance: Instance) -> Ownership:
        entry = ours.get((instance.profile_id, instance.placement))
        return Ownership.OWNED if entry is not None and _is_ours(entry, instance) else Ownership.FOREIGN

    instances = tuple(replace(i, ownership=owner(i)) for i in gpu.instances)
    if any(i.ownership is Ownership.FOREIGN for i in instances):
        whole = Ownership.FOREIGN
    elif instances or (record is not None and record.policy):
        whole = Ownership.OWNED
    else:
        whole = Ownership.OBSERVED
    return replace(gpu, instances=instances, ownership=whole)


def held(gpu: Gpu, prepared: Iterable[ClaimRecord], allocated: Allocations) -> Gpu:
    """Return the card with the claims that hold it and its instances filled in.

    Args:
        gpu: the card.
        prepared: claims that the ledger knows, in any state.
        allocated: claims that the API server knows; a claim in both counts once.
    """
    by_key: dict[InstanceKey | None, dict[str, ClaimUse]] = {}
    for claim in prepared:
        use = ClaimUse(claim.namespace, claim.name, claim.uid, claim.pods, prepared=True)
        for device in claim.devices:
            if device.device.gpu_uuid == gpu.uuid:
                by_key.setdefault(device.device.instance, {})[claim.uid] = use

    def uses(key: InstanceKey | None, name: str) -> tuple[ClaimUse, ...]:
        found = dict(by_key.get(key, {}))
        for use in allocated.get(name, ()):
            known = found.get(use.uid)
            found[use.uid] = replace(
                use, prepared=known is not None, pods=use.pods or (known.pods if known else ())
            )
        return tuple(sorted(found.values(), key=lambda u: (u.namespace, u.name, u.uid)))

    return replace(
        gpu,
        claims=uses(None, gpu_name(gpu)),
        instances=tuple(
            replace(
                i,
                claims=uses(
                    InstanceKey(gpu.uuid, i.profile_id, i.placement), mig_name(gpu, i.profile_id, i.placement)
                ),
            )
            for i in gpu.instances
        ),
    )


def _is_ours(entry: InstanceRecord, instance: Instance) -> bool:
    return not entry.uuid or not instance.uuid or entry.uuid == instance.uuid
