"""GpuPolicy: what an admin wants of a set of cards.

Field descriptions become `kubectl explain`; constraints and rules become the CRD's schema. What only the
cluster knows (does the layout fit that card, is the name taken) is judged by the controller and told in
conditions.
"""

from enum import StrEnum
from typing import Annotated

from pydantic import ConfigDict, Field

from gpupolicy.api.conditions import Condition
from gpupolicy.api.wire import DnsLabel, DnsSubdomain, LabelSelector, Quantity, Wire, list_map, rules

PROFILE_PATTERN = r"^([1-9]c\.)?[1-9]g\.[1-9][0-9]{0,2}gb(\+me(\.all)?|\+gfx|-me)?$"

ProfileName = Annotated[
    str,
    Field(
        max_length=32,
        json_schema_extra=rules(
            (
                f"self.matches(r'{PROFILE_PATTERN}')",
                "must be a MIG profile name as the driver prints it, e.g. 1g.10gb, 3g.40gb or 1g.10gb+me",
            )
        ),
    ),
]


class Strategy(StrEnum):
    """How the cards of a policy are shared."""

    EXCLUSIVE = "Exclusive"
    MIG = "MIG"
    TIME_SLICING = "TimeSlicing"
    MPS = "MPS"


class MigMode(StrEnum):
    """When MIG instances are cut."""

    STATIC = "Static"
    ON_DEMAND = "OnDemand"


class Interval(StrEnum):
    """Length of a time slice, in the driver's own steps."""

    DEFAULT = "Default"
    SHORT = "Short"
    MEDIUM = "Medium"
    LONG = "Long"


class RolloutMode(StrEnum):
    """Whether a policy acts."""

    APPLY = "Apply"
    PLAN = "Plan"


class OnBusy(StrEnum):
    """What happens to pods on cards whose layout must change."""

    WAIT = "Wait"
    EVICT = "Evict"


class OnDelete(StrEnum):
    """What happens to the cards when the policy goes."""

    RETAIN = "Retain"
    RESTORE = "Restore"


class GpuSelector(Wire):
    """Which cards of the selected nodes are meant. All fields are optional and ANDed; empty means every card.

    A card that lacks the fact that a field asks for does not match; it never makes the selection fail.
    """

    products: Annotated[list[Annotated[str, Field(min_length=1, max_length=64)]], Field(max_length=16)] = (
        Field(
            default_factory=list,
            description="Product names as the driver reports them; `*` and `?` are wildcards and the whole name must "
            'match, e.g. "NVIDIA H100*". One of them must match.',
            json_schema_extra={"x-kubernetes-list-type": "set"},
        )
    )
    architectures: Annotated[
        list[Annotated[str, Field(pattern=r"^[A-Z][A-Za-z ]*$", max_length=32)]], Field(max_length=16)
    ] = Field(
        default_factory=list,
        description="Architecture names, e.g. Ampere, Ada Lovelace, Hopper, Blackwell. One of them must match.",
        json_schema_extra={"x-kubernetes-list-type": "set"},
    )
    min_memory: Quantity | None = Field(
        default=None,
        description="Least memory of the card, as a quantity: 79Gi. Compared with what the driver reports, which is "
        "a little less than the number in the product's name.",
    )
    min_compute_capability: (
        Annotated[
            str,
            Field(
                max_length=5,
                json_schema_extra=rules(
                    (r"self.matches(r'^[0-9]{1,2}\.[0-9]{1,2}$')", 'must be major.minor, e.g. "9.0"'),
                ),
            ),
        ]
        | None
    ) = Field(
        default=None,
        description='Least CUDA compute capability, e.g. "9.0" (quoted, or YAML reads a number).',
    )
    cel: Annotated[str, Field(min_length=1, max_length=10240)] | None = Field(
        default=None,
        description="A CEL expression over `device`, as in a DeviceClass. The API server judges it when the policy is "
        "applied; an expression that it refuses gives Accepted=False with its verdict.",
    )


class MigLayoutEntry(Wire):
    """How many instances of one profile."""

    profile: ProfileName = Field(
        description="Profile name as the driver prints it, e.g. 1g.10gb or 1g.10gb+me."
    )
    count: Annotated[int, Field(ge=1, le=16)] = Field(description="Instances of this profile on every card.")


class MigSpec(Wire):
    """MIG: the card is cut into instances with memory and compute of their own."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            (
                "self.mode != 'Static' || (has(self.layout) && size(self.layout) > 0)",
                "layout: mode Static needs at least one entry, e.g. {profile: 1g.10gb, count: 7}",
            ),
            (
                "self.mode != 'OnDemand' || !has(self.layout) || size(self.layout) == 0",
                "layout: mode OnDemand cuts what pods ask for; leave layout out",
            ),
        )
    )

    mode: MigMode = Field(
        default=MigMode.STATIC,
        description="Static: this layout on every selected card. OnDemand: every placement is offered and cut when a "
        "pod is prepared; not served yet.",
    )
    layout: Annotated[list[MigLayoutEntry], Field(max_length=16)] = Field(
        default_factory=list,
        description="The instances that every selected card is to have. The controller finds placements; a layout "
        "that no placement allows gives InvalidLayout with what would fit.",
        json_schema_extra={
            **list_map("profile"),
            **rules(
                (
                    (
                        "!self.all(e, e.profile.matches('^([1-9]c[.])?[1-9]g[.]')) || self.map(e, int(e.profile.split('g.')[0].split('c.')[size(e.profile.split('g.')[0].split('c.')) - 1])"
                        " * e.count).sum() <= 8"
                    ),
                    "the profiles together ask for more compute slices than any card has (at most 8; an H100 has 7)",
                ),
                (
                    "self.filter(e, e.profile.contains('+me')).map(e, e.count).sum() <= 1",
                    "at most one instance of a card can have the media engines (+me)",
                ),
            ),
        },
    )


class TimeSlicingSpec(Wire):
    """Time slicing: processes of several pods take turns on one card, without memory isolation."""

    max_shares: Annotated[int, Field(ge=1, le=64)] = Field(description="How many claims may share one card.")
    interval: Interval = Field(
        default=Interval.DEFAULT, description="Length of a turn, in the driver's own steps."
    )


class MpsSpec(Wire):
    """MPS: processes of several pods run at the same time on one card; limits are admission limits."""

    max_clients: Annotated[int, Field(ge=1, le=60)] = Field(description="How many claims may share one card.")
    active_thread_percentage: Annotated[int, Field(ge=1, le=100)] | None = Field(
        default=None, description="Share of the card's threads that one client may use, in percent."
    )
    memory_limit: Quantity | None = Field(
        default=None, description="Memory that one client may pin; all clients together must fit on the card."
    )


class Sharing(Wire):
    """How the selected cards are shared. Exclusive is the default: one claim per card."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            (
                "self.strategy != 'MIG' || has(self.mig)",
                "mig: strategy MIG needs sharing.mig, e.g. {layout: [{profile: 1g.10gb, count: 7}]}",
            ),
            (
                "!has(self.mig) || self.strategy in ['MIG', 'MPS']",
                "mig: only strategies MIG and MPS take it; set strategy: MIG or remove mig",
            ),
            (
                "(self.strategy == 'TimeSlicing') == has(self.timeSlicing)",
                "timeSlicing: goes with strategy TimeSlicing, and that strategy needs it, e.g. {maxShares: 4}",
            ),
            (
                "(self.strategy == 'MPS') == has(self.mps)",
                "mps: goes with strategy MPS, and that strategy needs it, e.g. {maxClients: 8}",
            ),
        )
    )

    strategy: Strategy = Field(
        default=Strategy.EXCLUSIVE,
        description="Exclusive: one claim per card. MIG: instances with memory and compute of their own. TimeSlicing: "
        "claims take turns, no memory isolation. MPS: claims run at once under admission limits. The last two are not "
        "served yet.",
    )
    mig: MigSpec | None = Field(
        default=None, description="The MIG layout; with strategy MIG (or MPS inside MIG)."
    )
    time_slicing: TimeSlicingSpec | None = Field(
        default=None, description="With strategy TimeSlicing; not served yet."
    )
    mps: MpsSpec | None = Field(default=None, description="With strategy MPS; not served yet.")


class Offer(Wire):
    """What users ask for: one DeviceClass, and the name that pods of the device plugin know."""

    device_class_name: DnsSubdomain = Field(description="Name of the DeviceClass that is made.")
    profile: ProfileName | None = Field(
        default=None,
        description="The MIG profile offered; needed with a MIG layout, not allowed without one.",
    )
    extended_resource_name: (
        Annotated[
            str,
            Field(
                max_length=317,
                pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$",
                json_schema_extra=rules(
                    (
                        "!self.contains('kubernetes.io/') && !self.startsWith('requests.')",
                        "must be an extended resource name outside kubernetes.io, e.g. nvidia.com/gpu",
                    ),
                    (
                        # A name without a slash is refused by the pattern, with a message of its own.
                        "!self.contains('/') || size(self.split('/')[1]) <= 63",
                        "the part after the slash has at most 63 characters",
                    ),
                ),
            ),
        ]
        | None
    ) = Field(
        default=None,
        description="Name under resources.limits of a pod, e.g. nvidia.com/gpu. Pods written for the device plugin run "
        "unchanged. A name belongs to one class; see takeOver.",
    )
    take_over: bool = Field(
        default=False,
        description="Take the extended resource name although another DeviceClass has it. The newer class wins the "
        "name; deleting ours gives it back.",
    )


class NamespaceQuota(Wire):
    """How many devices of one class a namespace may hold."""

    namespace: DnsLabel = Field(description="The namespace.")
    device_class_name: DnsSubdomain = Field(description="One of the policy's classes.")
    devices: Annotated[int, Field(ge=0)] = Field(
        description="Most devices at a time; 0 shuts the namespace out."
    )


class Access(Wire):
    """Who may claim the devices of this policy, and how many."""

    namespaces: LabelSelector | None = Field(
        default=None, description="Namespaces that may claim; claims of others are refused at admission."
    )
    quotas: Annotated[list[NamespaceQuota], Field(max_length=256)] = Field(
        default_factory=list,
        description="Limits per namespace and class; made into ResourceQuotas.",
        json_schema_extra=list_map("namespace", "deviceClassName"),
    )


class Window(Wire):
    """When disruptive changes may begin."""

    start: Annotated[
        str,
        Field(
            max_length=5,
            json_schema_extra=rules(
                (r"self.matches(r'^([01][0-9]|2[0-3]):[0-5][0-9]$')", 'must be a time of day, e.g. "02:00"'),
            ),
        ),
    ] = Field(description='Local time of day, "02:00".')
    duration_minutes: Annotated[int, Field(ge=1, le=1440)] = Field(description="How long the window is open.")
    time_zone: Annotated[str, Field(pattern=r"^[A-Za-z0-9_+\-/]+$", max_length=64)] = Field(
        default="UTC", description="IANA time zone, e.g. Europe/Berlin."
    )


class Rollout(Wire):
    """How changes reach the nodes."""

    mode: RolloutMode = Field(
        default=RolloutMode.APPLY,
        description="Apply acts. Plan shows in status what would happen and touches nothing.",
    )
    on_busy: OnBusy = Field(
        default=OnBusy.WAIT,
        description="Wait: instances in use are left alone until their claims are gone. Evict: pods are evicted, "
        "respecting PodDisruptionBudgets; not served yet.",
    )
    max_unavailable_nodes: Annotated[int, Field(ge=1, le=5000)] = Field(
        default=1,
        description="How many nodes may be out of service at a time; more than 1 is not served yet.",
    )
    window: Window | None = Field(
        default=None, description="Disruptive changes begin only inside this window; not served yet."
    )


class GpuPolicySpec(Wire):
    """What is wanted of which cards, under which names, and how a change reaches the nodes."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            (
                "!has(self.offers) || self.offers.all(o, has(o.profile) == (has(self.sharing) && has(self.sharing.mig)))",
                "offers: an offer of a policy with a MIG layout names its profile, others must not",
            ),
            (
                (
                    "!has(self.offers) || !has(self.sharing) || !has(self.sharing.mig) || !has(self.sharing.mig.layout)"
                    " || self.sharing.mig.mode != 'Static' || self.offers.all(o, !has(o.profile) || "
                    "self.sharing.mig.layout.exists(e, e.profile == o.profile))"
                ),
                "offers: every offered profile must be part of sharing.mig.layout",
            ),
        )
    )

    priority: Annotated[int, Field(ge=0, le=1_000_000)] = Field(
        default=0,
        description="A higher policy takes a card from a lower one. With equal priority the older policy keeps it and "
        "the younger reports DeviceConflict.",
    )
    node_selector: LabelSelector = Field(
        default_factory=LabelSelector, description="Nodes by label; empty selects every node with an agent."
    )
    gpu_selector: GpuSelector = Field(
        default_factory=GpuSelector, description="Cards on those nodes; empty: all."
    )
    gpus_per_node: Annotated[int, Field(ge=1, le=64)] | None = Field(
        default=None, description="How many of the matching cards of a node are taken; left out: all of them."
    )
    sharing: Sharing = Field(
        default_factory=Sharing,
        description="How the cards are shared.",
        json_schema_extra={"default": {"strategy": "Exclusive"}},
    )
    offers: Annotated[list[Offer], Field(max_length=16)] = Field(
        default_factory=list,
        description="The DeviceClasses that users ask for. Left out: one for each kind of device, named after the "
        "policy, with -<profile> for MIG.",
        json_schema_extra=list_map("deviceClassName"),
    )
    access: Access | None = Field(default=None, description="Who may claim; left out: everybody.")
    rollout: Rollout = Field(
        default_factory=Rollout,
        description="How changes reach the nodes.",
        json_schema_extra={"default": {}},
    )
    on_delete: OnDelete = Field(
        default=OnDelete.RETAIN,
        description="Retain: the layout stays when the policy is deleted. Restore: idle cards become whole again; "
        "not served yet. Running pods keep their devices either way.",
    )
    adopt: bool = Field(
        default=False,
        description="Allow to destroy idle MIG instances that GpuPolicy did not create. Without it they are reported "
        "as OwnershipConflict and left alone. Not served yet.",
    )


class ClassStatus(Wire):
    """One DeviceClass of the policy, and how much of it is used."""

    name: str = Field(description="Name of the DeviceClass.")
    profile: str | None = Field(default=None, description="The MIG profile it offers.")
    extended_resource_name: str | None = Field(
        default=None, description="The name that pods write under limits."
    )
    quota_keys: Annotated[list[Annotated[str, Field(max_length=317)]], Field(max_length=4)] = Field(
        default_factory=list,
        description="Keys under which a ResourceQuota counts its devices; a device counts once in each. "
        "access.quotas sets them all.",
    )
    devices: int = Field(default=0, description="Devices published for it.")
    allocated: int = Field(default=0, description="Devices of it that claims hold.")
    free: int = Field(default=0, description="Devices that a new claim could get now.")
    claims_on_previous_revision: int = Field(
        default=0,
        description="Claims that were allocated before the class last changed; they keep what they have.",
    )


class NodePlan(Wire):
    """What the policy does, or would do, on one node."""

    node: str = Field(description="Name of the node.")
    selected: int = Field(default=0, description="Cards that the policy has there.")
    applied: int = Field(default=0, description="Cards on which its layout stands.")
    devices: int = Field(default=0, description="Devices published there.")
    allocated: int = Field(default=0, description="Devices there that claims hold.")
    reason: str | None = Field(default=None, description="Why the node is not ready, in one word.")
    message: Annotated[str, Field(max_length=2048)] | None = Field(
        default=None, description="Why, for people."
    )
    actions: Annotated[list[Annotated[str, Field(max_length=512)]], Field(max_length=64)] | None = Field(
        default=None,
        description="With rollout.mode Plan: per card what is kept, destroyed and created, with placements, and the "
        "pods in the way.",
    )


class Preview(Wire):
    """What the card selector matches now, for the person who wrote it."""

    matched: int = Field(default=0, description="Cards that match on the selected nodes.")
    candidates: int = Field(default=0, description="Cards on the selected nodes.")
    clauses: Annotated[list[Annotated[str, Field(max_length=512)]], Field(max_length=32)] = Field(
        default_factory=list, description="Each clause of the selector, and how many cards it drops."
    )


class Example(Wire):
    """A manifest to start from."""

    name: str = Field(description="What it shows.")
    manifest: Annotated[str, Field(max_length=8192)] = Field(description="YAML to apply.")


class GpuPolicyStatus(Wire):
    """What became of the policy. Written by the controller only."""

    observed_generation: int = Field(default=0, description="Generation that this status was computed from.")
    conditions: Annotated[list[Condition], Field(max_length=16)] = Field(
        default_factory=list,
        description="Accepted, Applied, Reviewed and Ready (the summary).",
        json_schema_extra=list_map("type"),
    )
    nodes: str = Field(default="0/0", description="Nodes applied / selected.")
    gpus: str = Field(default="0/0", description="Cards applied / selected.")
    devices: int = Field(default=0, description="Devices published.")
    allocated: int = Field(default=0, description="Devices that claims hold.")
    free: int = Field(default=0, description="Devices that a new claim could get now.")
    device_classes: Annotated[list[ClassStatus], Field(max_length=16)] = Field(
        default_factory=list,
        description="The classes that the policy offers, with their use.",
        json_schema_extra=list_map("name"),
    )
    plan: Annotated[list[NodePlan], Field(max_length=512)] = Field(
        default_factory=list, description="Node by node.", json_schema_extra=list_map("node")
    )
    preview: Preview | None = Field(default=None, description="What the card selector matches now.")
    examples: Annotated[list[Example], Field(max_length=8)] = Field(
        default_factory=list,
        description="Manifests that use the classes; kueue and kueue-configuration queue Jobs for them.",
        json_schema_extra=list_map("name"),
    )


class ObjectMeta(Wire):
    """The part of an object's metadata that decisions read."""

    name: str
    uid: str = ""
    generation: int = 0
    resource_version: str = ""
    creation_timestamp: str = ""
    deletion_timestamp: str | None = None
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)


class GpuPolicy(Wire):
    """Intent for a set of cards: how they are shared, under which names they are claimed, how a change rolls out."""

    metadata: ObjectMeta
    spec: GpuPolicySpec = Field(default_factory=GpuPolicySpec, description="What is wanted.")
    status: GpuPolicyStatus = Field(default_factory=GpuPolicyStatus, description="What became of it.")
