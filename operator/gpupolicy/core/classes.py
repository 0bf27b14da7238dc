"""DeviceClasses: which ones a policy wants, whether their names are free, and whether what stands is right.

A class selects on attributes that our agents publish, never on cards, so it stays the same when cards are swapped:
driver, `policy`, `type` and `profile`. Its one expression never raises, because an expression that raises on any
device anywhere stops the scheduling of every pod that uses the class: the driver comes first, and every attribute
is guarded, so that a device of an agent of another release is no match and no error.

Names. Without offers the class of whole cards is called like the policy, and that of a profile
`<policy>-<profile as a DNS label>` (`infer-1g-10gb`). An extended resource name belongs to one class: with two, the
scheduler maps the newest (of one second, the one first by name), and deleting either unmaps the name until the
other is written again. So an existing class is changed in place, a class whose name is handed on is deleted, or gives
the name up, before its heir has it, and a foreign class that lost a name to us is marked and, when ours is gone, written
again. Ours carry a list of who has the name besides; the write by which that list follows the cluster is also the one
after which the name is mapped again.

Proof of ownership is the owner reference to the policy, or both labels that we set. A class without either is
somebody else's and is not touched, its mark apart.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from gpupolicy.api import names
from gpupolicy.api.conditions import Reason
from gpupolicy.api.policy import GpuPolicy, Offer
from gpupolicy.core import profiles
from gpupolicy.core.records import DeviceKind
from gpupolicy.core.refusals import Refusal
from gpupolicy.core.selectors import quote

REVISION_ANNOTATION: Final = f"{names.GROUP}/revision"
"""On our classes: hash of the spec that we applied."""

CHANGED_ANNOTATION: Final = f"{names.GROUP}/changed-at"
"""On our classes: when that hash last changed; claims allocated before are on a previous revision."""

TAKEN_BY_ANNOTATION: Final = f"{names.GROUP}/name-taken-by"
"""On a foreign class whose extended resource name one of ours took over: the name of ours."""

RIVALS_ANNOTATION: Final = f"{names.GROUP}/name-rivals"
"""On our classes: UIDs of the other classes that have the same extended resource name, separated by commas."""

_DOMAIN: Final = f'device.attributes["{names.DRIVER}"]'


@dataclass(frozen=True, slots=True, kw_only=True)
class DesiredClass:
    """One class as the policy wants it.

    Attributes:
        name: name of the DeviceClass.
        policy: name of the policy.
        profile: MIG profile as the policy spells it; None for whole cards.
        published: that profile as the selected cards' drivers spell it, sorted; empty for whole cards.
        extended_resource_name: name that pods write under limits.
        take_over: whether that name is taken although another class has it.
    """

    name: str
    policy: str
    profile: str | None = None
    published: tuple[str, ...] = ()
    extended_resource_name: str | None = None
    take_over: bool = False

    @property
    def kind(self) -> DeviceKind:
        """The `type` attribute of the devices that it selects."""
        return DeviceKind.GPU if self.profile is None else DeviceKind.MIG

    @property
    def expression(self) -> str:
        """The CEL expression of its only selector."""
        parts = [f"device.driver == {quote(names.DRIVER)}"]
        parts += _equals("policy", self.policy)
        parts += _equals("type", self.kind)
        if self.profile is not None:
            parts += _equals("profile", *(self.published or (self.profile,)))
        return " && ".join(parts)

    @property
    def revision(self) -> str:
        """Hash of the spec that is wanted: tells an edit of the policy from an edit of the class."""
        text = f"{self.expression}\n{self.extended_resource_name or ''}"
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def selects(self, policy: str, kind: str, profile: str) -> bool:
        """Return whether it selects a device of our driver with these attributes."""
        names_match = self.profile is None or profile in (self.published or (self.profile,))
        return policy == self.policy and kind == self.kind and names_match


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveClass:
    """A DeviceClass as the API server shows it, reduced to what decisions read."""

    name: str
    uid: str = ""
    resource_version: str = ""
    created: str = ""
    policy: str | None = None
    """Value of the policy label, where the managed-by label is ours too."""
    owner_uids: tuple[str, ...] = ()
    expressions: tuple[str, ...] = ()
    has_config: bool = False
    extended_resource_name: str | None = None
    revision: str | None = None
    changed_at: str | None = None
    taken_by: str | None = None
    rivals: str | None = None

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> "LiveClass":
        """Read the object as it came over the wire."""
        meta = body.get("metadata") or {}
        spec = body.get("spec") or {}
        labels = meta.get("labels") or {}
        annotations = meta.get("annotations") or {}
        ours = labels.get(names.MANAGED_BY_LABEL) == names.MANAGED_BY
        return cls(
            name=meta.get("name", ""),
            uid=meta.get("uid", ""),
            resource_version=meta.get("resourceVersion", ""),
            created=meta.get("creationTimestamp") or "",
            policy=labels.get(names.POLICY_LABEL) if ours else None,
            owner_uids=tuple(o.get("uid", "") for o in meta.get("ownerReferences") or ()),
            expressions=tuple(
                (s.get("cel") or {}).get("expression", "") for s in spec.get("selectors") or ()
            ),
            has_config=bool(spec.get("config")),
            extended_resource_name=spec.get("extendedResourceName"),
            revision=annotations.get(REVISION_ANNOTATION),
            changed_at=annotations.get(CHANGED_ANNOTATION),
            taken_by=annotations.get(TAKEN_BY_ANNOTATION),
            rivals=annotations.get(RIVALS_ANNOTATION),
        )

    def belongs_to(self, policy: str, policy_uid: str) -> bool:
        """Return whether we made it for this policy."""
        return policy_uid in self.owner_uids or self.policy == policy


def desired(
    policy: GpuPolicy, published: Mapping[str, Iterable[str]] | None = None
) -> tuple[DesiredClass, ...]:
    """Return the classes that a policy wants, in the order of its offers or its layout.

    Args:
        policy: the policy; one that is not served yields nothing useful.
        published: profile as the policy spells it, to the names that the selected cards give it.
    """
    spec = policy.spec
    layout = spec.sharing.mig.layout if spec.sharing.mig is not None else []
    offers = spec.offers or [_default_offer(policy.metadata.name, entry.profile) for entry in layout]
    if not offers:
        offers = [_default_offer(policy.metadata.name, None)]
    spellings = published or {}
    return tuple(
        DesiredClass(
            name=offer.device_class_name,
            policy=policy.metadata.name,
            profile=offer.profile,
            published=tuple(sorted(spellings.get(offer.profile, ()))) if offer.profile else (),
            extended_resource_name=offer.extended_resource_name,
            take_over=offer.take_over,
        )
        for offer in offers
    )


def _default_offer(policy: str, profile: str | None) -> Offer:
    if profile is None:
        return Offer(device_class_name=policy)
    parsed = profiles.parse(profile)
    # The schema lets no other name in; the spelling is kept if a newer schema does.
    slug = parsed.slug if parsed is not None else profile.replace("+", ".")
    return Offer(device_class_name=f"{policy}-{slug}", profile=profile)


def manifest(
    wish: DesiredClass,
    *,
    policy_uid: str,
    changed_at: str | None = None,
    clear_config: bool = False,
    revision: str | None = None,
) -> dict[str, Any]:
    """Return the object to apply; every field in it is ours.

    Args:
        wish: the class.
        policy_uid: UID of the policy, for the owner reference: the class goes when its policy goes.
        changed_at: RFC 3339 time at which its revision last changed; None for a manifest that is only shown.
        clear_config: whether to empty `spec.config`, which somebody else has filled.
        revision: of what the class is on its way to or from, where this is a step between; its own by default.
    """
    spec: dict[str, Any] = {"selectors": [{"cel": {"expression": wish.expression}}]}
    if clear_config:
        spec["config"] = []
    if wish.extended_resource_name is not None:
        spec["extendedResourceName"] = wish.extended_resource_name
    annotations = {REVISION_ANNOTATION: revision or wish.revision}
    if changed_at is not None:
        annotations[CHANGED_ANNOTATION] = changed_at
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {
            "name": wish.name,
            "labels": {names.MANAGED_BY_LABEL: names.MANAGED_BY, names.POLICY_LABEL: wish.policy},
            "annotations": annotations,
            "ownerReferences": [
                {
                    "apiVersion": names.API_VERSION,
                    "kind": names.POLICY_KIND,
                    "name": wish.policy,
                    "uid": policy_uid,
                    "controller": True,
                }
            ],
        },
        "spec": spec,
    }


def drift(wish: DesiredClass, live: LiveClass, policy_uid: str) -> tuple[str, ...]:
    """Return the fields in which a class of ours differs from what is wanted; empty where it is right."""
    differences = {
        "spec.selectors": live.expressions != (wish.expression,),
        "spec.config": live.has_config,
        "spec.extendedResourceName": live.extended_resource_name != wish.extended_resource_name,
        "metadata.labels": live.policy != wish.policy,
        "metadata.ownerReferences": policy_uid not in live.owner_uids,
        "metadata.annotations": live.revision != wish.revision or live.changed_at is None,
    }
    return tuple(field for field, differs in differences.items() if differs)


def changed_at(wish: DesiredClass, live: LiveClass | None, now: str) -> str:
    """Return since when the class selects what it selects: healing drift is no change."""
    if live is not None and live.revision == wish.revision and live.changed_at is not None:
        return live.changed_at
    return now


def winner(classes: Iterable[LiveClass]) -> LiveClass | None:
    """Return the class to which the scheduler maps an extended resource name that all of these have."""
    # Sorted by name first: the sort by age is stable, so of one second the first by name stays in front.
    ordered = sorted(sorted(classes, key=lambda c: c.name), key=lambda c: c.created, reverse=True)
    return ordered[0] if ordered else None


@dataclass(frozen=True, slots=True)
class NameVerdict:
    """Whether the classes of a policy may have their names.

    Attributes:
        refusal: why nothing may be made; None where all is free.
        notes: what is worth saying although it is no refusal (a name that was taken over).
        losers: foreign classes whose extended name ours take over, to the name of ours.
    """

    refusal: Refusal | None = None
    notes: tuple[str, ...] = ()
    losers: Mapping[str, str] | None = None


def judge_names(
    wishes: Sequence[DesiredClass], live: Mapping[str, LiveClass], policy_uid: str
) -> NameVerdict:
    """Judge class names and extended resource names against every class in the cluster.

    Args:
        wishes: the classes of one policy.
        live: all DeviceClasses by name.
        policy_uid: UID of the policy.
    """
    problems: list[str] = []
    notes: list[str] = []
    losers: dict[str, str] = {}
    own = {name for name, c in live.items() if wishes and c.belongs_to(wishes[0].policy, policy_uid)}
    for wish in wishes:
        standing = live.get(wish.name)
        if standing is not None and wish.name not in own:
            problems.append(
                f"DeviceClass {wish.name} exists and {_owner(standing)}; set another deviceClassName in spec.offers, "
                "or delete that class"
            )
            continue
        rivals = [
            c
            for c in live.values()
            if wish.extended_resource_name is not None
            and c.extended_resource_name == wish.extended_resource_name
            and c.name not in own
        ]
        if rivals:
            text = _contest(wish, standing, rivals)
            if wish.take_over:
                notes.append(text)
                losers |= {rival.name: wish.name for rival in rivals}
            else:
                problems.append(
                    f"{text}. Set takeOver: true in the offer to take the name, remove it from that class, or offer "
                    "another one"
                )
    refusal = Refusal(Reason.RESOURCE_NAME_CONFLICT, ". ".join(problems)) if problems else None
    return NameVerdict(refusal, tuple(notes), losers)


def _contest(wish: DesiredClass, standing: LiveClass | None, rivals: Sequence[LiveClass]) -> str:
    """Say who has an extended resource name, and who would win it and why."""
    others = ", ".join(f"{c.name} ({_owner(c)})" for c in sorted(rivals, key=lambda c: c.name))
    text = f"{wish.extended_resource_name} is the extendedResourceName of DeviceClass {others}"
    if standing is None:
        return f"{text}; DeviceClass {wish.name} would be the newest and win it"
    best = winner([*rivals, standing])
    if best is None or best.name == wish.name:
        return f"{text}; DeviceClass {wish.name} is the newest and wins it"
    return f"{text}; {best.name} is the newest and wins it from {wish.name}"


def _owner(live: LiveClass) -> str:
    return f"belongs to policy {live.policy}" if live.policy else "was not made by GpuPolicy"


def obsolete(
    wishes: Sequence[DesiredClass], live: Mapping[str, LiveClass], policy: str, policy_uid: str
) -> tuple[LiveClass, ...]:
    """Return our classes of this policy that it no longer wants; they go before new ones are made."""
    wanted = {wish.name for wish in wishes}
    return tuple(
        c for _, c in sorted(live.items()) if c.belongs_to(policy, policy_uid) and c.name not in wanted
    )


def handing_over(wishes: Sequence[DesiredClass], live: Mapping[str, LiveClass]) -> tuple[DesiredClass, ...]:
    """Return the classes that stand and have to give up their extended name first, because another one is to have it.

    Args:
        wishes: the classes of one policy.
        live: all DeviceClasses by name.
    """
    heirs: dict[str | None, str] = {
        w.extended_resource_name: w.name for w in wishes if w.extended_resource_name is not None
    }
    return tuple(
        replace(wish, extended_resource_name=None)
        for wish in wishes
        if (standing := live.get(wish.name)) is not None
        and heirs.get(standing.extended_resource_name, wish.name) != wish.name
    )


def rivals(live: Mapping[str, LiveClass], policies: Mapping[str, str]) -> dict[str, str | None]:
    """Return the lists of rivals that must change on our classes: name to the new value, None to remove it.

    Classes of policies that are not accepted are among them: nothing that is selected or offered changes by this.

    Args:
        live: all DeviceClasses by name.
        policies: names of all policies to their UIDs.
    """
    holders: dict[str, list[LiveClass]] = {}
    for current in live.values():
        if current.extended_resource_name is not None:
            holders.setdefault(current.extended_resource_name, []).append(current)
    uids = set(policies.values())
    changes: dict[str, str | None] = {}
    for name, current in live.items():
        if current.policy not in policies and uids.isdisjoint(current.owner_uids):
            continue
        others = holders.get(current.extended_resource_name or "", ())
        wanted = ",".join(sorted(c.uid for c in others if c.name != name)) or None
        if current.rivals != wanted:
            changes[name] = wanted
    return changes


def marks(losers: Mapping[str, str], live: Mapping[str, LiveClass]) -> dict[str, str | None]:
    """Return the marks that must change on foreign classes: name to the new value, None to remove it.

    Removing the mark is also the write after which the scheduler maps the name to that class again, so it happens
    as soon as the class that took the name is gone or has given it up, whoever noticed and whenever.

    Args:
        losers: of all policies, foreign classes to the class of ours that takes their name.
        live: all DeviceClasses by name.
    """
    changes: dict[str, str | None] = {}
    for name, current in live.items():
        taker = losers.get(name)
        if taker is not None and taker in live and current.taken_by != taker:
            changes[name] = taker
        elif taker is None and current.taken_by is not None and not _still_taken(current, live):
            changes[name] = None
    return changes


def _still_taken(loser: LiveClass, live: Mapping[str, LiveClass]) -> bool:
    taker = live.get(loser.taken_by or "")
    return taker is not None and taker.extended_resource_name == loser.extended_resource_name


def _equals(attribute: str, *values: str) -> list[str]:
    right = f"== {quote(values[0])}" if len(values) == 1 else f"in [{', '.join(map(quote, values))}]"
    return [f"{quote(attribute)} in {_DOMAIN}", f"{_DOMAIN}.{attribute} {right}"]
