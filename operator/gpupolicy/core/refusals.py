"""A refusal: why something is not done, as data.

A decision that cannot be carried out returns one of these; nothing raises for it. The reason is the word that
conditions, events and metrics share; the message names what stands in the way and the remedy.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gpupolicy.api.conditions import Reason
from gpupolicy.core.inventory import ClaimUse, Gpu, Instance, Process

SHOWN = 6
"""How many names a message lists before it only counts the rest."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a wish is not (or not yet) carried out, and what stands in its way."""

    reason: Reason
    message: str
    instances: tuple[Instance, ...] = ()
    """MIG instances that stand in the way."""
    claims: tuple[ClaimUse, ...] = ()
    """Claims that hold those instances or the whole card."""
    processes: tuple[Process, ...] = ()
    """Processes on those instances or on the whole card."""

    @property
    def pods(self) -> tuple[str, ...]:
        """The pods behind the claims, as `namespace/name`, sorted and without repetition."""
        return tuple(sorted({pod_name(claim, pod) for claim in self.claims for pod in claim.pods}))


def pod_name(claim: ClaimUse, pod: str) -> str:
    """Return a pod of a claim as `namespace/name`; pods live in the namespace of their claim."""
    return pod if "/" in pod else f"{claim.namespace}/{pod}"


def listing(names: Iterable[str], shown: int = SHOWN) -> str:
    """Return names joined by commas; of a long list the first `shown` and the count of the others."""
    names = list(names)
    rest = len(names) - shown
    return ", ".join(names[:shown]) + (f" and {rest} more" if rest > 0 else "")


def cards_text(indexes: Sequence[int]) -> str:
    """Return `card 3` or `cards 0-3, 5`."""
    runs: list[list[int]] = []
    for index in sorted(indexes):
        if runs and index == runs[-1][-1] + 1:
            runs[-1].append(index)
        else:
            runs.append([index])
    parts = [f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs]
    return f"card{'' if len(indexes) == 1 else 's'} {', '.join(parts)}"


def instance_label(instance: Instance) -> str:
    """Return how messages name an instance: `3g.40gb@4:4`, profile at start:size in memory slices."""
    return f"{instance.profile}@{instance.placement.start}:{instance.placement.size}"


def users(claims: tuple[ClaimUse, ...], processes: tuple[Process, ...]) -> str:
    """Return who uses something, for a message: `pod a/c, claim a/b (pods a/d, a/e), process 4711 (python)`."""
    parts = [_holder(claim) for claim in claims]
    parts += [f"process {p.pid}" + (f" ({p.name})" if p.name else "") for p in processes]
    return listing(parts)


def _holder(claim: ClaimUse) -> str:
    """Return a claim and its pods; of a claim that Kubernetes made for one pod, and named after it, that pod alone."""
    pods = listing(pod_name(claim, pod) for pod in claim.pods)
    if len(claim.pods) == 1 and claim.name.startswith(f"{claim.pods[0]}-"):
        return f"pod {pods}"
    told = f" (pod{'s' if len(claim.pods) > 1 else ''} {pods})" if pods else ""
    return f"claim {claim.namespace}/{claim.name}{told}"


def _remedy(claims: tuple[ClaimUse, ...], processes: tuple[Process, ...]) -> str:
    ends = (["delete those pods"] if claims else []) + (["stop those processes"] if processes else [])
    return f"{' and '.join(ends)}, or wait for their end"


def waiting(gpu: Gpu, in_the_way: tuple[Instance, ...], *, whole_card: bool = False) -> Refusal:
    """Return the refusal for a change that waits until what is in use is free.

    Args:
        gpu: The card.
        in_the_way: The instances in use that must go before the change can be completed.
        whole_card: Whether the claims and processes of the whole card stand in the way as well.
    """
    claims = tuple(c for i in in_the_way for c in i.claims) + (gpu.claims if whole_card else ())
    processes = tuple(p for i in in_the_way for p in i.processes) + (gpu.processes if whole_card else ())
    parts = [f"{instance_label(i)} used by {users(i.claims, i.processes)}" for i in in_the_way]
    if whole_card and (gpu.claims or gpu.processes):
        parts.append(f"the whole card, used by {users(gpu.claims, gpu.processes)}")
    return Refusal(
        reason=Reason.WAITING_FOR_CLAIMS,
        message=f"waits for {'; '.join(parts)}. Nothing in use is touched; {_remedy(claims, processes)}",
        instances=in_the_way,
        claims=claims,
        processes=processes,
    )
