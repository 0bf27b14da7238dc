"""The shapes that travel: objects, lists, watch events, options of requests."""

import datetime as dt
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from gpupolicy.adapters.kube import decoding, errors, resources

Object = dict[str, Any]
"""One Kubernetes object, decoded JSON."""

Transform = Callable[[Object], Object | None]
"""Returns what is kept of an object; None drops it."""

MERGE_PATCH: Final = "application/merge-patch+json"
APPLY_PATCH: Final = "application/apply-patch+yaml"

_LEADING_DIGITS: Final = re.compile(r"\d+")


class ObjectList(NamedTuple):
    """What a list returned: the objects, and the version to watch from."""

    items: Sequence[Object]
    resource_version: str


class WatchEvent(NamedTuple):
    """One event of a watch: ADDED, MODIFIED, DELETED or BOOKMARK, and the object."""

    type: str
    object: Object


@dataclass(frozen=True, slots=True)
class ServerVersion:
    """What the API server says it is.

    Attributes:
        git_version: the full version, such as `v1.37.2`.
        major: major version that it behaves as (an emulated one, if it emulates).
        minor: minor version that it behaves as.
    """

    git_version: str
    major: int
    minor: int


def micro_time(moment: dt.datetime) -> str:
    """Return an aware time as Kubernetes' MicroTime."""
    return moment.astimezone(dt.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def leading_integer(value: Any) -> int:
    """Return the number that a version part begins with (`34+` is 34); 0 if there is none."""
    match = _LEADING_DIGITS.match(str(value))
    return int(match.group()) if match else 0


def object(value: Any) -> Object:  # noqa: A001 - the word of the field for what this is
    """Return the value, which must be a JSON object.

    Raises:
        Unavailable: it is not; something other than an API server answered.
    """
    if not isinstance(value, dict):
        raise errors.Unavailable(0, "InvalidAnswer", f"the answer is no object but {type(value).__name__}")
    return value


def items(page: Object, resource: resources.Resource, transform: Transform | None) -> Iterator[Object]:
    """Yield what is kept of the items of a list, in the shape in which a watch delivers them.

    The items of a list of a built-in kind lack `apiVersion` and `kind`; a watch sends both.
    """
    found = page.get("items")
    for item in found if isinstance(found, list) else ():
        kept: Object | None = typed(resource, item)
        if transform is not None and kept is not None:
            kept = transform(kept)
        if kept is not None:
            yield kept


def typed(resource: resources.Resource, body: Object) -> Object:
    """Return the object with `apiVersion` and `kind`; ours if it has none."""
    if "kind" in body and "apiVersion" in body:
        return body
    return {"apiVersion": resource.api_version, "kind": resource.kind, **body}


def name(body: Object) -> str:
    """Return the name of an object.

    Raises:
        ValueError: it has none.
    """
    found = body.get("metadata", {}).get("name")
    if not isinstance(found, str) or not found:
        raise ValueError(f"a {body.get('kind', 'object')} without metadata.name cannot be written")
    return found


def namespace(resource: resources.Resource, body: Object) -> str | None:
    """Return the namespace of an object; None for a cluster-scoped one."""
    return body.get("metadata", {}).get("namespace") if resource.namespaced else None


def watch_event(line: bytes) -> WatchEvent:
    """Return the event of one line of a watch.

    Raises:
        ApiError: the line carries an error, such as `Gone`, or is no event.
    """
    try:
        decoded = decoding.loads(line)
        event = WatchEvent(decoded["type"], object(decoded["object"]))
    except (ValueError, KeyError, TypeError) as error:
        raise errors.Unavailable(0, "InvalidAnswer", f"a line of a watch is no event: {error!r}") from error
    if event.type == "ERROR":
        raise errors.from_status(200, event.object)
    return event


def selectors(label_selector: str | None, field_selector: str | None) -> dict[str, str]:
    """Return the query for selectors."""
    query = {"labelSelector": label_selector, "fieldSelector": field_selector}
    return {key: value for key, value in query.items() if value}


def write_query(*, field_manager: str | None, dry_run: bool, strict: bool) -> dict[str, str]:
    """Return the query for a write."""
    query = {"fieldValidation": "Strict" if strict else "Warn"}
    if field_manager:
        query["fieldManager"] = field_manager
    if dry_run:
        query["dryRun"] = "All"
    return query


def delete_options(propagation: str | None, *, dry_run: bool) -> Object:
    """Return the body of a delete."""
    body: Object = {"apiVersion": "v1", "kind": "DeleteOptions"}
    if propagation:
        body["propagationPolicy"] = propagation
    if dry_run:
        body["dryRun"] = ["All"]
    return body
