"""What is in the way of one request for devices: the sieves that it passes, and the first that lets nothing through.

Theory. A request passes five sieves, and the first that lets nothing through is the reason to tell: the class exists;
its selectors match devices; so do the request's own; enough of those are free on one node, since devices of one pod
are always of one node; the pod may run on such a node. Requests that pass one by one still wait where no one node
passes all of them at once; which devices go to which request is then a matching in a bipartite graph, found exactly.

Selectors are judged by an evaluator that is passed in; what it cannot tell is told as that.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final

from gpupolicy.core import stock
from gpupolicy.core.classes import LiveClass
from gpupolicy.core.pod_requests import Alternative, Request
from gpupolicy.core.selection import ClauseDrop, Evaluator, Outcome, preview
from gpupolicy.core.stock import Stock, Unit

__all__ = ["Cause", "Judge", "Row"]

_NAMED_NODES: Final = 4
"""Nodes that a message names one by one."""


class Cause(StrEnum):
    """What is in the way of a request."""

    FREE = "Free"
    """Nothing that is judged here."""
    CLASS_MISSING = "ClassMissing"
    SELECTOR_FAILS = "SelectorFails"
    CANNOT_TELL = "CannotTell"
    NO_DEVICES = "NoDevices"
    """The class selects nothing that there is."""
    SELECTOR_MISSES = "SelectorMisses"
    """The request's own selectors drop all devices of the class."""
    NONE_FREE = "NoneFree"
    TOO_FEW_FREE = "TooFewFree"
    TOO_FEW_ON_ONE_NODE = "TooFewOnOneNode"
    NODES_EXCLUDED = "NodesExcluded"
    """Only nodes on which the pod may not run have enough."""


@dataclass(frozen=True, slots=True)
class Row:
    """One alternative of one request.

    Attributes:
        alternative: what is asked.
        origin: the object that asks, in words.
        policy: the policy of the class; empty for a class that is not ours.
        of_class: what the class selects.
        matching: what of that the request's own selectors let through.
        drops: what the clauses of the request's selectors drop; those of the class where it selects nothing.
        cause: what is in the way.
        message: the same in words, with numbers.
        nodes: nodes on which the request fits and the pod may run.
        others: the other classes of the policy.
    """

    alternative: Alternative
    origin: str
    cause: Cause
    message: str
    policy: str = ""
    of_class: Stock = field(default_factory=Stock)
    matching: Stock = field(default_factory=Stock)
    drops: tuple[ClauseDrop, ...] = ()
    nodes: tuple[str, ...] = ()
    others: tuple[tuple[str, Stock], ...] = ()


@dataclass(frozen=True, slots=True)
class _Selected:
    """What some selectors, all of which have to hold, let through."""

    units: tuple[Unit, ...]
    drops: tuple[ClauseDrop, ...] = ()
    cause: Cause | None = None
    trouble: str = ""


class Judge:
    """Puts requests through the sieves; what a class selects is found once."""

    def __init__(
        self,
        live: Sequence[LiveClass],
        published: tuple[Unit, ...],
        excluded: Mapping[str, str],
        evaluator: Evaluator,
    ) -> None:
        self._live = {c.name: c for c in live}
        self._published = published
        self._excluded = excluded
        self._evaluator = evaluator
        self._of_class: dict[str, _Selected] = {}

    def rows(self, request: Request) -> tuple[Row, ...]:
        """Return a row for each alternative."""
        return tuple(self._row(alternative, request.origin) for alternative in request.alternatives)

    def common_node(self, wanted: Sequence[Row]) -> bool:
        """Return whether one node has devices for all these requests at once; each fits somewhere by itself."""
        if any(row.alternative.count is None or row.alternative.is_admin for row in wanted):
            return True
        if any("" in row.nodes for row in wanted):
            # Devices that belong to no single node: a scheduler knows which nodes reach them.
            return True
        nodes = set(wanted[0].nodes).intersection(*(row.nodes for row in wanted))
        choices = [_by_node(self._matching(row.alternative).units) for row in wanted]
        return any(_fit_together(node, wanted, choices) for node in nodes)

    def _class(self, name: str) -> _Selected:
        if name not in self._of_class:
            self._of_class[name] = self._select(self._published, self._live[name].expressions)
        return self._of_class[name]

    def _matching(self, alternative: Alternative) -> _Selected:
        found = self._select(self._class(alternative.class_name).units, alternative.selectors)
        if alternative.is_admin:
            return replace(found, units=tuple(replace(unit, held=0) for unit in found.units))
        return found

    def _select(self, chosen: tuple[Unit, ...], expressions: Iterable[str]) -> _Selected:
        drops: tuple[ClauseDrop, ...] = ()
        for expression in expressions:
            found = preview(expression, [unit.device for unit in chosen], self._evaluator)
            drops += found.drops
            for outcome, cause in (
                (Outcome.ERROR, Cause.SELECTOR_FAILS),
                (Outcome.CANNOT_TELL, Cause.CANNOT_TELL),
            ):
                if found.count(outcome):
                    reason = next(v.reason for v in found.verdicts if v.outcome is outcome).split("\n")[0]
                    words = f"`{expression}` on {found.count(outcome)} of {_devices(len(chosen))}: {reason}"
                    return _Selected((), drops, cause, words)
            chosen = tuple(
                unit
                for unit, verdict in zip(chosen, found.verdicts, strict=True)
                if verdict.outcome is Outcome.MATCH
            )
        return _Selected(chosen, drops)

    def _row(self, alternative: Alternative, origin: str) -> Row:
        name = alternative.class_name
        if name not in self._live:
            message = f"DeviceClass {name} does not exist; `kubectl get deviceclasses` lists those that do"
            return Row(alternative, origin, Cause.CLASS_MISSING, message)
        policy = self._live[name].policy or ""
        of_class = self._class(name)
        row = Row(
            alternative, origin, Cause.FREE, "", policy, stock.count(of_class.units), drops=of_class.drops
        )
        row = replace(row, others=self._others(name, policy))
        if of_class.cause is not None:
            return replace(
                row, cause=of_class.cause, message=f"the selector of class {name} {_fails(of_class)}"
            )
        if not of_class.units:
            total = _devices(len(self._published))
            return replace(row, cause=Cause.NO_DEVICES, message=f"class {name} selects none of {total}")
        own = self._matching(alternative)
        row = replace(row, drops=own.drops, matching=stock.count(own.units, alternative.tolerations))
        if own.cause is not None:
            return replace(row, cause=own.cause, message=f"the request's selector {_fails(own)}")
        if not own.units:
            message = f"the request's selectors drop all {_devices(row.of_class.devices)} of class {name}"
            return replace(row, cause=Cause.SELECTOR_MISSES, message=message)
        return self._judged(row, own.units)

    def _judged(self, row: Row, chosen: tuple[Unit, ...]) -> Row:
        """Judge by what is free where."""
        found, asked = row.matching, row.alternative.count
        told = f"{found.allocated} of {_devices(found.devices)} allocated, {_left(found)}"
        if not found.free:
            return replace(row, cause=Cause.NONE_FREE, message=told)
        if asked is not None and found.free < asked:
            return replace(row, cause=Cause.TOO_FEW_FREE, message=f"{told}, {asked} asked")
        whole = _whole_nodes(chosen, row.alternative)
        fitting = [
            node for node in found.nodes if (node in whole if asked is None else found.on(node) >= asked)
        ]
        if not fitting:
            node, most = found.most
            wanted = "all that match" if asked is None else str(asked)
            message = f"{told}, at most {most} on one node ({node}), {wanted} asked on one node"
            return replace(row, cause=Cause.TOO_FEW_ON_ONE_NODE, message=message)
        nodes = tuple(node for node in fitting if node not in self._excluded)
        if not nodes:
            named = ", ".join(f"{node} ({self._excluded[node]})" for node in fitting[:_NAMED_NODES])
            more = f" and {len(fitting) - _NAMED_NODES} more" if len(fitting) > _NAMED_NODES else ""
            message = f"{told}, but the pod may not run where enough is free: {named}{more}"
            return replace(row, cause=Cause.NODES_EXCLUDED, message=message)
        return replace(row, message=told, nodes=nodes)

    def _others(self, name: str, policy: str) -> tuple[tuple[str, Stock], ...]:
        siblings = sorted(
            c.name for c in self._live.values() if policy and c.policy == policy and c.name != name
        )
        return tuple((sibling, stock.count(self._class(sibling).units)) for sibling in siblings)


def _by_node(chosen: Iterable[Unit]) -> dict[str, list[Unit]]:
    found: dict[str, list[Unit]] = {}
    for unit in chosen:
        found.setdefault(unit.device.node, []).append(unit)
    return found


def _fit_together(node: str, wanted: Sequence[Row], choices: Sequence[Mapping[str, list[Unit]]]) -> bool:
    """Return whether the node has a device for every device asked: a matching by augmenting paths."""
    slots = []
    for row, chosen in zip(wanted, choices, strict=True):
        free = [
            (unit.device.driver, unit.device.pool, unit.device.name, share)
            for unit in (*chosen[node], *chosen.get("", ()))
            for share in range(unit.free(row.alternative.tolerations))
        ]
        slots += [free] * (row.alternative.count or 0)
    taken: dict[Any, int] = {}

    def place(slot: int, seen: set[Any]) -> bool:
        for device in slots[slot]:
            if device not in seen:
                seen.add(device)
                if device not in taken or place(taken[device], seen):
                    taken[device] = slot
                    return True
        return False

    return all(place(slot, set()) for slot in range(len(slots)))


def _whole_nodes(chosen: Iterable[Unit], wanted: Alternative) -> frozenset[str]:
    """Return the nodes whose devices are all free, as a request for all of them needs."""
    free: dict[str, bool] = {}
    for unit in chosen:
        is_free = unit.free(wanted.tolerations) == unit.shares
        free[unit.device.node] = free.get(unit.device.node, True) and is_free
    return frozenset(node for node, is_free in free.items() if is_free and free.get("", True))


def _fails(selected: _Selected) -> str:
    verb = "fails" if selected.cause is Cause.SELECTOR_FAILS else "has no verdict that is known here"
    return f"{verb}: {selected.trouble}"


def _left(found: Stock) -> str:
    parts = [f"{found.free} free"]
    parts += [f"{number} kept back by taint {key}" for key, number in found.tainted.items()]
    if found.incomplete:
        parts.append(f"{found.incomplete} in pools whose slices are not all there")
    return ", ".join(parts)


def _devices(number: int) -> str:
    return _counted(number, "device")


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
