"""Taints and tolerations, which nodes and devices have in one form: what keeps a new pod or claim off."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

__all__ = ["keeping_off"]

_KEEPS_OFF: Final = frozenset({"NoSchedule", "NoExecute"})


def keeping_off(
    taints: Iterable[Mapping[str, Any]], tolerations: Iterable[Mapping[str, Any]] = ()
) -> tuple[str, ...]:
    """Return the keys of the taints that keep newcomers off and that none of the tolerations takes, in their order."""
    tolerations = tuple(tolerations)
    return tuple(
        str(taint.get("key", ""))
        for taint in taints
        if taint.get("effect") in _KEEPS_OFF and not any(_takes(t, taint) for t in tolerations)
    )


def _takes(toleration: Mapping[str, Any], taint: Mapping[str, Any]) -> bool:
    if toleration.get("effect") and toleration["effect"] != taint.get("effect"):
        return False
    if toleration.get("key") and toleration["key"] != taint.get("key"):
        return False
    if toleration.get("operator") == "Exists":
        return True
    # Numeric operators are the newest of servers only; one that is not understood takes nothing.
    is_equal = toleration.get("operator") in (None, "", "Equal")
    return is_equal and (toleration.get("value") or "") == (taint.get("value") or "")
