"""What devices a pod asks for: by claims, by claim templates, and by extended resource names.

The three ways end in the same: a request with one or more alternatives, each of a class. For extended names the
scheduler makes one claim of the pod, to which the newest class of a name counts and of which init containers share
what the others use.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gpupolicy.core import classes
from gpupolicy.core.access import IMPLICIT_PREFIX
from gpupolicy.core.classes import LiveClass
from gpupolicy.core.stock import Allocated, allocated

__all__ = ["Alternative", "Asked", "Request", "Source", "read"]

_NATIVE_DOMAIN: Final = "kubernetes.io/"


@dataclass(frozen=True, slots=True)
class Alternative:
    """One way to satisfy a request."""

    name: str
    class_name: str
    count: int | None = 1
    """Devices wanted; None for all that match on a node."""
    selectors: tuple[str, ...] = ()
    tolerations: tuple[Mapping[str, Any], ...] = ()
    is_admin: bool = False
    """Whether it only looks on: such a request takes devices that others hold."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request of the pod; its first alternative that fits is taken."""

    name: str
    origin: str
    """The object that holds the request, in words."""
    alternatives: tuple[Alternative, ...]


@dataclass(frozen=True, slots=True)
class Asked:
    """Everything that a pod asks for and has.

    Attributes:
        requests: those that are not allocated.
        held: what the claims of the pod have.
        problems: why something is asked for that cannot be had whatever is free, with the remedy.
        notes: what else is worth knowing.
        has_constraints: whether devices have to fit each other too.
    """

    requests: tuple[Request, ...] = ()
    held: tuple[Allocated, ...] = ()
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    has_constraints: bool = False


@dataclass(frozen=True, slots=True)
class Source:
    """What is looked up: claims and templates of the pod's namespace by name, all classes, and all nodes."""

    claims: Mapping[str, Mapping[str, Any]]
    templates: Mapping[str, Mapping[str, Any]]
    classes: Sequence[LiveClass]
    nodes: Sequence[Mapping[str, Any]] = ()


def read(pod: Mapping[str, Any], source: Source) -> Asked:
    """Return what the pod asks for and has."""
    spec, status = pod.get("spec") or {}, pod.get("status") or {}
    made = {s.get("name"): s.get("resourceClaimName") for s in status.get("resourceClaimStatuses") or ()}
    parts = [_claim(entry, made, source) for entry in spec.get("resourceClaims") or ()]
    special = (status.get("extendedResourceClaimStatus") or {}).get("resourceClaimName")
    if special and special in source.claims:
        parts.append(_of_claim(source.claims[special], f"ResourceClaim {special}"))
    else:
        parts.append(_extended(spec, source))
    return Asked(
        requests=tuple(r for part in parts for r in part.requests),
        held=tuple(h for part in parts for h in part.held),
        problems=tuple(p for part in parts for p in part.problems),
        notes=tuple(n for part in parts for n in part.notes),
        has_constraints=any(part.has_constraints for part in parts),
    )


def _claim(entry: Mapping[str, Any], made: Mapping[Any, Any], source: Source) -> Asked:
    name, template = entry.get("resourceClaimName"), entry.get("resourceClaimTemplateName")
    if template and entry.get("name") in made:
        name = made[entry["name"]]
        if not name:
            return Asked(notes=(f"ResourceClaimTemplate {template} makes no claim for this pod",))
    if name:
        claim = source.claims.get(name)
        if claim is None:
            return Asked(problems=(f"ResourceClaim {name} does not exist: create it, or make the pod again",))
        return _of_claim(claim, f"ResourceClaim {name}")
    if not template or template not in source.templates:
        return Asked(problems=(f"ResourceClaimTemplate {template} does not exist: create it",))
    body = (source.templates[template].get("spec") or {}).get("spec") or {}
    note = f"no ResourceClaim has been made from template {template} yet; if that stays, `kubectl describe pod` says why"
    return _of_spec(body, f"ResourceClaimTemplate {template}", (note,))


def _of_claim(claim: Mapping[str, Any], origin: str) -> Asked:
    held = allocated(claim)
    return Asked(held=held) if held else _of_spec(claim.get("spec") or {}, origin, ())


def _of_spec(spec: Mapping[str, Any], origin: str, notes: tuple[str, ...]) -> Asked:
    devices = spec.get("devices") or {}
    requests = []
    for body in devices.get("requests") or ():
        name = body.get("name", "")
        if body.get("exactly"):
            alternatives = [_alternative(name, body["exactly"])]
        else:
            alternatives = [
                _alternative(f"{name}/{b.get('name', '')}", b) for b in body.get("firstAvailable") or ()
            ]
        requests.append(Request(name, origin, tuple(alternatives)))
    return Asked(tuple(requests), notes=notes, has_constraints=bool(devices.get("constraints")))


def _alternative(name: str, body: Mapping[str, Any]) -> Alternative:
    return Alternative(
        name=name,
        class_name=body.get("deviceClassName", ""),
        count=None if body.get("allocationMode") == "All" else int(body.get("count") or 1),
        selectors=tuple((s.get("cel") or {}).get("expression", "") for s in body.get("selectors") or ()),
        tolerations=tuple(body.get("tolerations") or ()),
        is_admin=bool(body.get("adminAccess")),
    )


def _extended(spec: Mapping[str, Any], source: Source) -> Asked:
    requests, problems, notes = [], [], []
    for name, number in _extended_amounts(spec).items():
        plugin = sorted(n["metadata"]["name"] for n in source.nodes if _allocatable(n, name))
        found = _class_of(name, source.classes)
        if plugin:
            # A node that has the name as a plain resource serves it without any class.
            notes.append(
                f"{name} is also a resource of node {', '.join(plugin)}, from a device plugin; not counted here"
            )
        if found is not None:
            requests.append(Request(name, "limits of the containers", (Alternative(name, found, number),)))
        elif not plugin:
            problems.append(
                f"no DeviceClass has the extendedResourceName {name}, and no node has it as a resource: "
                f"write one that `kubectl get gpupolicies -o yaml` offers under status.deviceClasses"
            )
    return Asked(tuple(requests), problems=tuple(problems), notes=tuple(notes))


def _class_of(name: str, live: Iterable[LiveClass]) -> str | None:
    if name.startswith(IMPLICIT_PREFIX):
        return name.removeprefix(IMPLICIT_PREFIX)
    winner = classes.winner(c for c in live if c.extended_resource_name == name)
    return None if winner is None else winner.name


def _allocatable(node: Mapping[str, Any], name: str) -> bool:
    return str(((node.get("status") or {}).get("allocatable") or {}).get(name, "0")) != "0"


def _extended_amounts(spec: Mapping[str, Any]) -> dict[str, int]:
    """Return extended resource name -> devices, as many as are in use at the same time."""
    amounts: dict[str, int] = {}
    for container in spec.get("containers") or ():
        for name, number in _amounts(container):
            amounts[name] = amounts.get(name, 0) + number
    init = spec.get("initContainers") or ()
    for container in (c for c in init if c.get("restartPolicy") == "Always"):
        for name, number in _amounts(container):
            amounts[name] = amounts.get(name, 0) + number
    for container in (c for c in init if c.get("restartPolicy") != "Always"):
        for name, number in _amounts(container):
            amounts[name] = max(amounts.get(name, 0), number)
    return amounts


def _amounts(container: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    for name, quantity in ((container.get("resources") or {}).get("limits") or {}).items():
        domain = name.partition("/")[0] + "/" if "/" in name else _NATIVE_DOMAIN
        is_native = domain == _NATIVE_DOMAIN or (
            domain.endswith("." + _NATIVE_DOMAIN) and not name.startswith(IMPLICIT_PREFIX)
        )
        number = str(quantity)
        if not is_native and number.isdigit() and int(number):
            yield name, int(number)
