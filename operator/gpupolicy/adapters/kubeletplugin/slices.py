"""What the ResourceSlices of a pool must look like, and which writes lead there. Pure: no I/O, no clock.

Theory of operation. A pool is published in several slices. The scheduler uses only slices of the highest generation,
and uses the pool only if their number is what each of them says (`resourceSliceCount`); until then no device of the
pool can be allocated. Hence:

- One slice that changes is replaced in place, at the same generation: the pool is complete all the time.
- Missing slices are created at the same generation, the others stay untouched.
- Anything else (two slices change, or their number does) gets a new generation and writes every slice once; slices
  of the old generation that are left over count no more and are deleted afterwards.

Names are derived from driver, node, pool and position, so a slice that was lost is created under its old name, and
two instances of a driver cannot publish the same slice twice. The scheduler tries slices in the order of their names
and devices in the order of the list; both follow the order that the driver gives.

Devices and counter sets never share a slice. Objects are plain dicts as on the wire.
"""

import copy
import hashlib
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

Object = dict[str, Any]

API_VERSION: Final = "resource.k8s.io/v1"
KIND: Final = "ResourceSlice"

PLAIN_DEVICES: Final = 128
"""Devices that fit into one slice."""

DEVICES: Final = 64
"""Devices that fit into one slice if any of them has taints, consumes counters or has a list for an attribute."""

COUNTER_SETS: Final = 8
"""Counter sets that fit into one slice."""

_NAME_LENGTH: Final = 253
_HASH_LENGTH: Final = 10
_LIST_ATTRIBUTES: Final = frozenset({"ints", "bools", "strings", "versions"})
_KEPT_METADATA: Final = ("resourceVersion", "uid", "labels", "annotations", "finalizers")
_INDEX: Final = re.compile(r"\[\d+\]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """Whose slices they are: one driver on one node. The node's uid makes them go with the node.

    `labels` are given to every slice that is written; a slice is not written for its labels alone.
    """

    driver: str
    node_name: str
    node_uid: str
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """The devices that a driver offers on a node.

    Attributes:
        name: of the pool, unique among all drivers of the node: schedulers have mixed up pools of one name.
        devices: in the order in which the scheduler is to try them, each as in `spec.devices`.
        counter_sets: what the devices consume, each as in `spec.sharedCounters`.
        partitionable: keep to 64 devices a slice even while nothing needs it, so that the first taint does not move
            devices from slice to slice.
        essential: fields without which the devices must not be offered, such as `spec.devices[].consumesCounters`:
            an API server that does not know them drops them silently and would hand out everything at once.
    """

    name: str
    devices: tuple[Mapping[str, Any], ...]
    counter_sets: tuple[Mapping[str, Any], ...] = ()
    partitionable: bool = False
    essential: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """A slice that was written: what was sent, and what the API server made of it."""

    sent: Object
    returned: Object


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """Writes that bring the live slices to what is wanted, in this order. All empty: nothing is to be done.

    Attributes:
        generation: of the pool when they are done.
        obstacles: to be deleted first, because they spoil the pool or offer its devices a second time.
        writes: to be replaced where there is a `metadata.resourceVersion`, else created. All at once: the pool is
            incomplete from the first to the last of them.
        leftovers: to be deleted last; they no longer count.
    """

    generation: int
    obstacles: tuple[Object, ...] = ()
    writes: tuple[Object, ...] = ()
    leftovers: tuple[Object, ...] = ()

    def __bool__(self) -> bool:
        """Say whether there is anything to do."""
        return bool(self.obstacles or self.writes or self.leftovers)


def find_problems(pool: Pool) -> tuple[str, ...]:
    """List what makes the whole pool invalid for the scheduler although the API server would accept each slice."""
    counters: dict[str, set[str]] = {}
    problems = [f"counter set {name!r} stands twice" for name in _twice(pool.counter_sets)]
    problems += [f"device {name!r} stands twice" for name in _twice(pool.devices)]
    for counter_set in pool.counter_sets:
        counters[counter_set["name"]] = set(counter_set["counters"])
    for device in pool.devices:
        for consumed in device.get("consumesCounters", ()):
            name = consumed["counterSet"]
            if name not in counters:
                problems.append(
                    f"device {device['name']!r} consumes from counter set {name!r}, which the pool lacks"
                )
                continue
            problems += [
                f"device {device['name']!r} consumes counter {counter!r}, which set {name!r} lacks"
                for counter in sorted(set(consumed["counters"]) - counters[name])
            ]
    return tuple(problems)


def draft(pool: Pool, owner: Owner) -> tuple[Object, ...]:
    """Lay the pool out in slices, without generation and count. A pool without devices has no slices."""
    if not pool.devices:
        return ()
    limit = DEVICES if pool.partitionable or any(map(_is_heavy, pool.devices)) else PLAIN_DEVICES
    contents = [(f"{index:05d}", {"devices": part}) for index, part in enumerate(batch(pool.devices, limit))]
    contents += [
        # A letter sorts behind every digit: the order of counter slices means nothing.
        (f"c{index:04d}", {"sharedCounters": part})
        for index, part in enumerate(batch(pool.counter_sets, COUNTER_SETS))
    ]
    return tuple(
        {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "metadata": {
                "name": name_slice(prefix, pool.name, owner),
                **({"labels": dict(owner.labels)} if owner.labels else {}),
                "ownerReferences": [_owner_reference(owner)],
            },
            "spec": {
                "driver": owner.driver,
                "nodeName": owner.node_name,
                "pool": {"name": pool.name},
                **copy.deepcopy(content),
            },
        }
        for prefix, content in contents
    )


def plan(
    pool: Pool,
    owner: Owner,
    live: Iterable[Object],
    *,
    settled: Mapping[str, Settled] | None = None,
    lowest_generation: int = 1,
) -> Changes:
    """Decide what to write so that the live slices become what the pool wants.

    Args:
        pool: what is wanted; it should have no problems.
        owner: whose slices.
        live: every slice of this driver on this node, of whatever pool.
        settled: by name, what earlier writes became: a slice that differs from what is wanted only by what the API
            server dropped or respelled is not written again.
        lowest_generation: of a pool that has no slices now; the last one used, so that it never goes back.
    """
    settled = settled or {}
    live = [item for item in live if _is_ours(item, owner)]
    strangers = tuple(item for item in live if item["spec"]["pool"]["name"] != pool.name)
    of_pool = {item["metadata"]["name"]: item for item in live if item["spec"]["pool"]["name"] == pool.name}
    drafts = _carry_times(draft(pool, owner), of_pool.values())
    names = {item["metadata"]["name"] for item in drafts}
    extra = tuple(item for name, item in of_pool.items() if name not in names)
    current = max((_generation(item) for item in of_pool.values()), default=0)

    wanted = _numbered(drafts, max(current, 1) if of_pool else lowest_generation)
    changed = [
        item for item in wanted if not _is_settled(item, of_pool.get(item["metadata"]["name"]), settled)
    ]
    in_place = [item for item in changed if item["metadata"]["name"] in of_pool]
    if not in_place or (len(changed) == 1 and not extra):
        return Changes(
            generation=_generation(wanted[0]) if wanted else current,
            obstacles=(*strangers, *extra),
            writes=tuple(_update(item, of_pool) for item in changed),
        )
    bumped = _numbered(drafts, current + 1)
    return Changes(
        generation=current + 1,
        obstacles=strangers,
        writes=tuple(_update(item, of_pool) for item in bumped),
        leftovers=extra,
    )


def name_slice(prefix: str, pool_name: str, owner: Owner) -> str:
    """Name a slice: position first, then the node to read, then a hash of everything that identifies it."""
    identity = f"{owner.driver}/{owner.node_name}/{pool_name}"
    suffix = hashlib.sha256(identity.encode()).hexdigest()[:_HASH_LENGTH]
    room = _NAME_LENGTH - len(prefix) - len(suffix) - 2
    # A cut must not end in a dot or dash, which a name of dotted parts does not allow.
    node = owner.node_name[:room].rstrip(".-")
    return f"{prefix}-{node}-{suffix}"


def generalize(paths: Iterable[str]) -> tuple[str, ...]:
    """Reduce paths like `spec.devices[3].taints` to their distinct forms like `spec.devices[].taints`."""
    return tuple(sorted({_INDEX.sub("[]", path) for path in paths}))


def contains(item: Mapping[str, Any], path: str) -> bool:
    """Say whether an object has a field, named as by `generalize`, with a value that is not empty."""
    return any(value not in (None, [], {}) for value in _values(item, path.split(".")))


def batch(items: Sequence[Any], size: int) -> Iterator[list[Any]]:
    """Cut a sequence into lists of at most `size`. The standard library has it from Python 3.12."""
    rest = iter(items)
    while part := list(itertools.islice(rest, size)):
        yield part


def _values(value: Any, steps: Sequence[str]) -> Iterator[Any]:
    if not steps:
        yield value
        return
    name, many = steps[0].removesuffix("[]"), steps[0].endswith("[]")
    if not isinstance(value, Mapping) or name not in value:
        return
    for inner in value[name] if many else (value[name],):
        yield from _values(inner, steps[1:])


def _is_heavy(device: Mapping[str, Any]) -> bool:
    return bool(
        device.get("taints")
        or device.get("consumesCounters")
        or any(_LIST_ATTRIBUTES & set(value) for value in device.get("attributes", {}).values())
    )


def _is_ours(item: Object, owner: Owner) -> bool:
    """Check again what the list's selector asked for: a mistake there must not delete what is another's."""
    spec = item.get("spec", {})
    return bool(spec.get("driver") == owner.driver and spec.get("nodeName") == owner.node_name)


def _owner_reference(owner: Owner) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "name": owner.node_name,
        "uid": owner.node_uid,
        "controller": True,
    }


def _twice(items: Sequence[Mapping[str, Any]]) -> list[str]:
    names = [item["name"] for item in items]
    return sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []


def _generation(item: Object) -> int:
    return int(item["spec"]["pool"]["generation"])


def _numbered(drafts: Sequence[Object], generation: int) -> list[Object]:
    numbered = []
    for item in drafts:
        spec = item["spec"]
        pool = {**spec["pool"], "generation": generation, "resourceSliceCount": len(drafts)}
        numbered.append({**item, "spec": {**spec, "pool": pool}})
    return numbered


def _is_settled(wanted: Object, live: Object | None, settled: Mapping[str, Settled]) -> bool:
    """Say whether a live slice needs no write."""
    if live is None or _owner_uids(live) != _owner_uids(wanted):
        return False
    if live["spec"] == wanted["spec"]:
        return True
    known = settled.get(wanted["metadata"]["name"])
    return known is not None and known.sent == wanted["spec"] and known.returned == live["spec"]


def _owner_uids(item: Object) -> list[str]:
    return [reference.get("uid", "") for reference in item["metadata"].get("ownerReferences", ())]


def _update(wanted: Object, of_pool: Mapping[str, Object]) -> Object:
    """Turn a wanted slice into what is sent: with the version that it replaces, if there is one."""
    live = of_pool.get(wanted["metadata"]["name"])
    if live is None:
        return wanted
    kept = {key: live["metadata"][key] for key in _KEPT_METADATA if key in live["metadata"]}
    metadata = {**kept, **wanted["metadata"]}
    if "labels" in metadata:
        metadata["labels"] = {**kept.get("labels", {}), **metadata["labels"]}
    return {**wanted, "metadata": metadata}


def _carry_times(drafts: Sequence[Object], live: Iterable[Object]) -> tuple[Object, ...]:
    """Let a taint that is already published keep its time.

    The API server stamps a taint that comes without one, so every rewrite would start the tolerations of its pods
    anew.
    """
    times = {
        (device["name"], taint.get("key"), taint.get("value"), taint.get("effect")): taint["timeAdded"]
        for item in live
        for device in item["spec"].get("devices") or ()
        for taint in device.get("taints") or ()
        if "timeAdded" in taint
    }
    for item in drafts:
        for device in item["spec"].get("devices", ()):
            for taint in device.get("taints", ()):
                known = times.get((device["name"], taint.get("key"), taint.get("value"), taint.get("effect")))
                if known is not None:
                    taint.setdefault("timeAdded", known)
    return tuple(drafts)
