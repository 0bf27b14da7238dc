"""How what enforces `spec.access` stands in the cluster, and in what it differs from what is wanted.

Server-side apply keeps what others add beside our fields. Here that would be a hole: one more match condition, and a fence
lets everybody in. So everything in `spec` that we did not write counts as a difference, but for what servers fill in.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from gpupolicy.api import names
from gpupolicy.core import quantities

POLICY_KIND: Final = "ValidatingAdmissionPolicy"
BINDING_KIND: Final = "ValidatingAdmissionPolicyBinding"
QUOTA_KIND: Final = "ResourceQuota"

LABEL_SELECTOR: Final = f"{names.MANAGED_BY_LABEL}={names.MANAGED_BY},{names.POLICY_LABEL}"
"""What the objects of all policies have in common, and nothing else in the cluster."""

_DEFAULTS: Final[Mapping[str, Any]] = {"matchPolicy": "Equivalent", "scope": "*", "failurePolicy": "Fail"}
"""What API servers fill in where nothing was written; empty values besides."""

Key = tuple[str, str, str]
"""Kind, namespace (empty where there is none) and name."""


@dataclass(frozen=True, slots=True)
class LiveObject:
    """An object as the API server has it, trimmed to what matters here."""

    kind: str
    name: str
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Those by which it is found."""
    owner_uids: tuple[str, ...] = ()
    spec: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, kind: str, body: Mapping[str, Any]) -> "LiveObject":
        """Read an object of a kind; items of a list do not say what they are."""
        meta = body["metadata"]
        labels = meta.get("labels") or {}
        return cls(
            kind=kind,
            name=meta.get("name", ""),
            namespace=meta.get("namespace") or "",
            uid=meta.get("uid", ""),
            resource_version=meta.get("resourceVersion", ""),
            labels={k: labels[k] for k in (names.MANAGED_BY_LABEL, names.POLICY_LABEL) if k in labels},
            owner_uids=tuple(str(o.get("uid")) for o in meta.get("ownerReferences") or ()),
            spec=body.get("spec") or {},
        )

    @property
    def key(self) -> Key:
        """Which object it is."""
        return (self.kind, self.namespace, self.name)

    def belongs_to(self, policy: str, policy_uid: str) -> bool:
        """Return whether it was made for a policy: by its owner, or by its labels where a restored copy has no owner."""
        is_labelled = self.labels == {names.MANAGED_BY_LABEL: names.MANAGED_BY, names.POLICY_LABEL: policy}
        return policy_uid in self.owner_uids or is_labelled


def key_of(wanted: Mapping[str, Any]) -> Key:
    """Return which object a wanted one is."""
    meta = wanted["metadata"]
    return (wanted["kind"], meta.get("namespace", ""), meta["name"])


def drift(wanted: Mapping[str, Any], live: LiveObject) -> tuple[str, ...]:
    """Return the fields in which an object differs from what is wanted of it; empty where it is right."""
    meta, spec = wanted["metadata"], wanted["spec"]
    found = [
        f"spec.{name}"
        for name in sorted(spec.keys() | live.spec.keys())
        if not _is_same(name, spec.get(name), live.spec.get(name))
    ]
    if dict(live.labels) != dict(meta["labels"]):
        found.append("metadata.labels")
    if not {o["uid"] for o in meta["ownerReferences"]} <= set(live.owner_uids):
        found.append("metadata.ownerReferences")
    return tuple(found)


def obsolete(
    wanted: Iterable[Mapping[str, Any]], live: Iterable[LiveObject], owner_uid: str
) -> tuple[LiveObject, ...]:
    """Return the objects of a policy that it wants no more, a binding before what it binds."""
    kept = {key_of(body) for body in wanted}
    gone = [o for o in live if owner_uid in o.owner_uids and o.key not in kept]
    return tuple(sorted(gone, key=lambda o: (o.kind != BINDING_KIND, o.key)))


def _is_same(name: str, wanted: Any, live: Any) -> bool:
    if wanted is None or live is None:
        value = live if wanted is None else wanted
        return value in (None, "", [], {}) or _DEFAULTS.get(name) == value
    if isinstance(wanted, Mapping) and isinstance(live, Mapping):
        same = _is_same_amount if name == "hard" else _is_same
        return all(same(key, wanted.get(key), live.get(key)) for key in wanted.keys() | live.keys())
    if isinstance(wanted, list | tuple) and isinstance(live, list | tuple):
        return len(wanted) == len(live) and all(
            _is_same(name, w, f) for w, f in zip(wanted, live, strict=True)
        )
    return bool(wanted == live)


def _is_same_amount(_name: str, wanted: Any, live: Any) -> bool:
    """Return whether two quantities are one: the API server writes 1000 as 1k."""
    try:
        return quantities.parse(str(wanted)).value == quantities.parse(str(live)).value
    except quantities.InvalidQuantityError:
        return False
