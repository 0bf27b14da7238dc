"""What is wrong with a selector that the API server accepts: it takes too much, takes nothing, or fails.

Findings are for people: policies show them as warnings, `kubectl-gpupolicy select` prints them. Nothing is refused for
one of them; a selector may be right tomorrow.
"""

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from gpupolicy.core.refusals import listing
from gpupolicy.core.selection import Device, Evaluator, Outcome, Preview, Read

__all__ = ["FOREIGN_DEVICE", "Finding", "LintReason", "lint"]


class LintReason(StrEnum):
    """Why a selector deserves a second look."""

    SELECTOR_TOO_BROAD = "SelectorTooBroad"
    """It also selects devices of a kind that it is not meant for."""
    SELECTOR_MATCHES_NOTHING = "SelectorMatchesNothing"
    """No device there is matches."""
    SELECTOR_FAILS = "SelectorFails"
    """It raises an error on some device, which stops the scheduling of every pod that uses it."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing to look at."""

    reason: LintReason
    message: str
    """What, how many, and what to do about it."""


FOREIGN_DEVICE: Final = Device(driver="another-driver.example.com", name="a device of another driver")
"""What every selector meets sooner or later: a device about which nothing that it reads is known."""

_KINDS: Final = {
    "gpu": ("whole card", "whole cards"),
    "mig": ("MIG device", "MIG devices"),
    "share": ("share", "shares"),
}
_VALUES_SHOWN: Final = 5


def lint(
    expression: str,
    devices: Sequence[Device],
    preview: Preview,
    evaluator: Evaluator,
    *,
    meant_for: str | None = None,
) -> tuple[Finding, ...]:
    """Return the findings on a selector.

    Args:
        expression: the selector.
        devices: the devices there are.
        preview: what the selector makes of them.
        evaluator: what knows the language.
        meant_for: `type` of the devices that it should select: gpu, mig or share; None when any will do.
    """
    findings: list[Finding] = []
    if evaluator.problem(expression):
        # The API server refuses it, in better words.
        return ()
    if meant_for is not None:
        findings += _too_broad(devices, preview, meant_for)
    findings += _fails(expression, devices, preview, evaluator)
    if devices and not preview.count(Outcome.MATCH):
        findings.append(_matches_nothing(devices, preview, evaluator.reads(expression).names))
    return tuple(findings)


def _too_broad(devices: Sequence[Device], preview: Preview, meant_for: str) -> Iterable[Finding]:
    unwanted: dict[str, int] = {}
    for device, verdict in zip(devices, preview.verdicts, strict=True):
        kind = _text(device, "type")
        if verdict.outcome is Outcome.MATCH and kind is not None and kind != meant_for:
            unwanted[kind] = unwanted.get(kind, 0) + 1
    for kind, number in sorted(unwanted.items()):
        one, many = _KINDS.get(kind, (f"{kind} device", f"{kind} devices"))
        wanted = _KINDS.get(meant_for, ("", f"{meant_for} devices"))[1]
        yield Finding(
            LintReason.SELECTOR_TOO_BROAD,
            f"it is meant for {wanted} and also matches {number} {one if number == 1 else many}; "
            f'add a clause on the type: ... .type == "{meant_for}"',
        )


def _fails(
    expression: str, devices: Sequence[Device], preview: Preview, evaluator: Evaluator
) -> Iterable[Finding]:
    failing = [d for d, v in zip(devices, preview.verdicts, strict=True) if v.outcome is Outcome.ERROR]
    if failing:
        reason = next(v.reason for v in preview.verdicts if v.outcome is Outcome.ERROR)
        examples = listing([_place(device) for device in failing[:_VALUES_SHOWN]])
        yield Finding(
            LintReason.SELECTOR_FAILS,
            f"it fails on {len(failing)} of {len(devices)} devices ({examples}) with: {reason.splitlines()[0]}; that stops "
            "the scheduling of every pod that uses it. Name the driver first, and guard what may be missing: "
            "has(...) && ..., or .?name.orValue(...)",
        )
        return
    foreign = evaluator.evaluate(expression, [FOREIGN_DEVICE])[0]
    if foreign.outcome is Outcome.ERROR:
        yield Finding(
            LintReason.SELECTOR_FAILS,
            f"it would fail on the first device of another driver with: {foreign.reason.splitlines()[0]}; "
            'begin with: device.driver == "..." && ...',
        )


def _matches_nothing(devices: Sequence[Device], preview: Preview, reads: Sequence[Read]) -> Finding:
    parts = [f"none of {len(devices)} devices matches"]
    parts += [f"`{drop.clause}` drops {drop.devices}" for drop in preview.drops]
    drivers = sorted({device.driver for device in devices})
    parts.append(f"drivers: {listing(drivers)}")
    for read in reads:
        if read.kind != "attributes":
            continue
        values = sorted({_shown(v) for v in (_value(d, read) for d in devices) if v is not None})
        if values:
            parts.append(
                f"{read.name}: {listing(values[:_VALUES_SHOWN])}{', ...' if len(values) > _VALUES_SHOWN else ''}"
            )
        else:
            parts.append(f"no device has {read.domain}/{read.name}{_suggestion(devices, read)}")
    return Finding(LintReason.SELECTOR_MATCHES_NOTHING, "; ".join(parts))


def _suggestion(devices: Sequence[Device], read: Read) -> str:
    published = {_qualified(name, device.driver) for device in devices for name in device.attributes}
    close = difflib.get_close_matches(f"{read.domain}/{read.name}", sorted(published), n=1)
    return f" (did you mean {close[0]}?)" if close else ""


def _qualified(name: str, driver: str) -> str:
    return name if "/" in name else f"{driver}/{name}"


def _value(device: Device, read: Read) -> Any:
    attribute = device.attributes.get(f"{read.domain}/{read.name}")
    if attribute is None and device.driver == read.domain:
        attribute = device.attributes.get(read.name)
    if not isinstance(attribute, dict) or not attribute:
        return None
    return next(iter(attribute.values()))


def _shown(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)


def _text(device: Device, name: str) -> str | None:
    attribute = device.attributes.get(name)
    value = attribute.get("string") if isinstance(attribute, dict) else None
    return value if isinstance(value, str) else None


def _place(device: Device) -> str:
    return "/".join(part for part in (device.node or device.pool, device.name) if part) or device.driver
