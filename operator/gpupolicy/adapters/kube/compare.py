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

_IDENTITY: Final = frozenset(
    {"apiVersion", "kind", "name", "namespace", "uid", "resourceVersion", "generateName"}
)
"""Fields that tell which object it is, at the top and in its metadata: nobody owns them."""

_EMPTY: Final[tuple[Any, ...]] = ("", [], {})
"""Values that servers leave out of an object."""

_ANY: Final = object()
_DEFAULTS: Final[Mapping[str, Any]] = {
    "allocationMode": "ExactCount",
    "count": 1,
    "matchPolicy": "Equivalent",
    "namespaceSelector": {},
    "objectSelector": {},
    "scope": "*",
    "timeAdded": _ANY,
}
"""What servers add inside atomic lists of the objects that we apply: requests of claims, taints, rules of admission."""


def dropped_fields(sent: wire.Object, returned: wire.Object) -> list[str]:
    """Return the paths of the fields that the API server did not keep, such as `spec.devices[0].consumesCounters`.

    An API server whose feature gate is off drops the gate's fields without a word. Fields with an empty value
    (None, "", 0, False, [] or {}) are not missed: servers leave them out. A value that came back changed is not
    dropped: quantities come back in another notation. An element of a list is reported as a whole.
    """
    return list(_dropped(sent, returned, ""))


def is_applied(desired: wire.Object, live: wire.Object, field_manager: str, subresource: str = "") -> bool:
    """Return whether server-side apply of `desired` would change nothing.

    That is so when all its values are there, and the field manager owns its fields and no others. Inside what is
    owned as a whole (atomic lists and maps) a further field of the live object is either a default of the server
    or one that we applied before and dropped since, so only the defaults in `_DEFAULTS` are passed over.
    The answer may be False where nothing would change (a quantity in another notation), never the reverse.

    Args:
        desired: what would be applied.
        live: the object as the server has it, with `metadata.managedFields`; without them the answer is False.
        field_manager: in whose name it would be applied.
        subresource: `status` if it would be applied there.
    """
    owned = _owned(live, field_manager, subresource)
    return bool(owned) and _settled(owned, _ownable(desired), live)


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


def _ownable(desired: wire.Object) -> wire.Object:
    """Return what an apply makes us the owner of: all but the identity, and no nulls, which count as absent."""
    metadata = {k: v for k, v in desired.get("metadata", {}).items() if k not in _IDENTITY}
    body = {k: v for k, v in desired.items() if k not in _IDENTITY and k != "metadata"}
    found: wire.Object = _without_nulls(body | ({"metadata": metadata} if metadata else {}))
    return found


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


def _settled(owned: Any, desired: Any, live: Any) -> bool:
    """Return whether `desired` is what we own and what is there."""
    children = [key for key in owned if key != "."] if isinstance(owned, Mapping) else []
    if not children:
        return _same(desired, live)
    if isinstance(desired, Mapping) and isinstance(live, Mapping):
        if {f"f:{key}" for key in desired} != set(children):
            return False
        return all(
            _settled(owned[f"f:{key}"], value, live[key]) if key in live else value in _EMPTY
            for key, value in desired.items()
        )
    if isinstance(desired, list) and isinstance(live, list) and len(desired) == len(children):
        return all(
            any(_settled_element(owned, child, value, live) for child in children) for value in desired
        )
    return False


def _settled_element(owned: Mapping[str, Any], child: str, value: Any, live: Sequence[Any]) -> bool:
    """Return whether an element of a desired list is the owned one and stands in the live list."""
    if not _is_element(child, value):
        return False
    return any(_is_element(child, element) and _settled(owned[child], value, element) for element in live)


def _same(desired: Any, live: Any) -> bool:
    """Return whether two values are equal but for defaults that the server added."""
    if isinstance(desired, Mapping) and isinstance(live, Mapping):
        absent_only = all(
            _same(value, live[key]) if key in live else value in _EMPTY for key, value in desired.items()
        )
        return absent_only and all(_is_default(key, live[key]) for key in live if key not in desired)
    if isinstance(desired, list) and isinstance(live, list):
        return len(desired) == len(live) and all(map(_same, desired, live))
    # True equals 1 in Python and not in JSON.
    return bool(live == desired) and isinstance(live, bool) == isinstance(desired, bool)


def _is_default(key: str, value: Any) -> bool:
    return key in _DEFAULTS and _DEFAULTS[key] in (_ANY, value)


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
