"""What Kueue is told of a policy (R41): names, numbers, and what cannot be counted; the real Kueue judges it elsewhere."""

from typing import Any

import pytest
import yaml

from gpupolicy.api.conditions import Reason
from gpupolicy.api.policy import Access
from gpupolicy.core import classes, kueue
from tests.unit.core.wire import MIG, policy

LONG = "c" * 64


def offers(*entries: tuple[str, str | None]) -> dict[str, Any]:
    return {
        "offers": [
            {"deviceClassName": name, **({"extendedResourceName": extended} if extended else {})}
            for name, extended in entries
        ]
    }


def counted(
    spec: dict[str, Any], devices: dict[str, int] | None = None
) -> list[tuple[str, tuple[str, ...], int]]:
    found = kueue.quota_names(classes.desired(policy(**spec)), devices or {})
    return [(kind.name, kind.classes, kind.devices) for kind in found]


def shown(spec: dict[str, Any], **access: Any) -> dict[str, list[dict[str, Any]]]:
    wishes = classes.desired(policy(**spec))
    given = Access.model_validate(access) if access else None
    made = kueue.examples("p", given, wishes, {w.name: 7 for w in wishes})
    return {e.name: list(yaml.safe_load_all(e.manifest)) for e in made}


IMPLICIT = "deviceclass.resource.kubernetes.io"
NAMES: list[Any] = [
    pytest.param(offers(("a", "x.com/a")), [("x.com/a", ("a",))], id="extended"),
    pytest.param(offers(("a", None)), [(f"{IMPLICIT}/a", ("a",))], id="implicit"),
    pytest.param(
        offers(("a", None), ("b", "x.com/b"), ("c", "x.com/c")),
        [("x.com/b", ("a", "b", "c"))],
        id="one-name-for-the-same-devices",
    ),
    pytest.param(offers((LONG, "x.com/a")), [], id="too-long"),
    pytest.param(
        offers(*((f"c{i}", None) for i in range(9))),
        [(f"{IMPLICIT}/c0", tuple(f"c{i}" for i in range(8)))],
        id="no-more-classes-than-kueue-maps",
    ),
    pytest.param(
        {"sharing": MIG},
        [(f"{IMPLICIT}/p-{p}", (f"p-{p}",)) for p in ("3g-40gb", "2g-20gb", "1g-10gb")],
        id="one-for-each-profile",
    ),
]


@pytest.mark.parametrize(("spec", "expected"), NAMES)
def test_devices_of_one_kind_count_under_one_name(spec: dict[str, Any], expected: Any) -> None:
    assert counted(spec) == [(*entry, 0) for entry in expected]


def test_classes_of_the_same_devices_do_not_add_up() -> None:
    assert counted(offers(("a", "x.com/a"), ("b", None)), {"a": 4, "b": 4}) == [("x.com/a", ("a", "b"), 4)]


def test_the_queues_hang_together() -> None:
    flavor, cluster_queue, local_queue = shown(offers(("a", "x.com/a")))["kueue"]

    (group,) = cluster_queue["spec"]["resourceGroups"]
    assert group == {
        "coveredResources": ["x.com/a"],
        "flavors": [
            {"name": flavor["metadata"]["name"], "resources": [{"name": "x.com/a", "nominalQuota": 7}]}
        ],
    }
    assert cluster_queue["spec"]["namespaceSelector"] == {}
    assert local_queue["spec"] == {"clusterQueue": cluster_queue["metadata"]["name"]}
    assert local_queue["metadata"]["namespace"] == "default"


def test_queues_are_for_the_namespaces_that_may_claim() -> None:
    names = [f"team-{i}" for i in range(10)]
    documents = shown(
        offers(("a", None)),
        namespaces={"matchLabels": {"team": "x"}},
        quotas=[{"namespace": n, "deviceClassName": "a", "devices": 1} for n in reversed(names)],
    )["kueue"]

    assert documents[1]["spec"]["namespaceSelector"] == {"matchLabels": {"team": "x"}}
    assert [d["metadata"]["namespace"] for d in documents[2:]] == names[:8]


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param(offers(("a", "x.com/a")), id="one"),
        pytest.param(offers(("a", "x.com/a"), ("b", None)), id="two"),
        pytest.param(offers(("a", "x.com/a"), ("b", "x.com/b")), id="two-names"),
    ],
)
def test_the_configuration_maps_every_class_once(spec: dict[str, Any]) -> None:
    (configuration,) = shown(spec)["kueue-configuration"]

    assert configuration["featureGates"] == {"DynamicResourceAllocation": True}
    (mapping,) = configuration["resources"]["deviceClassMappings"]
    classes_of = [offer["deviceClassName"] for offer in spec["offers"]]
    assert mapping == {"name": "x.com/a", "deviceClassNames": classes_of}


def test_nothing_is_shown_that_does_not_fit_or_cannot_be_mapped() -> None:
    assert shown(offers((LONG, None))) == {}
    wide = [(f"{i:02}{'c' * 60}", f"{'x.' * 120}com/{i:02}{'n' * 55}") for i in range(16)]
    profiles = [f"{i}g.{i}gb" for i in range(1, 17)]
    spec = offers(*wide)
    for offer, profile in zip(spec["offers"], profiles, strict=True):
        offer["profile"] = profile
    layout = [{"profile": profile, "count": 1} for profile in profiles]
    found = shown({**spec, "sharing": {"strategy": "MIG", "mig": {"layout": layout}}})
    assert list(found) == ["kueue-configuration"]


FINDINGS: list[Any] = [
    pytest.param(offers(("a", "x.com/a")), [], id="well"),
    pytest.param({"sharing": MIG}, [], id="one-class-a-profile"),
    pytest.param(
        offers(("a", None), ("b", None)), ["classes a, b select the same devices"], id="same-devices"
    ),
    pytest.param(offers((LONG, None)), ["longer than 63 characters"], id="too-long"),
    pytest.param(
        offers((LONG, None), ("a", None), ("b", None)), ["a, b select", "longer than 63"], id="both"
    ),
]


@pytest.mark.parametrize(("spec", "words"), FINDINGS)
def test_what_no_quota_can_count_is_found(spec: dict[str, Any], words: list[str]) -> None:
    found = kueue.findings(classes.desired(policy(**spec)))

    assert [f.reason for f in found] == ([Reason.QUOTA_NAME] if words else [])
    assert [w for w in words if w not in found[0].message] == []
