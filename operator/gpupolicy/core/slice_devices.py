"""Read devices out of ResourceSlices and out of plain maps, whatever else stands in them.

Every released form of a ResourceSlice is understood, and fields that are not known are passed over: a selector sees
nothing but driver, attributes, capacity and one flag. Of a pool only the newest generation counts, as for the
scheduler. What cannot be a device is reported with its place; the others are kept.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gpupolicy.core.selection import Device

__all__ = ["Collected", "collect"]


@dataclass(frozen=True, slots=True)
class Collected:
    """The devices in some documents, and what could not be read."""

    devices: tuple[Device, ...]
    problems: tuple[str, ...]
    """One sentence each, with the place and the remedy."""


@dataclass(frozen=True, slots=True)
class _Slice:
    pool: tuple[str, str]
    generation: int
    devices: tuple[Device, ...]


def collect(documents: Iterable[Any]) -> Collected:
    """Return the devices in documents: ResourceSlices, lists of them, or maps of named devices.

    A map of named devices is `name: {driver: ..., attributes: ..., capacity: ...}`, at the top or under `devices`.
    """
    problems: list[str] = []
    slices: list[_Slice] = []
    named: list[Device] = []
    for number, document in enumerate(documents, 1):
        place = f"document {number}"
        for item, item_place in _items(document, place):
            if not isinstance(item, Mapping):
                problems.append(
                    f"{item_place} is a {type(item).__name__}, not a ResourceSlice or a map of devices"
                )
            elif item.get("kind") == "ResourceSlice":
                found = _slice(item, item_place, problems)
                if found is not None:
                    slices.append(found)
            elif "kind" in item or "apiVersion" in item:
                problems.append(f"{item_place} is a {item.get('kind')}, not a ResourceSlice; leave it out")
            else:
                named += _named(item, item_place, problems)
    return Collected((*_newest(slices), *named), tuple(problems))


def _items(document: Any, place: str) -> Iterator[tuple[Any, str]]:
    if document is None:
        return
    if isinstance(document, list):
        for index, item in enumerate(document):
            yield item, f"{place}[{index}]"
        return
    kind = str(document.get("kind") or "") if isinstance(document, Mapping) else ""
    items = document.get("items") if isinstance(document, Mapping) else None
    if isinstance(items, list) and (kind.endswith("List") or not kind):
        for index, item in enumerate(items):
            # Items of a list of one kind need not repeat it.
            if kind == "ResourceSliceList" and isinstance(item, Mapping) and "kind" not in item:
                yield {**item, "kind": "ResourceSlice"}, f"{place}.items[{index}]"
            else:
                yield item, f"{place}.items[{index}]"
        return
    yield document, place


def _slice(item: Mapping[str, Any], place: str, problems: list[str]) -> _Slice | None:
    metadata, spec = item.get("metadata"), item.get("spec")
    name = metadata.get("name") if isinstance(metadata, Mapping) else None
    place = f"ResourceSlice {name}" if name else place
    if not isinstance(spec, Mapping) or not isinstance(spec.get("driver"), str):
        problems.append(f"{place} has no spec.driver; it is no ResourceSlice of resource.k8s.io")
        return None
    pool = spec.get("pool")
    pool = pool if isinstance(pool, Mapping) else {}
    pool_name, generation = str(pool.get("name") or name or place), pool.get("generation")
    node = spec.get("nodeName")
    devices = []
    entries = spec.get("devices") or ()
    for index, entry in enumerate(entries if isinstance(entries, list) else ()):
        if not isinstance(entry, Mapping):
            problems.append(f"{place}: spec.devices[{index}] is a {type(entry).__name__}, not a device")
            continue
        # Until v1beta1 everything but the name stood under `basic`.
        basic = entry.get("basic")
        body = basic if isinstance(basic, Mapping) else entry
        devices.append(
            _device(
                spec["driver"],
                body,
                name=str(entry.get("name") or index),
                node=str(entry.get("nodeName") or body.get("nodeName") or node or ""),
                pool=pool_name,
            )
        )
    number = generation if isinstance(generation, int) else 0
    return _Slice((spec["driver"], pool_name), number, tuple(devices))


def _newest(slices: list[_Slice]) -> Iterator[Device]:
    newest: dict[tuple[str, str], int] = {}
    for found in slices:
        newest[found.pool] = max(found.generation, newest.get(found.pool, found.generation))
    for found in slices:
        if found.generation == newest[found.pool]:
            yield from found.devices


def _named(item: Mapping[str, Any], place: str, problems: list[str]) -> Iterator[Device]:
    devices = item.get("devices", item)
    if not isinstance(devices, Mapping) or not devices:
        problems.append(f"{place} holds no devices; give ResourceSlices, or a map of named devices")
        return
    for name, body in devices.items():
        if not isinstance(body, Mapping) or not isinstance(body.get("driver"), str):
            problems.append(f"{place}: {name} is no device: it has no driver")
            continue
        yield _device(body["driver"], body, name=str(name))


def _device(driver: str, body: Mapping[str, Any], *, name: str, node: str = "", pool: str = "") -> Device:
    attributes, capacity = body.get("attributes"), body.get("capacity")
    return Device(
        driver=driver,
        attributes=attributes if isinstance(attributes, Mapping) else {},
        capacity=capacity if isinstance(capacity, Mapping) else {},
        allow_multiple_allocations=body.get("allowMultipleAllocations") is True,
        name=name,
        node=node,
        pool=pool,
    )
