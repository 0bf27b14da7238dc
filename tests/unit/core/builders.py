"""Short ways to write cards, instances and claims in tests."""

from dataclasses import replace

from gpupolicy.core.inventory import (
    ClaimUse,
    Gpu,
    Instance,
    MigProfile,
    MigState,
    Ownership,
    Placement,
    Process,
)
from gpupolicy.core.planner import CardPlan
from gpupolicy.core.steps import card_after, steps_of

SEVEN_SLICE = (
    # id, slices, memory slices, most, starts, decoders, JPEG, OFA
    ("1g.10gb", 19, 1, 9984, 1, 7, range(7), 1, 1, 0),
    ("1g.10gb+me", 20, 1, 9984, 1, 1, range(7), 1, 1, 1),
    ("1g.20gb", 15, 1, 20096, 2, 4, (0, 2, 4, 6), 1, 1, 0),
    ("2g.20gb", 14, 2, 20096, 2, 3, (0, 2, 4), 2, 2, 0),
    ("3g.40gb", 9, 3, 40448, 4, 2, (0, 4), 3, 3, 0),
    ("4g.40gb", 5, 4, 40448, 4, 1, (0,), 4, 4, 0),
    ("7g.80gb", 0, 7, 81152, 8, 1, (0,), 7, 7, 1),
)
H100 = tuple(
    MigProfile(
        id=profile_id,
        name=name,
        slices=slices,
        memory_mib=memory,
        max_instances=most,
        placements=tuple(Placement(start, size) for start in starts),
        decoders=decoders,
        jpeg_engines=jpeg,
        ofa_engines=ofa,
    )
    for name, profile_id, slices, memory, size, most, starts, decoders, jpeg, ofa in SEVEN_SLICE
)


def claim(name: str = "claim", *pods: str, namespace: str = "team-a") -> ClaimUse:
    return ClaimUse(namespace=namespace, name=name, uid=f"uid-{name}", pods=pods or (f"{name}-pod",))


def instance(
    where: str,
    *,
    used_by: str | None = None,
    pid: int | None = None,
    profiles: tuple[MigProfile, ...] = H100,
    ownership: Ownership = Ownership.OWNED,
    broken: bool = False,
    gpu_instance_id: int = 1,
) -> Instance:
    """Make an instance from `1g.10gb@6`."""
    name, _, start = where.partition("@")
    profile = next(p for p in profiles if p.name == name)
    return Instance(
        profile_id=profile.id,
        profile=profile.name,
        placement=next(q for q in profile.placements if q.start == int(start)),
        gpu_instance_id=gpu_instance_id,
        compute_instance_id=None if broken else 0,
        uuid="" if broken else f"MIG-{where}",
        ownership=ownership,
        claims=(claim(used_by),) if used_by else (),
        processes=(Process(pid, "python"),) if pid else (),
    )


def card(
    *instances: Instance,
    profiles: tuple[MigProfile, ...] = H100,
    enabled: bool = True,
    index: int = 0,
    **fields: object,
) -> Gpu:
    """Make an H100 in MIG mode with these instances, numbered in the order given."""
    numbered = tuple(replace(i, gpu_instance_id=n) for n, i in enumerate(instances, start=7))
    mig = fields.pop("mig", None) or MigState(capable=True, enabled=enabled, profiles=profiles)
    return Gpu(
        uuid=f"GPU-{index}",
        index=index,
        product_name=str(fields.pop("product_name", "NVIDIA H100 80GB HBM3")),
        mig=mig,
        instances=numbered,
        **fields,
    )


def after(gpu: Gpu, plan: CardPlan) -> Gpu:
    """Return the card as the plan's steps leave it."""
    for step in steps_of(plan):
        gpu = card_after(gpu, step)
    return gpu


def written(plan: CardPlan) -> list[str]:
    """Return the steps of a plan as text."""
    return [str(step) for step in steps_of(plan)]
