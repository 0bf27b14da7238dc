"""Writes the status of our own kinds also where their CRD is older than this program.

A server-side apply with a field that the CRD does not declare is refused as a whole. A status must get through all the
same, or nobody would learn that anything is wrong; so what the refusal names is left out, and the rest is written.
Nothing is remembered: once the CRD is upgraded the next write is complete. Only statuses are treated so. A plan without
one of its fields would be another plan.
"""

import logging
import re
from collections.abc import Iterable
from typing import Any, Final

from gpupolicy.adapters.kube import client, errors, resources, wire

logger = logging.getLogger(__name__)

Path = tuple[str, ...]

_ATTEMPTS: Final = 4
_UNDECLARED: Final = re.compile(r"(\.(?:\[[^\]]*\]|[^\s:\[\]])+): field not declared in schema")
_ELEMENT: Final = re.compile(r"\[[^\]]*\]")


async def apply_status(
    kube: client.Kube, resource: resources.Resource, body: wire.Object, *, field_manager: str
) -> wire.Object:
    """Apply a status with force; return the object as stored.

    Args:
        kube: the client.
        resource: of what kind.
        body: metadata.name and the status.
        field_manager: in whose name.

    Raises:
        ApiError: it was refused for another reason, or the API server did not answer.
    """
    for _ in range(_ATTEMPTS - 1):
        try:
            return await kube.apply(
                resource, body, field_manager=field_manager, force=True, subresource="status"
            )
        except errors.Invalid as error:
            paths = undeclared(error.message)
            if not paths:
                raise
            names = ", ".join(".".join(path) for path in paths)
            logger.warning("The CRD of %s lacks %s; upgrade the CRDs. It is left out", resource, names)
            body = without(body, paths)
    return await kube.apply(resource, body, field_manager=field_manager, force=True, subresource="status")


def undeclared(message: str) -> tuple[Path, ...]:
    """Return the paths of fields that a refusal calls undeclared, without the keys of list elements."""
    found = {tuple(_ELEMENT.sub("", text).strip(".").split(".")) for text in _UNDECLARED.findall(message)}
    # The spec is none of a status's business, and whose status has no status is beyond help.
    return tuple(sorted(path for path in found if path[0] == "status" and len(path) > 1))


def without(body: wire.Object, paths: Iterable[Path]) -> wire.Object:
    """Return the object without these fields; of a list, every element loses them."""
    for path in paths:
        body = _without(body, path)
    return body


def _without(value: Any, path: Path) -> Any:
    if isinstance(value, list):
        return [_without(element, path) for element in value]
    if not isinstance(value, dict) or path[0] not in value:
        return value
    if len(path) == 1:
        return {key: inner for key, inner in value.items() if key != path[0]}
    return {**value, path[0]: _without(value[path[0]], path[1:])}
