"""Why a pod waits for its devices, in numbers: per request what its class has, what is free, and what is in the way.

Gathers what `core.pod_requests` reads and `core.sieve` judges into one answer. Constraints between devices, and what
a scheduler weighs besides devices, are not judged, and that is said; the scheduler's own words stand beside ours.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpupolicy.api import wire
from gpupolicy.core import access, pod_nodes, pod_requests, stock
from gpupolicy.core.classes import LiveClass
from gpupolicy.core.labels import LabelSelector
from gpupolicy.core.pod_requests import Asked, Source
from gpupolicy.core.selection import Evaluator
from gpupolicy.core.sieve import Cause, Judge, Row
from gpupolicy.core.stock import Allocated

__all__ = ["Explanation", "Objects", "explain"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Objects:
    """What the API server shows, as it came over the wire."""

    slices: Sequence[Mapping[str, Any]] = ()
    claims: Sequence[Mapping[str, Any]] = ()
    """Of all namespaces: whoever holds a device, it is gone."""
    templates: Sequence[Mapping[str, Any]] = ()
    """Of the pod's namespace."""
    classes: Sequence[Mapping[str, Any]] = ()
    policies: Sequence[Mapping[str, Any]] = ()
    nodes: Sequence[Mapping[str, Any]] = ()
    namespace_labels: Mapping[str, str] | None = None
    """Labels of the pod's namespace; None where they could not be read."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """Everything there is to say about the devices of a pod.

    Attributes:
        summary: one sentence.
        rows: what the pod asks for and does not have.
        held: what it has, each with the node.
        problems: what has to be put right before anything can be had.
        notes: what else is worth knowing.
    """

    summary: str
    rows: tuple[Row, ...] = ()
    held: tuple[tuple[Allocated, str], ...] = ()
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def explain(pod: Mapping[str, Any], objects: Objects, evaluator: Evaluator) -> Explanation:
    """Return why the pod waits for devices, or what it has."""
    spec, status = pod.get("spec") or {}, pod.get("status") or {}
    phase = status.get("phase") or "Unknown"
    if phase in {"Succeeded", "Failed"}:
        return Explanation(f"{phase}: the pod has ended and waits for nothing")
    namespace = pod["metadata"].get("namespace", "")
    live = [LiveClass.of(body) for body in objects.classes]
    asked = pod_requests.read(
        pod,
        Source(_named(objects.claims, namespace), _named(objects.templates, namespace), live, objects.nodes),
    )
    published = stock.units(objects.slices, objects.claims)
    places = {(u.device.driver, u.device.pool, u.device.name): u.device.node for u in published}
    held = tuple((result, places.get(result.key, "")) for result in asked.held)
    judge = Judge(live, published, _excluded(pod, objects.nodes, {n for _, n in held if n}), evaluator)
    found = [judge.rows(request) for request in asked.requests]
    rows = tuple(row for alternatives in found for row in alternatives)
    where = f"{phase}: on node {spec['nodeName']}, " if spec.get("nodeName") else f"{phase}: "
    notes = (*asked.notes, *_policy_notes(rows, objects), *_scheduler_notes(status, asked))
    return Explanation(where + _state(spec, asked, found, judge), rows, held, asked.problems, notes)


def _named(objects: Iterable[Mapping[str, Any]], namespace: str) -> dict[str, Mapping[str, Any]]:
    return {o["metadata"]["name"]: o for o in objects if o["metadata"].get("namespace", "") == namespace}


def _excluded(
    pod: Mapping[str, Any], nodes: Sequence[Mapping[str, Any]], pinned: set[str]
) -> Mapping[str, str]:
    found = pod_nodes.exclusions(pod, nodes)
    if pinned:
        words = f"a claim of the pod is allocated on {', '.join(sorted(pinned))}"
        found |= {n["metadata"]["name"]: words for n in nodes if n["metadata"]["name"] not in pinned}
    return found


def _state(spec: Mapping[str, Any], asked: Asked, found: Sequence[tuple[Row, ...]], judge: Judge) -> str:
    """Return what the pod waits for; the first that applies, from what it is to what is in the way."""
    gates = [gate.get("name", "") for gate in spec.get("schedulingGates") or ()]
    blocked = [rows for rows in found if all(row.cause is not Cause.FREE for row in rows)]
    is_plain = all(len(rows) == 1 for rows in found)
    if gates:
        state = f"nothing is allocated while scheduling gates stand: {', '.join(gates)}"
    elif asked.problems:
        state = asked.problems[0]
    elif not found:
        # Notes tell of what is asked for elsewhere than in claims.
        state = "the pod has all its devices" if asked.held else "the pod asks for no devices of a claim"
    elif blocked:
        which = "its request" if len(found) == 1 else f"{len(blocked)} of its {len(found)} requests"
        state = f"{which} cannot be satisfied now"
    elif len(found) > 1 and is_plain and not judge.common_node([rows[0] for rows in found]):
        state = "each request can be satisfied, but no node has devices for all of them at once"
    else:
        state = "enough devices are free; if the pod goes on waiting, something else is in the way"
    return state


def _policy_notes(rows: Iterable[Row], objects: Objects) -> Iterator[str]:
    """Say which policies keep this namespace out, and which are not ready, of those whose classes are asked for."""
    wanted = {row.policy for row in rows if row.policy}
    for policy in objects.policies:
        name = policy["metadata"]["name"]
        if name not in wanted:
            continue
        admitted = ((policy.get("spec") or {}).get("access") or {}).get("namespaces")
        if admitted is not None and objects.namespace_labels is not None:
            selector = LabelSelector.of(wire.LabelSelector.model_validate(admitted))
            if not selector.selects(objects.namespace_labels):
                yield (
                    f"GpuPolicy {name} admits namespaces with {access.describe(selector)}, and this is none; "
                    "new claims are refused"
                )
        for condition in (policy.get("status") or {}).get("conditions") or ():
            if condition.get("type") == "Ready" and condition.get("status") == "False":
                yield f"GpuPolicy {name} is not Ready: {condition.get('reason')}: {condition.get('message')}"


def _scheduler_notes(status: Mapping[str, Any], asked: Asked) -> Iterator[str]:
    for condition in status.get("conditions") or ():
        is_waiting = condition.get("type") == "PodScheduled" and condition.get("status") == "False"
        if is_waiting and condition.get("message"):
            yield f"the scheduler says: {condition['message']}"
    if asked.has_constraints:
        yield "the claim has constraints between its devices, which are not judged here"
