"""Counts from slices and claims: what is there, what is held, what is free; and that they equal a hand count."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpupolicy.core import tally
from gpupolicy.core.tally import DeviceGroup, GroupCount, PublishedSlice
from tests.unit.core.wire import claim, device, gpu, mig, resource_slice

P = DeviceGroup("p", "gpu")


def read(*slices: dict[str, Any]) -> list[PublishedSlice]:
    return [found for body in slices if (found := PublishedSlice.of(body)) is not None]


def count(slices: list[dict[str, Any]], claims: list[dict[str, Any]] | None = None) -> tally.PoolTally:
    held = [h for body in claims or [] for h in tally.holdings(body)]
    return tally.count_pool(read(*slices), held)


# Reading.


def test_a_slice_of_another_driver_is_dropped() -> None:
    assert PublishedSlice.of(resource_slice("n", driver="gpu.nvidia.com")) is None


@pytest.mark.parametrize("prefix", ["", "gpu.gpupolicy.dev/"], ids=["unqualified", "qualified"])
def test_attributes_are_read_with_and_without_their_domain(prefix: str) -> None:
    body = device("d", **{f"{prefix}policy": "p", f"{prefix}type": "mig", f"{prefix}profile": "1g.10gb"})

    (found,) = read(resource_slice("n", body))

    assert found.devices[0].group == DeviceGroup("p", "mig", "1g.10gb")


@pytest.mark.parametrize(
    ("body", "card"),
    [
        pytest.param(gpu("d", "p", "GPU-1"), "GPU-1", id="whole-card-by-its-uuid"),
        pytest.param(mig("d", "p", "1g.10gb", "GPU-1"), "GPU-1", id="instance-by-its-parent"),
        pytest.param(device("d", policy="p", type="mig", uuid="MIG-1"), "", id="instance-without-parent"),
    ],
)
def test_a_device_belongs_to_its_card(body: dict[str, Any], card: str) -> None:
    (found,) = read(resource_slice("n", body))

    assert found.devices[0].card == card


@pytest.mark.parametrize(
    "broken",
    [
        pytest.param({}, id="empty"),
        pytest.param({"spec": None}, id="no-spec"),
        pytest.param({"spec": {"driver": "gpu.gpupolicy.dev", "pool": None, "devices": None}}, id="no-pool"),
        pytest.param(
            {
                "spec": {
                    "driver": "gpu.gpupolicy.dev",
                    "devices": [{"name": "d", "attributes": {"policy": {"int": 1}}}],
                }
            },
            id="attribute-of-another-type",
        ),
    ],
)
def test_odd_slices_do_not_raise(broken: dict[str, Any]) -> None:
    found = PublishedSlice.of(broken)

    assert found is None or all(d.group.policy == "" for d in found.devices)


@pytest.mark.parametrize(
    "body",
    [
        pytest.param({}, id="empty"),
        pytest.param({"status": {"allocation": None}}, id="not-allocated"),
        pytest.param(claim("c"), id="no-results"),
        pytest.param(claim("c", ("n", "d"), driver="other"), id="other-driver"),
        pytest.param(claim("c", ("n", "d"), adminAccess=True), id="admin-access"),
    ],
)
def test_claims_that_hold_nothing_of_ours(body: dict[str, Any]) -> None:
    assert tally.holdings(body) == ()


def test_a_holding_names_claim_pods_class_and_time() -> None:
    body = claim("c", ("n", "d"), class_name="h100", pods=("a", "b"))
    body["status"]["allocation"]["allocationTimestamp"] = "2026-02-02T00:00:00Z"

    (held,) = tally.holdings(body)

    assert (held.pool, held.device, held.class_name) == ("n/gpupolicy", "d", "h100")
    assert (held.claim.namespace, held.claim.name, held.claim.pods) == ("team", "c", ("a", "b"))
    assert held.since == "2026-02-02T00:00:00Z"


def test_without_a_time_of_allocation_that_of_the_claim_counts() -> None:
    assert tally.holdings(claim("c", ("n", "d")))[0].since == "2026-01-01T00:00:00Z"


def test_the_class_of_an_alternative_is_that_of_the_alternative() -> None:
    body = claim("c", ("n", "d"))
    body["spec"]["devices"]["requests"] = [
        {
            "name": "r",
            "firstAvailable": [
                {"name": "big", "deviceClassName": "a"},
                {"name": "small", "deviceClassName": "b"},
            ],
        }
    ]
    body["status"]["allocation"]["devices"]["results"][0]["request"] = "r/small"

    assert tally.holdings(body)[0].class_name == "b"


# Counting.


def test_devices_of_one_pool_are_allocated_or_free() -> None:
    found = count([resource_slice("n", gpu("a", "p", "1"), gpu("b", "p", "2"))], [claim("c", ("n", "a"))])

    assert found.groups == {P: GroupCount(devices=2, allocated=1, free=1)}
    assert found.cards == {"1": {P: 1}, "2": {P: 1}}
    assert [h.claim.name for h in found.holders["p"]] == ["c"]


def test_only_the_newest_generation_counts() -> None:
    old = resource_slice("n", gpu("a", "p", "1"), gpu("b", "p", "2"), generation=1)
    new = resource_slice("n", gpu("a", "p", "1"), generation=2)

    assert count([old, new]).groups == {P: GroupCount(1, 0, 1)}


@pytest.mark.parametrize("shown", [1, 3], ids=["too-few", "too-many"])
def test_nothing_of_an_incomplete_pool_is_free(shown: int) -> None:
    """The scheduler hands out nothing of it either; what is held stays held."""
    slices = [resource_slice("n", gpu(f"d{i}", "p", f"{i}"), name=f"s{i}", count=2) for i in range(shown)]

    found = count(slices, [claim("c", ("n", "d0"))])

    assert not found.is_complete
    assert found.groups[P] == GroupCount(devices=shown, allocated=1, free=0)


def test_a_pool_without_slices_is_empty_and_complete() -> None:
    assert count([]) == tally.PoolTally()


@pytest.mark.parametrize(
    ("effect", "free"),
    [("NoSchedule", 0), ("NoExecute", 0), ("None", 1)],
    ids=["no-schedule", "no-execute", "none"],
)
def test_a_tainted_device_is_there_and_not_free(effect: str, free: int) -> None:
    body = gpu("a", "p", "1") | {"taints": [{"key": "k", "effect": effect}]}

    assert count([resource_slice("n", body)]).groups[P] == GroupCount(1, 0, free)


def test_a_claim_on_a_device_that_is_no_longer_published_is_not_counted() -> None:
    found = count([resource_slice("n", gpu("a", "p", "1"))], [claim("c", ("n", "gone"))])

    assert found.groups[P] == GroupCount(1, 0, 1)
    assert found.holders == {}


def test_shares_count_one_by_one() -> None:
    shared = device("a", policy="p", type="share", uuid="1") | {
        "allowMultipleAllocations": True,
        "capacity": {"shares": {"value": "4"}},
    }
    claims = [claim(f"c{i}", ("n", "a"), consumedCapacity={"shares": "1"}) for i in range(3)]

    assert count([resource_slice("n", shared)], claims).groups == {
        DeviceGroup("p", "share"): GroupCount(4, 3, 1)
    }


@st.composite
def pools(draw: st.DrawFn) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """A pool in some state of a rollout, and claims on devices that are, were or never were there."""
    generations = draw(st.integers(1, 2))
    slices = []
    for generation in range(1, generations + 1):
        number = draw(st.integers(1, 3))
        for part in range(number):
            devices = []
            for i in range(draw(st.integers(0, 4))):
                body = draw(
                    st.sampled_from(
                        [
                            gpu(f"d{part}-{i}", "p", f"{part}-{i}"),
                            mig(f"d{part}-{i}", "p", "1g.10gb", f"{part}"),
                            mig(f"d{part}-{i}", "q", "2g.20gb", f"{part}"),
                        ]
                    )
                )
                if draw(st.booleans()):
                    body = body | {"taints": [{"key": "k", "effect": "NoSchedule"}]}
                devices.append(body)
            slices.append(
                resource_slice(
                    "n", *devices, name=f"{generation}-{part}", generation=generation, count=number
                )
            )
    names = [f"d{part}-{i}" for part in range(3) for i in range(4)]
    held = draw(st.lists(st.sampled_from(names), unique=True, max_size=6))
    return slices, [claim(f"c-{name}", ("n", name)) for name in held]


@given(pools())
def test_counts_equal_a_hand_count(world: tuple[list[dict[str, Any]], list[dict[str, Any]]]) -> None:
    """The hand goes over the raw objects and knows nothing of groups."""
    slices, claims = world
    newest = max(s["spec"]["pool"]["generation"] for s in slices)
    devices = [d for s in slices if s["spec"]["pool"]["generation"] == newest for d in s["spec"]["devices"]]
    held = {r["device"] for c in claims for r in c["status"]["allocation"]["devices"]["results"]}
    by_hand: Counter[tuple[str, str]] = Counter()
    for body in devices:
        policy = body["attributes"]["policy"]["string"]
        by_hand[policy, "devices"] += 1
        by_hand[policy, "allocated"] += body["name"] in held
        by_hand[policy, "free"] += body["name"] not in held and not body.get("taints")

    found = count(slices, claims)

    for policy in ("p", "q"):
        total = sum((c for g, c in found.groups.items() if g.policy == policy), GroupCount())
        assert total == GroupCount(*(by_hand[policy, what] for what in ("devices", "allocated", "free")))
        assert total.allocated + total.free <= total.devices
