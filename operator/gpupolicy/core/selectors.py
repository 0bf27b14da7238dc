"""Compile the typed fields of a `gpuSelector` to CEL, for either driver target.

The result goes into a DeviceClass, where one run-time error aborts the scheduling of every pod that uses the
class. It therefore asks for the driver first, and looks at no attribute before it knows that the attribute is
there and has the type that the comparison needs: a device without the fact is no match, never an error.

Strings are data. They reach the expression only as quoted literals; wildcards become an anchored regular
expression in which everything else is escaped; a user's own expression is put between brackets after a check
that it cannot close them itself. What cannot be compiled is found by `problems`, as data; `compile_selector`
on such fields is a bug of the caller.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from gpupolicy.api import names
from gpupolicy.api.policy import GpuSelector
from gpupolicy.core import quantities, versions

__all__ = [
    "GPUPOLICY",
    "MAX_EXPRESSION_BYTES",
    "NVIDIA",
    "FieldProblem",
    "SelectorTarget",
    "compile_selector",
    "problems",
    "quote",
]

MAX_EXPRESSION_BYTES: Final = 10 * 1024
"""What the API server allows for one selector."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectorTarget:
    """Names that a DRA driver gives to the facts we select by. One row for each driver that we write classes for."""

    driver: str
    domain: str
    product: str = "productName"
    architecture: str = "architecture"
    compute_capability: str = "cudaComputeCapability"
    memory: str = "memory"


GPUPOLICY: Final = SelectorTarget(driver=names.DRIVER, domain=names.DRIVER)
NVIDIA: Final = SelectorTarget(driver=names.INTEROP_DRIVER, domain=names.INTEROP_DRIVER)


@dataclass(frozen=True, slots=True)
class FieldProblem:
    """Why a field of a selector cannot be compiled."""

    field: str
    """Path below `gpuSelector`, as the user writes it: `minMemory`, `products[1]`."""
    message: str
    """One sentence that names the value and the remedy."""


def problems(selector: GpuSelector, target: SelectorTarget) -> tuple[FieldProblem, ...]:
    """Return what keeps the selector from being compiled; empty when `compile_selector` will do it."""
    found = list(_problems(selector))
    if not found:
        size = len(compile_selector(selector, target).encode())
        if size > MAX_EXPRESSION_BYTES:
            found.append(
                FieldProblem(
                    "cel" if selector.cel else "products",
                    f"the compiled selector has {size} bytes, the API server takes {MAX_EXPRESSION_BYTES}; shorten it",
                )
            )
    return tuple(found)


def compile_selector(selector: GpuSelector, target: SelectorTarget) -> str:
    """Return the CEL expression that is true for the whole cards of `target` which the selector means.

    No field set gives every device of the driver.

    Raises:
        ValueError: when `problems` has something to say about the selector.
    """
    found = next(_problems(selector), None)
    if found is not None:
        raise ValueError(f"{found.field}: {found.message}")
    return " && ".join(_clauses(selector, target))


def quote(text: str) -> str:
    """Return `text` as a CEL string literal that means exactly `text`."""
    return '"' + "".join(_QUOTED.get(char) or _escape(char) for char in text) + '"'


_QUOTED = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_FIRST_PRINTABLE = 0x20
_LAST_ASCII = 0x7E


def _escape(char: str) -> str:
    code = ord(char)
    if _FIRST_PRINTABLE <= code <= _LAST_ASCII:
        return char
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"  # noqa: PLR2004


def _driver(target: SelectorTarget) -> str:
    return f"device.driver == {quote(target.driver)}"


def _present(target: SelectorTarget, name: str, kind: str = "attributes") -> str:
    return f"{quote(name)} in device.{kind}[{quote(target.domain)}]"


def _attribute(target: SelectorTarget, name: str, kind: str = "attributes") -> str:
    return f"device.{kind}[{quote(target.domain)}].{name}"


def _typed(target: SelectorTarget, name: str, type_expression: str) -> str:
    # `type(x) == string` would do the same, but the API server's estimate of its cost is beyond any limit.
    return f"{_present(target, name)} && type({_attribute(target, name)}) in [{type_expression}]"


def _clauses(selector: GpuSelector, target: SelectorTarget) -> Iterator[str]:
    yield _driver(target)
    if selector.products:
        yield from _products(selector.products, target)
    if selector.architectures:
        listed = ", ".join(quote(name) for name in selector.architectures)
        yield _typed(target, target.architecture, "string")
        yield f"{_attribute(target, target.architecture)} in [{listed}]"
    if selector.min_memory is not None:
        memory = _attribute(target, target.memory, "capacity")
        yield _present(target, target.memory, "capacity")
        yield f"{memory}.compareTo(quantity({quote(selector.min_memory)})) >= 0"
    if selector.min_compute_capability is not None:
        capability = _attribute(target, target.compute_capability)
        least = quote(str(versions.normalize(selector.min_compute_capability)))
        yield _typed(target, target.compute_capability, 'type(semver("0.0.0"))')
        yield f"{capability}.compareTo(semver({least})) >= 0"
    if selector.cel is not None:
        # The line break keeps a trailing comment from swallowing the bracket.
        yield f"({selector.cel}\n)" if "//" in selector.cel else f"({selector.cel})"


def _products(products: list[str], target: SelectorTarget) -> Iterator[str]:
    product = _attribute(target, target.product)
    exact = [name for name in products if not _is_pattern(name)]
    patterns = [name for name in products if _is_pattern(name)]
    yield _typed(target, target.product, "string")
    choices = []
    if exact:
        choices.append(f"{product} in [{', '.join(quote(name) for name in exact)}]")
    if patterns:
        alternatives = "|".join(_regex(name) for name in patterns)
        choices.append(f"{product}.matches({quote(f'^(?s:{alternatives})$')})")
    yield choices[0] if len(choices) == 1 else f"({' || '.join(choices)})"


def _is_pattern(name: str) -> bool:
    return "*" in name or "?" in name


def _regex(pattern: str) -> str:
    """Return the RE2 expression of a wildcard pattern, unanchored; runs of `*` are one."""
    parts = []
    for char in re.sub(r"\*+", "*", pattern):
        if char == "*":
            parts.append(".*")
        elif char == "?":
            parts.append(".")
        else:
            parts.append(f"\\{char}" if char in _REGEX_SPECIAL else char)
    return "".join(parts)


_REGEX_SPECIAL = frozenset(r"\.+*?()|[]{}^$")


def _problems(selector: GpuSelector) -> Iterator[FieldProblem]:
    for field, values in (("products", selector.products), ("architectures", selector.architectures)):
        for index, value in enumerate(values):
            yield from _problem(f"{field}[{index}]", _text_problem(value))
    if selector.min_memory is not None:
        yield from _problem("minMemory", _memory_problem(selector.min_memory))
    if selector.min_compute_capability is not None:
        yield from _problem("minComputeCapability", _version_problem(selector.min_compute_capability))
    if selector.cel is not None:
        yield from _problem("cel", _expression_problem(selector.cel))


def _problem(field: str, message: str | None) -> Iterator[FieldProblem]:
    if message is not None:
        yield FieldProblem(field, message)


def _memory_problem(text: str) -> str | None:
    try:
        least = quantities.parse(text)
    except (quantities.InvalidQuantityError, quantities.UnsupportedQuantityError) as error:
        return f'"{text}" is no quantity such as "79Gi": {error}'
    return f'"{text}" is negative; give a size such as "79Gi"' if least.sign < 0 else None


def _version_problem(text: str) -> str | None:
    try:
        versions.normalize(text)
    except versions.InvalidVersionError as error:
        return f'"{text}" is no version such as "9.0": {error}'
    return None


def _text_problem(value: str) -> str | None:
    if not value:
        return "an empty name matches nothing; leave it out"
    try:
        value.encode()
    except UnicodeEncodeError:
        return (
            f"{value!a} holds half a surrogate pair, which no device can report; write the character itself"
        )
    return None


# Everything of CEL in which a bracket is no bracket: raw and plain strings, single and triple quoted, and comments.
_OPAQUE = re.compile(
    r"""
    [bB]?[rR][bB]?(?:\"{3}.*?\"{3}|'{3}.*?'{3}|"[^"\r\n]*"|'[^'\r\n]*')
    | (?:\"{3}(?:\\.|[^\\])*?\"{3}|'{3}(?:\\.|[^\\])*?'{3}|"(?:\\.|[^"\\\r\n])*"|'(?:\\.|[^'\\\r\n])*')
    | //[^\r\n]*
    """,
    re.VERBOSE | re.DOTALL,
)
_CLOSING = {")": "(", "]": "[", "}": "{"}


def _expression_problem(expression: str) -> str | None:
    """Return why the expression cannot stand between brackets without changing what is outside of them."""
    if not expression.strip():
        return "the expression is empty; leave it out"
    try:
        expression.encode()
    except UnicodeEncodeError:
        return "the expression holds half a surrogate pair; write the character itself"
    opened: list[str] = []
    position = 0
    while position < len(expression):
        opaque = _OPAQUE.match(expression, position)
        if opaque is not None:
            position = opaque.end()
            continue
        char = expression[position]
        if char in "\"'":
            return f"the string that starts at character {position + 1} is not closed"
        if char in "([{":
            opened.append(char)
        elif char in _CLOSING and (not opened or opened.pop() != _CLOSING[char]):
            return f"the {char!r} at character {position + 1} closes nothing; remove it or open it before"
        position += 1
    return f"{opened[-1]!r} is never closed" if opened else None
