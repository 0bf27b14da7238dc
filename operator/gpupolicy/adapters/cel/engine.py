"""Judge an expression as the API server would, and evaluate it on devices as the scheduler would.

    admission = engine.judge(text)                       # accepted, rejected with a reason, or cannot tell
    verdicts = engine.evaluate(text, devices)            # one verdict a device, never an exception

A device is a `core.selection.Device`: what stands in a ResourceSlice, plus its driver's name. Compiled expressions
are kept, so that asking again is cheap. Nothing here talks to a cluster.
"""

import contextlib
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from gpupolicy.adapters.cel import celpy, cost, evaluator, google, macros, runtime, scan, validators
from gpupolicy.adapters.cel.checker import Checked, check
from gpupolicy.adapters.cel.declarations import Environment
from gpupolicy.adapters.cel.reads import find as find_reads
from gpupolicy.adapters.cel.runtime_cost import LIMIT as RUNTIME_LIMIT
from gpupolicy.adapters.cel.syntax import ExpressionError, Issue, Node, Source, UncertainError, depth
from gpupolicy.adapters.cel.types import BOOL
from gpupolicy.adapters.cel.values import (
    AbortedError,
    CelError,
    DefaultMap,
    MapValue,
    QuantityValue,
    type_name,
)
from gpupolicy.core import quantities, versions
from gpupolicy.core.selection import Admission, Answer, Device, Outcome, Read, Reads, Verdict

__all__ = ["NEW", "STORED", "Engine", "clauses", "evaluate", "forget", "judge", "problem", "reads"]

STORED = Environment()
"""Environment of an expression that the scheduler evaluates."""

NEW = Environment(new=True)
"""Environment of an expression that is being created."""

MAX_BYTES = 10 * 1024

_DEPTH_MARGIN = 5
"""Levels around the limit where our count and the API server's may differ."""

_RECURSION_LIMIT = 8000


@dataclass(frozen=True, slots=True)
class _Compiled:
    """An expression that compiles: what it costs, and its programs."""

    checked: Checked
    estimated_cost: int
    program: evaluator.Program | None
    unsure: str = ""
    """Why there is no program."""


def judge(expression: str, environment: Environment = NEW) -> Admission:
    """Return what the API server would say to a new selector with this expression."""
    size = len(_well_formed(expression).encode())
    if size > MAX_BYTES:
        return _rejected(f"Too long: may not be more than {MAX_BYTES} bytes (it has {size})")
    compiled = _compiled(expression, environment)
    match compiled:
        case ExpressionError():
            issue = compiled.issues[0] if compiled.issues else None
            return _rejected(str(compiled), issue)
        case UncertainError():
            return Admission(Answer.CANNOT_TELL, str(compiled))
    estimated = compiled.estimated_cost
    if estimated > cost.LIMIT:
        reason = f"too complex, exceeds cost limit: estimated at up to {estimated}, the limit is {cost.LIMIT}"
        return Admission(Answer.REJECTED, reason, estimated_cost=estimated)
    if compiled.unsure:
        return Admission(Answer.CANNOT_TELL, compiled.unsure, estimated_cost=estimated)
    return Admission(Answer.ACCEPTED, "", estimated_cost=estimated)


def _rejected(reason: str, issue: Issue | None = None) -> Admission:
    if issue is None:
        return Admission(Answer.REJECTED, reason)
    return Admission(Answer.REJECTED, reason, line=issue.line, column=issue.column)


def evaluate(expression: str, devices: Iterable[Device], environment: Environment = STORED) -> list[Verdict]:
    """Return one verdict for each device.

    An expression that does not compile gives every device the same error.
    """
    compiled = _compiled(expression, environment)
    match compiled:
        case ExpressionError():
            return [Verdict(Outcome.ERROR, f"compilation failed: {compiled}") for _ in devices]
        case UncertainError():
            return [Verdict(Outcome.CANNOT_TELL, str(compiled)) for _ in devices]
    return [_verdict(compiled, device, environment) for device in devices]


@lru_cache(maxsize=256)
def _compiled(expression: str, environment: Environment) -> _Compiled | ExpressionError | UncertainError:
    try:
        with _deep_recursion():
            checked = _checked(_well_formed(expression), environment)
            return _program(checked, cost.estimate(checked))
    except (ExpressionError, UncertainError) as refusal:
        return refusal
    except RecursionError:
        return UncertainError("the expression is nested too deeply to be judged here")


def problem(expression: str, environment: Environment = STORED) -> str:
    """Return why an expression does not compile; "" when it does, or when that is not known here."""
    compiled = _compiled(expression, environment)
    return str(compiled) if isinstance(compiled, ExpressionError) else ""


def reads(expression: str, environment: Environment = STORED) -> Reads:
    """Return what an expression reads; of one that does not compile, nothing."""
    compiled = _compiled(expression, environment)
    return find_reads(compiled.checked.root) if isinstance(compiled, _Compiled) else Reads(())


def clauses(expression: str) -> tuple[str, ...]:
    """Return the terms that an expression ANDs at its outermost level."""
    return tuple(clause.text for clause in celpy.clauses(expression))


@dataclass(frozen=True, slots=True)
class Engine:
    """The functions of this module for one environment: a `core.selection.Evaluator`."""

    environment: Environment = STORED

    def problem(self, expression: str) -> str:
        """Return why the expression does not compile."""
        return problem(expression, self.environment)

    def evaluate(self, expression: str, devices: Iterable[Device]) -> list[Verdict]:
        """Return a verdict for each device."""
        return evaluate(expression, devices, self.environment)

    def reads(self, expression: str) -> Reads:
        """Return what the expression reads."""
        return reads(expression, self.environment)

    def clauses(self, expression: str) -> tuple[str, ...]:
        """Return the terms that the expression ANDs."""
        return clauses(expression)


def forget() -> None:
    """Drop the compiled expressions, for tests that change what is installed."""
    _compiled.cache_clear()


def _well_formed(text: str) -> str:
    """Return the text as it arrives over JSON: what is half of a character becomes the mark for that."""
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _program(checked: Checked, estimated: int) -> _Compiled | ExpressionError:
    try:
        return _Compiled(checked, estimated, evaluator.compile_program(checked))
    except CelError as error:
        # Conversions of literals are computed when the program is made.
        return ExpressionError((Issue(str(error), 1, 1),), f"program instantiation failed: {error}")
    except UncertainError as reason:
        return _Compiled(checked, estimated, None, str(reason))


@contextlib.contextmanager
def _deep_recursion() -> Iterator[None]:
    """Let expressions as deep as the API server takes them be walked; they are at most 250 levels."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(max(before, _RECURSION_LIMIT))
    try:
        yield
    finally:
        sys.setrecursionlimit(before)


def _checked(expression: str, environment: Environment) -> Checked:
    node, source = _parsed(expression, environment)
    node, source = macros.expand(node, source)
    checked = check(node, source, environment)
    if checked.result not in (BOOL, environment.attribute_type):
        text = f"must evaluate to bool or the unknown type, not {checked.result}"
        raise ExpressionError((Issue(text, 1, 1),), text)
    validators.validate(checked)
    return checked


def _parsed(expression: str, environment: Environment) -> tuple[Node, Source]:
    pieces = scan.scan(expression)
    brackets = pieces.depth
    if pieces.quoted_name is not None and environment.minor < 37:
        source = Source(expression, {0: pieces.quoted_name})
        raise source.error([source.issue(0, "unsupported syntax: '`'")])
    if brackets > scan.MAX_DEPTH + 2:
        raise _too_deep()
    if brackets >= scan.MAX_DEPTH:
        raise _near_too_deep()
    if google.available():
        with contextlib.suppress(google.UnreadableError):
            return google.parse(expression)
    node, source = celpy.parse(expression)
    levels = depth(node, lambda part: pieces.depth_at(source.offsets[part.id]))
    if levels > scan.MAX_DEPTH + _DEPTH_MARGIN:
        raise _too_deep()
    if levels > scan.MAX_DEPTH - _DEPTH_MARGIN:
        raise _near_too_deep()
    return node, source


def _near_too_deep() -> UncertainError:
    # What counts as a level differs between constructs.
    return UncertainError(
        f"the expression is nested about {scan.MAX_DEPTH} levels, which may be one too many"
    )


def _too_deep() -> ExpressionError:
    message = f"expression recursion limit exceeded: {scan.MAX_DEPTH}"
    return ExpressionError((Issue(message, 1, 1),), f"ERROR: <input>:-1:0: {message}")


def _verdict(compiled: _Compiled, device: Device, environment: Environment) -> Verdict:
    if compiled.program is None:
        return Verdict(Outcome.CANNOT_TELL, compiled.unsure)
    try:
        value = _device_value(device, environment)
    except CelError as error:
        return Verdict(Outcome.ERROR, str(error))
    if ambiguous := _ambiguous(device):
        wanted = find_reads(compiled.checked.root)
        if wanted.everything or ambiguous.intersection(wanted.names):
            return Verdict(Outcome.CANNOT_TELL, "an attribute or capacity that it reads is there twice")
    if compiled.estimated_cost > RUNTIME_LIMIT:
        given_up = _given_up(compiled, value)
        if given_up is not None:
            return given_up
    outcome = _run(compiled.program, value)
    if compiled.program.ordered and outcome.outcome is not Outcome.CANNOT_TELL:
        for order in runtime.ORDERS:
            program = evaluator.compile_program(compiled.checked, order=order)
            if _run(program, value).outcome is not outcome.outcome:
                return Verdict(
                    Outcome.CANNOT_TELL, "the verdict depends on the order of a map, which is random"
                )
    return outcome


def _run(program: evaluator.Program, value: MapValue) -> Verdict:
    try:
        with _deep_recursion():
            result = program.run(runtime.Frame(value))
    except (CelError, AbortedError) as error:
        return Verdict(Outcome.ERROR, str(error))
    except UncertainError as reason:
        return Verdict(Outcome.CANNOT_TELL, str(reason))
    except RecursionError:
        return Verdict(Outcome.CANNOT_TELL, "the expression is nested too deeply to be evaluated here")
    if type(result) is not bool:
        return Verdict(
            Outcome.ERROR, f"CEL result of type {type_name(result)} could not be converted to bool"
        )
    return Verdict(Outcome.MATCH if result else Outcome.NO_MATCH)


def _given_up(compiled: _Compiled, value: MapValue) -> Verdict | None:
    """Return the verdict where the scheduler gives up, or may; None where it comes to an end."""
    program = evaluator.compile_program(compiled.checked, counting=True)
    frame = runtime.Frame(value)
    try:
        program.run(frame)
    except runtime.CostExceededError:
        return Verdict(Outcome.ERROR, "operation cancelled: actual cost limit exceeded")
    except (CelError, UncertainError, AbortedError):
        pass
    # The count is close, not exact: near the limit nothing is said.
    if frame.cost > RUNTIME_LIMIT // 2:
        return Verdict(Outcome.CANNOT_TELL, f"the evaluation costs about {frame.cost}, close to the limit")
    return None


def _ambiguous(device: Device) -> set[Read]:
    """Return what a device has twice, with and without the domain; which of them counts is random."""
    prefix = f"{device.driver}/"
    return {
        Read(kind, device.driver, name.removeprefix(prefix))
        for kind, values in (("attributes", device.attributes), ("capacity", device.capacity))
        for name in values
        if name.startswith(prefix) and values.get(name.removeprefix(prefix), values[name]) != values[name]
    }


def _device_value(device: Device, environment: Environment) -> MapValue:
    """Return the variable `device`.

    Raises:
        CelError: when the scheduler cannot read the device, whatever the expression says.
    """
    attributes: dict[str, list[tuple[object, object]]] = {}
    for name, attribute in device.attributes.items():
        domain, identifier = _qualified(name, device.driver)
        value = _attribute(name, attribute, environment)
        attributes.setdefault(domain, []).append((identifier, value))
    capacity: dict[str, list[tuple[object, object]]] = {}
    for name, amount in device.capacity.items():
        domain, identifier = _qualified(name, device.driver)
        capacity.setdefault(domain, []).append((identifier, _amount(name, amount)))
    return MapValue(
        (
            ("driver", device.driver),
            ("allowMultipleAllocations", device.allow_multiple_allocations),
            ("attributes", _by_domain(attributes)),
            ("capacity", _by_domain(capacity)),
        ),
        native=True,
    )


def _by_domain(values: dict[str, list[tuple[object, object]]]) -> DefaultMap:
    inner = ((domain, MapValue(tuple(entries), native=True)) for domain, entries in values.items())
    return DefaultMap(tuple(inner), native=True)


def _qualified(name: str, driver: str) -> tuple[str, str]:
    domain, slash, identifier = name.partition("/")
    return (domain, identifier) if slash else (driver, name)


_SCALARS: dict[str, type[Any]] = {"int": int, "bool": bool, "string": str, "version": str}


def _attribute(name: str, attribute: Any, environment: Environment) -> object:
    if isinstance(attribute, Mapping):
        for kind, accepted in _SCALARS.items():
            value = attribute.get(f"{kind}s")
            if value is not None and environment.exposes_list_values and isinstance(value, list):
                return [_scalar(name, kind, accepted, element) for element in value]
        for kind, accepted in _SCALARS.items():
            value = attribute.get(kind)
            if value is not None:
                return _scalar(name, kind, accepted, value)
    raise CelError(f"attribute {name}: unsupported attribute value")


def _scalar(name: str, kind: str, accepted: type[Any], value: Any) -> Any:
    if type(value) is not accepted:
        raise CelError(f"attribute {name}: unsupported attribute value")
    if kind == "string":
        return _well_formed(value)
    if kind != "version":
        return value
    try:
        return versions.parse(value)
    except versions.InvalidVersionError as error:
        raise CelError(f"attribute {name}: parse semantic version: {error}") from error


def _amount(name: str, amount: Any) -> QuantityValue:
    if amount is not None and not isinstance(amount, Mapping):
        raise CelError(f"capacity {name}: no value")
    value = None if amount is None else amount.get("value")
    if value is None:
        # Go reads what is left out, or null, as nought.
        value = "0"
    try:
        # YAML turns a quantity such as 8 into a number.
        if type(value) in (int, float):
            value = str(value)
        if not isinstance(value, str):
            raise CelError(f"capacity {name}: no value")
        return QuantityValue(quantities.parse(value))
    except (quantities.InvalidQuantityError, quantities.UnsupportedQuantityError) as error:
        raise CelError(f"capacity {name}: {error}") from error
