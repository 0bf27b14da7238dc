"""What a selector means for the devices there are: verdicts, and a preview that says what matches where.

Pure: the verdicts come from an evaluator that is passed in (`adapters.cel.engine`).

Theory of the preview. An expression sees little of a device: the driver and the few attributes that it reads. Devices
that agree in those are one shape and get one verdict, so 40,000 devices cost a dozen evaluations and 40,000 looks
into a dictionary. What a device must not do is look usual and be unreadable: a device with an attribute that the
scheduler cannot read fails every expression, so each such device is a shape of its own.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from gpupolicy.core import quantities, versions

__all__ = [
    "Admission",
    "Answer",
    "ClauseDrop",
    "Device",
    "Evaluator",
    "Outcome",
    "Preview",
    "Read",
    "Reads",
    "Verdict",
    "explain",
    "group",
    "preview",
]


class Answer(StrEnum):
    """What the API server would do with a new expression."""

    ACCEPTED = "accepted"
    REJECTED = "rejected"
    CANNOT_TELL = "cannot-tell"
    """Not known here; ask a server."""


class Outcome(StrEnum):
    """What an expression says about a device."""

    MATCH = "match"
    NO_MATCH = "no-match"
    ERROR = "error"
    """Evaluation fails. On a real cluster that aborts the scheduling of every pod whose class says this."""
    CANNOT_TELL = "cannot-tell"
    """The outcome on a real server is not known here."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What an expression says about one device; `reason` is empty unless something went wrong."""

    outcome: Outcome
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Admission:
    """What the API server would say to a new expression."""

    answer: Answer
    reason: str
    line: int = 0
    column: int = 0
    """Place of the first fault, counted from 1; 0 when there is none."""
    estimated_cost: int | None = None
    """Most that the expression can cost; None when that is not known."""


@dataclass(frozen=True, slots=True)
class Device:
    """A device as a selector sees it, with where it was found."""

    driver: str
    attributes: Mapping[str, Any] = field(default_factory=dict)
    """As in a ResourceSlice: name -> {"string": ...}, {"int": ...}, {"bool": ...} or {"version": ...}."""
    capacity: Mapping[str, Any] = field(default_factory=dict)
    """As in a ResourceSlice: name -> {"value": ...}."""
    allow_multiple_allocations: bool = False
    name: str = ""
    node: str = ""
    pool: str = ""


@dataclass(frozen=True, slots=True, order=True)
class Read:
    """One attribute or capacity that an expression reads."""

    kind: str
    """`attributes` or `capacity`."""
    domain: str
    name: str


@dataclass(frozen=True, slots=True)
class Reads:
    """What an expression reads of a device, apart from its driver."""

    names: tuple[Read, ...]
    everything: bool = False
    """Whether any attribute may decide."""


class Evaluator(Protocol):
    """What knows the language of expressions."""

    def problem(self, expression: str) -> str:
        """Return why the expression does not compile, "" when it does or when that is not known."""

    def evaluate(self, expression: str, devices: Iterable[Device]) -> list[Verdict]:
        """Return a verdict for each device."""

    def reads(self, expression: str) -> Reads:
        """Return what the expression reads."""

    def clauses(self, expression: str) -> tuple[str, ...]:
        """Return the terms that the expression ANDs."""


@dataclass(frozen=True, slots=True)
class ClauseDrop:
    """How many devices a clause drops that every clause before it lets pass."""

    clause: str
    devices: int


@dataclass(frozen=True, slots=True)
class Preview:
    """What an expression selects now."""

    verdicts: tuple[Verdict, ...]
    """One for each device, in their order."""
    nodes: Mapping[str, int]
    """Node -> devices that match there; nodes without any are left out."""
    drops: tuple[ClauseDrop, ...]
    """In the order of the clauses; those that drop nothing are left out."""
    shapes: int
    """How many devices had to be evaluated."""

    def count(self, outcome: Outcome) -> int:
        """Return how many devices came out like this."""
        return sum(verdict.outcome is outcome for verdict in self.verdicts)

    @property
    def reasons(self) -> Mapping[str, int]:
        """What went wrong -> for how many devices, most frequent first."""
        wrong = Counter(verdict.reason for verdict in self.verdicts if verdict.reason)
        return dict(wrong.most_common())

    @property
    def _first_error(self) -> str:
        failing = Counter(v.reason for v in self.verdicts if v.outcome is Outcome.ERROR)
        return failing.most_common(1)[0][0].split("\n")[0]

    @property
    def message(self) -> str:
        """One sentence or two for people."""
        total, matching = len(self.verdicts), self.count(Outcome.MATCH)
        parts = [f"{matching} of {_counted(total, 'device')} match"]
        if self.nodes:
            parts[0] += f", on {_counted(len(self.nodes), 'node')}"
        parts += [f"`{drop.clause}` drops {drop.devices}" for drop in self.drops]
        if failing := self.count(Outcome.ERROR):
            parts.append(f"it fails on {_counted(failing, 'device')}: {self._first_error}")
        if unknown := self.count(Outcome.CANNOT_TELL):
            parts.append(f"for {_counted(unknown, 'device')} the verdict is not known here")
        return "; ".join(parts)


def preview(expression: str, devices: Sequence[Device], evaluator: Evaluator) -> Preview:
    """Return what an expression selects of these devices; equal devices are evaluated once."""
    shapes, members = group(devices, evaluator.reads(expression))
    samples = [devices[index] for index in shapes]
    outcomes = evaluator.evaluate(expression, samples)
    sizes = Counter(members)
    nodes: Counter[str] = Counter(
        device.node
        for device, shape in zip(devices, members, strict=True)
        if outcomes[shape].outcome is Outcome.MATCH and device.node
    )
    dropped: Counter[int] = Counter()
    clauses = evaluator.clauses(expression)
    for shape, verdict in enumerate(outcomes):
        if verdict.outcome is Outcome.NO_MATCH:
            dropped[_dropping_clause(clauses, samples[shape], evaluator)] += sizes[shape]
    return Preview(
        verdicts=tuple(outcomes[shape] for shape in members),
        nodes=dict(sorted(nodes.items())),
        drops=tuple(ClauseDrop(clauses[index], dropped[index]) for index in sorted(dropped)),
        shapes=len(shapes),
    )


def explain(expression: str, device: Device, evaluator: Evaluator) -> tuple[tuple[str, Verdict], ...]:
    """Return what each clause of an expression says about one device."""
    return tuple(
        (clause, evaluator.evaluate(clause, [device])[0]) for clause in evaluator.clauses(expression)
    )


def _dropping_clause(clauses: tuple[str, ...], device: Device, evaluator: Evaluator) -> int:
    # A false clause makes up for one before it that fails; an only clause needs no asking.
    if len(clauses) > 1:
        for index, clause in enumerate(clauses):
            if evaluator.evaluate(clause, [device])[0].outcome is Outcome.NO_MATCH:
                return index
    return 0


def group(devices: Sequence[Device], reads: Reads) -> tuple[list[int], list[int]]:
    """Return the shapes of the devices.

    Returns:
        For each shape the index of its first device, and for each device the number of its shape.
    """
    numbers: dict[Any, int] = {}
    firsts: list[int] = []
    members: list[int] = []
    keys = _ShapeKeys(reads)
    for index, device in enumerate(devices):
        key = keys.of(device)
        number = len(firsts) if key is None else numbers.setdefault(key, len(firsts))
        if number == len(firsts):
            firsts.append(index)
        members.append(number)
    return firsts, members


_SCALARS: dict[str, type[Any]] = {"string": str, "version": str, "int": int, "bool": bool}


class _ShapeKeys:
    """Gives each device a key that is equal for devices of one shape; None for one that is like no other."""

    def __init__(self, reads: Reads) -> None:
        self._reads = reads
        self._versions: dict[str, bool] = {}
        self._quantities: dict[str, bool] = {}
        # Driver -> the keys under which a slice of that driver has what is read.
        self._lookups: dict[str, tuple[list[str], list[str]]] = {}

    def of(self, device: Device) -> Any:
        attributes = self._attributes(device.attributes)
        capacity = self._capacity(device.capacity)
        if attributes is None or capacity is None:
            return None
        head = (device.driver, bool(device.allow_multiple_allocations))
        if self._reads.everything:
            return head, frozenset(attributes.items()), frozenset(capacity.items())
        lookups = self._lookups.get(device.driver)
        if lookups is None:
            lookups = self._lookups[device.driver] = self._lookups_of(device.driver)
        return head, *map(attributes.get, lookups[0]), *map(capacity.get, lookups[1])

    def _lookups_of(self, driver: str) -> tuple[list[str], list[str]]:
        wanted: dict[str, list[str]] = {"attributes": [], "capacity": []}
        for read in self._reads.names:
            wanted[read.kind].append(f"{read.domain}/{read.name}")
            if read.domain == driver:
                wanted[read.kind].append(read.name)
        return wanted["attributes"], wanted["capacity"]

    def _attributes(self, attributes: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return name -> (kind, value), None when one of them cannot be read."""
        found: dict[str, Any] = {}
        for name, attribute in attributes.items():
            if type(attribute) is not dict or len(attribute) != 1:
                return None
            ((kind, value),) = item = tuple(attribute.items())
            if type(value) is not _SCALARS.get(kind):
                return None
            if kind == "version" and not self._is_version(str(value)):
                return None
            found[name] = item
        return found

    def _capacity(self, capacity: Mapping[str, Any]) -> dict[str, Any] | None:
        found: dict[str, Any] = {}
        for name, amount in capacity.items():
            value = amount.get("value") if type(amount) is dict else None
            if type(value) is not str or not self._is_quantity(value):
                return None
            found[name] = value
        return found

    def _is_version(self, text: str) -> bool:
        known = self._versions.get(text)
        if known is None:
            try:
                known = bool(versions.parse(text))
            except versions.InvalidVersionError:
                known = False
            self._versions[text] = known
        return known

    def _is_quantity(self, text: str) -> bool:
        known = self._quantities.get(text)
        if known is None:
            try:
                known = bool(quantities.parse(text))
            except (quantities.InvalidQuantityError, quantities.UnsupportedQuantityError):
                known = False
            self._quantities[text] = known
        return known


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
