"""Whether a policy is accepted: an ordered chain of checks, the first refusal wins.

Order: what needs no cluster first (fields that are not served, malformed selectors), then what the API server says of
the own CEL expression, then names that somebody else has, then layouts that no selected card allows. What a check
needs from the cluster is gathered beforehand and handed in; nothing here asks anybody.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from gpupolicy.api.conditions import Reason
from gpupolicy.api.policy import GpuPolicy
from gpupolicy.core import policies, selectors, served
from gpupolicy.core.classes import DesiredClass, LiveClass, judge_names
from gpupolicy.core.inventory import Gpu
from gpupolicy.core.labels import LabelSelector
from gpupolicy.core.matching import Judgement, combine, existing_values
from gpupolicy.core.planner import layout_refusal
from gpupolicy.core.refusals import Refusal, listing


@dataclass(frozen=True, slots=True)
class NodeCards:
    """A node that a policy may select: its labels, and its cards where an agent reports."""

    name: str
    labels: Mapping[str, str]
    gpus: tuple[Gpu, ...] = ()
    has_agent: bool = True


@dataclass(frozen=True, slots=True)
class Selection:
    """What the selectors of a policy mean right now.

    Attributes:
        nodes: the nodes that the node selector selects and on which an agent reports.
        waiting: selected nodes whose agent has not reported yet.
        matched: the cards on them that the card selector selects.
        candidates: all cards on them.
        clauses: for each field of the card selector, how many cards it drops.
        failure: what goes wrong with the own CEL expression on some card; empty where nothing does.
        empty: why no card is selected; None where one is.
    """

    nodes: tuple[NodeCards, ...] = ()
    waiting: tuple[str, ...] = ()
    matched: tuple[Gpu, ...] = ()
    candidates: tuple[Gpu, ...] = ()
    clauses: tuple[str, ...] = ()
    failure: str = ""
    empty: Refusal | None = None


@dataclass(frozen=True, slots=True)
class Acceptance:
    """The verdict on a policy, and what follows from it for others.

    Attributes:
        refusal: why it is not accepted; None where it is.
        notes: what is worth saying although it is accepted.
        losers: foreign classes whose extended name it takes over, to the name of ours.
    """

    refusal: Refusal | None = None
    notes: tuple[str, ...] = ()
    losers: Mapping[str, str] = field(default_factory=dict)


def readable(policy: GpuPolicy, problem: str | None) -> Refusal | None:
    """Return what is wrong with a policy whatever the cluster looks like: the first half of the chain.

    Args:
        policy: the policy.
        problem: why its spec could not even be read.
    """
    if problem is not None:
        return Refusal(Reason.INVALID_POLICY, problem)
    refusal = served.refusal(policy)
    if refusal is not None:
        return refusal
    malformed = LabelSelector.of(policy.spec.node_selector).problem
    if malformed is not None:
        return Refusal(Reason.INVALID_POLICY, f"spec.nodeSelector: {malformed}")
    found = selectors.problems(policy.spec.gpu_selector, selectors.GPUPOLICY)
    if found:
        texts = [f"spec.gpuSelector.{p.field}: {p.message}" for p in found]
        return Refusal(Reason.INVALID_SELECTOR, ". ".join(texts))
    return None


def select(policy: GpuPolicy, nodes: Iterable[NodeCards], judgements: Mapping[str, Judgement]) -> Selection:
    """Apply the selectors of a policy that `readable` has nothing to say about.

    Args:
        policy: the policy.
        nodes: every node of the cluster that has a GpuNode.
        judgements: what its own CEL expression says, by card UUID; ignored where it has none.
    """
    view = policies.view(policy)
    known = list(nodes)
    selected = [n for n in known if view.node_selector.selects(n.labels)]
    reporting = tuple(n for n in selected if n.has_agent)
    candidates = tuple(gpu for n in reporting for gpu in n.gpus)
    unknown = Judgement(None, "the CEL expression was not judged on this card")
    matched = []
    failures: Counter[str] = Counter()
    for gpu in candidates:
        judgement = view.cards.judge(gpu)
        if view.cel is not None:
            own = judgements.get(gpu.uuid, unknown)
            if judgement.matches and own.matches is None:
                failures[own.message] += 1
            judgement = combine(judgement, own)
        if judgement.matches:
            matched.append(gpu)
    failure = _failure(failures)
    clauses = _clauses(policy, candidates, judgements)
    return Selection(
        nodes=reporting,
        waiting=tuple(n.name for n in selected if not n.has_agent),
        matched=tuple(matched),
        candidates=candidates,
        clauses=clauses,
        failure=failure,
        empty=None
        if matched
        else _empty(policy, known, selected, candidates, failure=failure, clauses=clauses),
    )


def judge(
    policy: GpuPolicy,
    selection: Selection,
    wishes: Sequence[DesiredClass],
    live: Mapping[str, LiveClass],
) -> Acceptance:
    """Judge a policy that is readable against the cluster: the second half of the chain.

    Args:
        policy: the policy.
        selection: what it selects.
        wishes: the classes it wants.
        live: all DeviceClasses by name.
    """
    verdict = judge_names(wishes, live, policy.metadata.uid)
    if verdict.refusal is not None:
        return Acceptance(verdict.refusal)
    layout = policies.layout_of(policy.spec.sharing.mig)
    # Cards that offer the same profiles give the same answer; a few kinds stand for thousands of cards. Profiles
    # are told apart by identity: nearly all equal ones are one object, and hashing them costs more than it saves.
    kinds = {(gpu.product_name, gpu.mig.capable, id(gpu.mig.profiles)): gpu for gpu in selection.matched}
    refusals = [r for r in (layout_refusal(gpu, layout) for gpu in kinds.values()) if r is not None]
    if refusals and len(refusals) == len(kinds):
        texts = sorted({f"spec.sharing.mig.layout: {r.message}" for r in refusals})
        return Acceptance(Refusal(refusals[0].reason, listing(texts)))
    notes = (*([selection.failure] if selection.failure else []), *verdict.notes)
    return Acceptance(None, notes, verdict.losers or {})


def _empty(
    policy: GpuPolicy,
    known: Sequence[NodeCards],
    selected: Sequence[NodeCards],
    candidates: Sequence[Gpu],
    *,
    failure: str,
    clauses: Sequence[str],
) -> Refusal:
    """Say why no card is selected, with the values that exist."""
    if not selected:
        wanted = policy.spec.node_selector
        keys = sorted({*wanted.match_labels, *(e.key for e in wanted.match_expressions)})
        values = {key: sorted({n.labels[key] for n in known if key in n.labels}) for key in keys}
        have = "; ".join(f"{key}: {listing(found) or 'no node has it'}" for key, found in values.items())
        text = (
            f"spec.nodeSelector selects none of the {len(known)} nodes with an agent"
            if known
            else ("no node has an agent yet; agents run on nodes with an NVIDIA GPU")
        )
        return Refusal(
            Reason.NO_MATCHING_NODES, f"{text}. Values that exist: {have}" if have and known else text
        )
    reporting = sum(n.has_agent for n in selected)
    if not reporting:
        return Refusal(
            Reason.WAITING_FOR_AGENT,
            f"the agents of {listing(n.name for n in selected)} have not reported yet",
        )
    if failure:
        return Refusal(Reason.INVALID_SELECTOR, failure)
    return Refusal(
        Reason.NO_MATCHING_DEVICES,
        f"spec.gpuSelector selects none of the {_count(len(candidates), 'card')} on {_count(reporting, 'node')}"
        f"{f' ({listing(clauses)})' if clauses else ''}. "
        f"Values that exist: {existing_values(candidates)}",
    )


def _failure(failures: Counter[str]) -> str:
    """Say on how many cards the own expression fails, and how it does on the most of them."""
    if not failures:
        return ""
    ((message, _),) = failures.most_common(1)
    return (
        f"spec.gpuSelector.cel: on {_count(failures.total(), 'card')}, {message}. None of them is taken; those that the "
        "policy has already are kept. Guard what may be missing: has(...) && ..., or .?name.orValue(...)"
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


def _clauses(
    policy: GpuPolicy, candidates: Sequence[Gpu], judgements: Mapping[str, Judgement]
) -> tuple[str, ...]:
    """Say of every field of the card selector how many cards it drops by itself."""
    spec = policy.spec.gpu_selector
    rows = []
    for name in ("products", "architectures", "min_memory", "min_compute_capability"):
        if getattr(spec, name):
            alone = policies.card_selector(type(spec)(**{name: getattr(spec, name)}))
            dropped = sum(not alone.judge(gpu).matches for gpu in candidates)
            alias = type(spec).model_fields[name].alias or name
            rows.append(f"{alias}: drops {dropped}")
    if spec.cel is not None:
        dropped = sum(not getattr(judgements.get(gpu.uuid), "matches", None) for gpu in candidates)
        rows.append(f"cel: drops {dropped}")
    return tuple(rows)
