"""Devices one by one, counted as the status of a policy counts them."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpupolicy.core import stock, tally
from tests.unit.core import wire

SICK = {"key": "gpupolicy.dev/unhealthy", "effect": "NoSchedule"}


def card(name: str, **more: Any) -> dict[str, Any]:
    return {**wire.gpu(name, "train", f"GPU-{name}"), **more}


def shared(name: str, shares: int) -> dict[str, Any]:
    return card(name, allowMultipleAllocations=True, capacity={"shares": {"value": str(shares)}})


@pytest.mark.parametrize(
    ("slices", "claims", "expected"),
    [
        pytest.param([], [], (0, 0, 0), id="nothing"),
        pytest.param([wire.resource_slice("n", card("a"), card("b"))], [], (2, 0, 2), id="all free"),
        pytest.param(
            [wire.resource_slice("n", card("a"), card("b"))],
            [wire.claim("x", ("n", "a"))],
            (2, 1, 1),
            id="one allocated",
        ),
        pytest.param(
            [wire.resource_slice("n", card("a"))], [wire.claim("x", ("n", "gone"))], (1, 0, 1), id="not there"
        ),
        pytest.param(
            [wire.resource_slice("n", card("a"))], [wire.claim("x", ("m", "a"))], (1, 0, 1), id="another pool"
        ),
        pytest.param(
            [wire.resource_slice("n", card("a"))],
            [wire.claim("x", ("n", "a"), driver="other.example.com")],
            (1, 0, 1),
            id="another driver",
        ),
        pytest.param(
            [wire.resource_slice("n", card("a"))],
            [wire.claim("x", ("n", "a"), adminAccess=True)],
            (1, 0, 1),
            id="admin access holds nothing",
        ),
        pytest.param(
            [wire.resource_slice("n", card("a"), card("b", taints=[SICK]))], [], (2, 0, 1), id="a sick one"
        ),
        pytest.param(
            [wire.resource_slice("n", card("a", taints=[SICK]))],
            [wire.claim("x", ("n", "a"))],
            (1, 1, 0),
            id="a sick one in use is allocated",
        ),
        pytest.param([wire.resource_slice("n", card("a"), count=2)], [], (1, 0, 0), id="half of the slices"),
        pytest.param(
            [
                wire.resource_slice("n", card("a"), card("b"), generation=1),
                wire.resource_slice("n", card("c"), generation=2),
            ],
            [],
            (1, 0, 1),
            id="newest generation only",
        ),
        pytest.param(
            [wire.resource_slice("n", shared("a", 4))],
            [wire.claim("x", ("n", "a"), consumedCapacity={"shares": "3"})],
            (4, 3, 1),
            id="shares",
        ),
        pytest.param(
            [wire.resource_slice("n", shared("a", 2))],
            [wire.claim("x", ("n", "a"), consumedCapacity={"shares": "3"})],
            (2, 2, 0),
            id="never more than there are",
        ),
    ],
)
def test_counts(slices: list[Any], claims: list[Any], expected: tuple[int, int, int]) -> None:
    found = stock.count(stock.units(slices, claims))
    assert (found.devices, found.allocated, found.free) == expected
    assert found.devices == found.allocated + found.free + sum(found.tainted.values()) + found.incomplete


def test_what_keeps_devices_back_is_told() -> None:
    units = stock.units(
        [
            wire.resource_slice("n", card("a", taints=[SICK]), card("b", taints=[SICK]), card("c")),
            wire.resource_slice("m", card("a"), count=2),
        ],
        [wire.claim("x", ("n", "a"))],
    )
    found = stock.count(units)
    assert (found.tainted, found.incomplete, found.nodes) == ({SICK["key"]: 1}, 1, {"n": 1})
    tolerant = stock.count(units, [{"operator": "Exists"}])
    assert (tolerant.tainted, tolerant.free, tolerant.nodes) == ({}, 2, {"n": 2})
    assert [unit.free() for unit in units] == [0, 0, 1, 0]
    assert [unit.free([{"operator": "Exists"}]) for unit in units] == [0, 1, 1, 0]


def test_most_on_one_node() -> None:
    """By number, then by name; devices of no node help on every one."""
    everywhere = wire.resource_slice("x", card("a"))
    del everywhere["spec"]["nodeName"]
    slices = [
        wire.resource_slice("b", card("a"), card("b")),
        wire.resource_slice("a", card("a"), card("b")),
        wire.resource_slice("c", card("a")),
    ]
    found = stock.count(stock.units([*slices, everywhere], ()))
    assert list(found.nodes) == ["a", "b", "", "c"]
    assert found.most == ("a", 2)
    assert [found.on(node) for node in ("a", "c", "nowhere", "")] == [3, 2, 1, 1]
    assert stock.Stock().most == ("", 0)
    assert stock.count(stock.units([everywhere], ())).most == ("", 0)


def test_a_device_may_name_its_own_node() -> None:
    piece = wire.resource_slice("x", card("a", nodeName="n1"), card("b", nodeName="n2"))
    del piece["spec"]["nodeName"]
    assert [unit.device.node for unit in stock.units([piece], ())] == ["n1", "n2"]


@pytest.mark.parametrize(
    "status", [None, {}, {"allocation": None}, {"allocation": {"nodeSelector": {}}}], ids=str
)
def test_claims_that_hold_nothing(status: Any) -> None:
    assert stock.allocated({"metadata": {"name": "x"}, "status": status}) == ()


def test_what_a_claim_holds_is_of_any_driver() -> None:
    """Names as they stand in the allocation."""
    (held,) = stock.allocated(wire.claim("x", ("n", "a"), driver="d", request="r/big"))
    assert (held.key, held.request, held.shares) == (("d", "n/gpupolicy", "a"), "r/big", 1)


DEVICE = st.tuples(
    st.sampled_from(["n", "m"]), st.booleans(), st.integers(0, 3), st.sampled_from(["train", "infer"])
)


@given(st.lists(DEVICE, max_size=12), st.sets(st.integers(0, 14)), st.sampled_from([1, 2]))
def test_the_sums_are_those_of_the_tally(
    devices: list[tuple[str, bool, int, str]], held: set[int], slice_count: int
) -> None:
    """Pool by pool and policy by policy: what this module and the status say is the same."""
    slices, claims = [], []
    for node in ("n", "m"):
        bodies = []
        for number, (where, sick, shares, policy) in enumerate(devices):
            if where == node:
                body = shared(f"d{number}", shares) if shares else card(f"d{number}")
                body["attributes"]["policy"] = {"string": policy}
                bodies.append({**body, "taints": [SICK] if sick else []})
        slices.append(wire.resource_slice(node, *bodies, count=slice_count if node == "m" else 1))
    claims = [wire.claim(f"c{n}", (devices[n % 12][0] if n < len(devices) else "n", f"d{n}")) for n in held]
    units = stock.units(slices, claims)
    for piece in slices:
        published = tally.PublishedSlice.of(piece)
        assert published is not None
        holdings = [h for c in claims for h in tally.holdings(c) if h.pool == published.pool]
        for group, expected in tally.count_pool([published], holdings).groups.items():
            found = stock.count(
                u
                for u in units
                if u.device.pool == published.pool and u.device.attributes["policy"]["string"] == group.policy
            )
            assert (found.devices, found.allocated, found.free) == (
                expected.devices,
                expected.allocated,
                expected.free,
            )
