"""Compares what we sent with what the API server has: what did it drop, and does it need to be written at all?

Both questions ignore what the server adds (defaults, metadata of its own, status): the object that we sent is
looked for inside the one that it has.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from gpupolicy.adapters.kube import wire

_LIST_KEYS: Final = (("name",), ("driver", "device", "pool", "shareID"), ("type",), ("key",), ("uid",))
"""Fields by which the API tells the elements of its lists apart; the first that do so for a given list are taken."""

_IDENTITY: Final = frozenset({"apiVersion", "kind"})
_UNOWNED_METADATA: Final = frozenset({"name", "namespace", "uid", "resourceVersion", "generateName"})


def dropped_fields(sent: wire.Object, returned: wire.Object) -> list[str]:
    """Return the paths of the fields that the API server did not keep, such as `spec.devices[0].consumesCounters`.

    An API server whose feature gate is off drops the gate's fields without a word. Fields with an empty value
    (None, "", 0, False, [] or {}) are not missed: servers leave them out. A value that came back changed is not
    dropped: quantities come back in another notation. An element of a list is reported as a whole.
    """
    return list(_dropped(sent, returned, ""))


def is_applied(desired: wire.Object, live: wire.Object, field_manager: str, subresource: str = "") -> bool:
    """Return whether server-side apply of `desired` would change nothing.

    That is so when all its values are there, the field manager owns all of its fields, and owns no other.
    The answer may be False where nothing would change (another notation of a quantity), never the reverse.

    Args:
        desired: what would be applied.
        live: the object as the server has it, with `metadata.managedFields`; without them the answer is False.
        field_manager: in whose name it would be applied.
        subresource: `status` if it would be applied there.
    """
    desired = _without_nulls(desired)
    owned = _owned(live, field_manager, subresource)
    return (
        owned is not None
        and _contains(live, desired)
        and _owns(owned, desired, top=True)
        and _needs(owned, desired)
    )


def _dropped(sent: Any, returned: Any, path: str) -> Iterator[str]:
    if isinstance(sent, Mapping) and isinstance(returned, Mapping):
        for key, value in sent.items():
            inner = _join(path, str(key))
            if key in returned:
                yield from _dropped(value, returned[key], inner)
            elif value not in (None, "", 0, False, [], {}):
                yield inner
    elif isinstance(sent, list) and isinstance(returned, list):
        keys = _keys(sent)
        for index, value in enumerate(sent):
            match = _element(value, index, returned, keys)
            if match is None:
                yield f"{path}[{index}]"
            else:
                yield from _dropped(value, match, f"{path}[{index}]")
    elif isinstance(sent, (Mapping, list)) and sent:
        # A whole structure came back as null or as something else.
        yield path


def _join(path: str, key: str) -> str:
    if not key.replace("_", "").isalnum():
        return f'{path}["{key}"]'
    return f"{path}.{key}" if path else key


def _keys(elements: Sequence[Any]) -> tuple[str, ...]:
    """Return the fields that tell the elements of a list apart; none if they are told apart by position."""
    if not elements or not all(isinstance(element, Mapping) for element in elements):
        return ()
    for keys in _LIST_KEYS:
        if all(keys[0] in element for element in elements):
            identities = {tuple(str(element.get(key)) for key in keys) for element in elements}
            if len(identities) == len(elements):
                return keys
    return ()


def _element(value: Any, index: int, returned: Sequence[Any], keys: tuple[str, ...]) -> Any:
    """Return the element of the returned list that stands for a sent one; None if there is none."""
    if keys:
        for element in returned:
            if isinstance(element, Mapping) and all(element.get(key) == value.get(key) for key in keys):
                return element
        return None
    return returned[index] if index < len(returned) else None


def _contains(live: Any, desired: Any) -> bool:
    """Return whether every value of `desired` is in `live`; lists must have the same length or hold the elements."""
    if isinstance(desired, Mapping):
        if not isinstance(live, Mapping):
            return False
        # The server leaves empty values out; that the field is ours is checked by its owner.
        return all(
            _contains(live[key], value) if key in live else value in ("", [], {}) for key, value in desired.items()
        )
    if isinstance(desired, list):
        if not isinstance(live, list):
            return False
        keys = _keys(desired)
        if not keys and len(live) != len(desired):
            return False
        pairs = [(value, _element(value, index, live, keys)) for index, value in enumerate(desired)]
        return all(match is not None and _contains(match, value) for value, match in pairs)
    # True equals 1 in Python and not in JSON.
    return bool(live == desired) and isinstance(live, bool) == isinstance(desired, bool)


def _without_nulls(value: Any) -> Any:
    """Return the value without keys that are None, which an apply treats as not there."""
    if isinstance(value, Mapping):
        return {key: _without_nulls(inner) for key, inner in value.items() if inner is not None}
    if isinstance(value, list):
        return [_without_nulls(inner) for inner in value]
    return value


def _owned(live: wire.Object, field_manager: str, subresource: str) -> Mapping[str, Any] | None:
    for entry in live.get("metadata", {}).get("managedFields", ()):
        named = entry.get("manager") == field_manager and entry.get("operation") == "Apply"
        if named and entry.get("subresource", "") == subresource:
            fields = entry.get("fieldsV1")
            return fields if isinstance(fields, Mapping) else None
    return None


def _owns(owned: Mapping[str, Any], desired: Any, *, top: bool = False, metadata: bool = False) -> bool:
    """Return whether the set of owned fields covers every field of `desired`."""
    children = [key for key in owned if key != "."]
    if not children:
        # An atomic list or map, or a scalar, is owned as a whole.
        return not top
    if isinstance(desired, Mapping):
        for key, value in desired.items():
            if (top and key in _IDENTITY) or (metadata and key in _UNOWNED_METADATA):
                continue
            inner = owned.get(f"f:{key}")
            if inner is None:
                if top and key == "metadata" and set(value) <= _UNOWNED_METADATA:
                    continue
                return False
            if not _owns(inner, value, metadata=top and key == "metadata"):
                return False
        return True
    if isinstance(desired, list):
        return all(any(_is_element(key, element) for key in children) for element in desired) and all(
            _owns(owned[key], element) for element in desired for key in children if _is_element(key, element)
        )
    return False


def _needs(owned: Mapping[str, Any], desired: Any) -> bool:
    """Return whether every owned field is one of `desired`; one that is not would be removed by an apply."""
    for key, inner in owned.items():
        kind, _, rest = key.partition(":")
        if kind == "f":
            if not isinstance(desired, Mapping) or rest not in desired or not _needs(inner, desired[rest]):
                return False
        elif kind in {"k", "v"}:
            matches = (
                [element for element in desired if _is_element(key, element)]
                if isinstance(desired, list)
                else []
            )
            if not matches or not _needs(inner, matches[0]):
                return False
    return True


def _is_element(key: str, element: Any) -> bool:
    """Return whether a path element of managed fields (`k:{"name":"x"}` or `v:"x"`) names an element of a list."""
    kind, _, rest = key.partition(":")
    try:
        named = json.loads(rest)
    except ValueError:
        return False
    if kind == "v":
        return bool(named == element)
    if kind == "k" and isinstance(named, Mapping) and isinstance(element, Mapping):
        # Keys may have defaults that we did not send, such as the protocol of a port.
        return all(field not in element or element[field] == value for field, value in named.items())
    return False
