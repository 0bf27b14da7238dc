"""What is in the way of a request: each sieve, in its order, with its numbers."""

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpupolicy.adapters.cel import engine
from gpupolicy.core import stock
from gpupolicy.core.classes import LiveClass
from gpupolicy.core.pod_requests import Alternative, Request
from gpupolicy.core.selection import Device, Verdict
from gpupolicy.core.sieve import Cause, Judge, Row
from tests.unit.core import wire

ENGINE = engine.Engine()
ATTRIBUTES = f'device.attributes["{wire.DRIVER}"]'
SICK = {"key": "gpupolicy.dev/unhealthy", "effect": "NoSchedule"}


def selects(policy: str, profile: str = "") -> str:
    expression = f'device.driver == "{wire.DRIVER}" && {ATTRIBUTES}.policy == "{policy}"'
    return f'{expression} && {ATTRIBUTES}.profile == "{profile}"' if profile else expression


CLASSES = (
    LiveClass(name="h100", policy="train", expressions=(selects("train"),)),
    LiveClass(name="small", policy="infer", expressions=(selects("infer", "1g.10gb"),)),
    LiveClass(name="big", policy="infer", expressions=(selects("infer", "3g.40gb"),)),
    LiveClass(name="empty", policy="none", expressions=(selects("none"),)),
    LiveClass(name="foreign", expressions=(f'{ATTRIBUTES}.nope == "x"',)),
    LiveClass(name="all"),
    LiveClass(name="two", expressions=(selects("train"), f'{ATTRIBUTES}.uuid == "GPU-n1-0"')),
)


def cards(node: str, number: int, **more: Any) -> dict[str, Any]:
    made = [{**wire.gpu(f"{node}-{n}", "train", f"GPU-{node}-{n}"), **more} for n in range(number)]
    return wire.resource_slice(node, *made)


def slices(node: str, small: int, big: int) -> dict[str, Any]:
    return wire.resource_slice(
        node,
        *(wire.mig(f"s{n}", "infer", "1g.10gb", "GPU-m") for n in range(small)),
        *(wire.mig(f"b{n}", "infer", "3g.40gb", "GPU-m") for n in range(big)),
    )


CLUSTER = (cards("n1", 2), cards("n2", 1), slices("m1", 3, 2))


def judge(*claims: Any, published: Any = CLUSTER, excluded: Mapping[str, str] | None = None) -> Judge:
    return Judge(CLASSES, stock.units(published, claims), excluded or {}, ENGINE)


def row(wanted: Alternative, *claims: Any, **more: Any) -> Row:
    (found,) = judge(*claims, **more).rows(Request("r", "ResourceClaim x", (wanted,)))
    return found


HELD = wire.claim("h", ("n1", "n1-0"), ("n1", "n1-1"), ("n2", "n2-0"))
ONE_HELD = wire.claim("h", ("n1", "n1-0"))


@pytest.mark.parametrize(
    ("wanted", "claims", "more", "cause", "message"),
    [
        pytest.param(
            Alternative("r", "h100"), [], {}, Cause.FREE, "0 of 3 devices allocated, 3 free", id="free"
        ),
        pytest.param(
            Alternative("r", "gone"),
            [],
            {},
            Cause.CLASS_MISSING,
            "DeviceClass gone does not exist; `kubectl get deviceclasses` lists those that do",
            id="no class",
        ),
        pytest.param(
            Alternative("r", "empty"),
            [],
            {},
            Cause.NO_DEVICES,
            "class empty selects none of 8 devices",
            id="empty",
        ),
        pytest.param(
            Alternative("r", "foreign"),
            [],
            {},
            Cause.SELECTOR_FAILS,
            f'the selector of class foreign fails: `{ATTRIBUTES}.nope == "x"` on 8 of 8 devices: no such key: nope',
            id="class fails",
        ),
        pytest.param(
            Alternative("r", "h100", 1, (f'{ATTRIBUTES}.nope == "x"',)),
            [],
            {},
            Cause.SELECTOR_FAILS,
            f'the request\'s selector fails: `{ATTRIBUTES}.nope == "x"` on 3 of 3 devices: no such key: nope',
            id="own selector fails",
        ),
        pytest.param(
            Alternative("r", "h100", 1, (f'{ATTRIBUTES}.uuid == "x"',)),
            [],
            {},
            Cause.SELECTOR_MISSES,
            "the request's selectors drop all 3 devices of class h100",
            id="own selector misses",
        ),
        pytest.param(
            Alternative("r", "h100"),
            [HELD],
            {},
            Cause.NONE_FREE,
            "3 of 3 devices allocated, 0 free",
            id="all held",
        ),
        pytest.param(
            Alternative("r", "h100"),
            [ONE_HELD],
            {"published": [cards("n1", 2, taints=[SICK])]},
            Cause.NONE_FREE,
            "1 of 2 devices allocated, 0 free, 1 kept back by taint gpupolicy.dev/unhealthy",
            id="sick",
        ),
        pytest.param(
            Alternative("r", "h100", 1, (), ({"operator": "Exists"},)),
            [ONE_HELD],
            {"published": [cards("n1", 2, taints=[SICK])]},
            Cause.FREE,
            "1 of 2 devices allocated, 1 free",
            id="sick and tolerated",
        ),
        pytest.param(
            Alternative("r", "h100"),
            [],
            {"published": [wire.resource_slice("n", wire.gpu("a", "train", "GPU-a"), count=2)]},
            Cause.NONE_FREE,
            "0 of 1 device allocated, 0 free, 1 in pools whose slices are not all there",
            id="incomplete",
        ),
        pytest.param(
            Alternative("r", "h100", 4),
            [],
            {},
            Cause.TOO_FEW_FREE,
            "0 of 3 devices allocated, 3 free, 4 asked",
            id="too few",
        ),
        pytest.param(
            Alternative("r", "h100", 3),
            [],
            {},
            Cause.TOO_FEW_ON_ONE_NODE,
            "0 of 3 devices allocated, 3 free, at most 2 on one node (n1), 3 asked on one node",
            id="too few on one node",
        ),
        pytest.param(
            Alternative("r", "h100", None),
            [wire.claim("h", ("n1", "n1-0"), ("n2", "n2-0"))],
            {},
            Cause.TOO_FEW_ON_ONE_NODE,
            "2 of 3 devices allocated, 1 free, at most 1 on one node (n1), all that match asked on one node",
            id="all of a node",
        ),
        pytest.param(
            Alternative("r", "h100", 2),
            [],
            {"excluded": {"n1": "nodeSelector a=b"}},
            Cause.NODES_EXCLUDED,
            "0 of 3 devices allocated, 3 free, but the pod may not run where enough is free: n1 (nodeSelector a=b)",
            id="wrong nodes",
        ),
        pytest.param(
            Alternative("r", "h100", is_admin=True),
            [HELD],
            {},
            Cause.FREE,
            "0 of 3 devices allocated, 3 free",
            id="admin",
        ),
        pytest.param(
            Alternative("r", "two"), [], {}, Cause.FREE, "0 of 1 device allocated, 1 free", id="two selectors"
        ),
        pytest.param(
            Alternative("r", "all"), [], {}, Cause.FREE, "0 of 8 devices allocated, 8 free", id="no selector"
        ),
    ],
)
def test_the_first_sieve_that_lets_nothing_through(
    wanted: Alternative, claims: list[Any], more: dict[str, Any], cause: Cause, message: str
) -> None:
    found = row(wanted, *claims, **more)
    assert (found.cause, found.message) == (cause, message)
    assert bool(found.nodes) == (cause is Cause.FREE)


def test_a_verdict_that_is_not_known() -> None:
    """It is told as that, and counts as nothing else."""
    twice = {"name": "a", "attributes": {"t": {"int": 1}, f"{wire.DRIVER}/t": {"int": 2}}}
    found = row(
        Alternative("r", "all", 1, (f"{ATTRIBUTES}.t == 1",)), published=[wire.resource_slice("n", twice)]
    )
    assert found.cause is Cause.CANNOT_TELL
    assert found.message.startswith("the request's selector has no verdict that is known here: `")


def test_numbers_of_a_request() -> None:
    held = wire.claim("h", ("m1", "s0"), ("m1", "s1"), ("m1", "b0"))
    found = row(Alternative("r", "small", 1, (f'{ATTRIBUTES}.uuid == "MIG-s2"',)), held)
    assert (found.of_class.devices, found.of_class.allocated, found.of_class.free) == (3, 2, 1)
    assert (found.matching.devices, found.matching.free, found.nodes) == (1, 1, ("m1",))
    assert [(drop.clause, drop.devices) for drop in found.drops] == [(f'{ATTRIBUTES}.uuid == "MIG-s2"', 2)]
    assert [(name, s.devices, s.allocated, s.free) for name, s in found.others] == [("big", 2, 1, 1)]
    assert (found.policy, found.origin) == ("infer", "ResourceClaim x")


def test_clauses_of_an_empty_class_are_told() -> None:
    """In their order; a clause counts what those before it let through."""
    drops = row(Alternative("r", "empty")).drops
    assert [(drop.clause, drop.devices) for drop in drops] == [(f'{ATTRIBUTES}.policy == "none"', 8)]


def test_clauses_of_several_selectors() -> None:
    """The second selector sees what the first let through."""
    own = (
        f'{ATTRIBUTES}.type == "mig" && {ATTRIBUTES}.profile == "1g.10gb"',
        f'{ATTRIBUTES}.uuid == "MIG-s0"',
    )
    found = row(Alternative("r", "all", 1, own))
    assert [drop.devices for drop in found.drops] == [3, 2, 2]
    assert found.matching.devices == 1


def test_a_class_without_a_policy_has_no_siblings() -> None:
    found = row(Alternative("r", "all"))
    assert (found.policy, found.others) == ("", ())


def test_many_excluded_nodes_are_counted() -> None:
    published = [cards(f"n{n}", 1) for n in range(6)]
    found = row(
        Alternative("r", "h100"), published=published, excluded={f"n{n}": "taint x" for n in range(6)}
    )
    assert found.message.endswith("n2 (taint x), n3 (taint x) and 2 more")


def test_each_alternative_has_a_row_and_a_class_is_evaluated_once() -> None:
    asked: list[str] = []

    class Counting(engine.Engine):
        def evaluate(self, expression: str, devices: Any) -> list[Verdict]:
            asked.append(expression)
            return super().evaluate(expression, list[Device](devices))

    one = Judge(CLASSES, stock.units(CLUSTER, ()), {}, Counting())
    wanted = tuple(Alternative(f"r/{n}", name) for n, name in enumerate(("h100", "h100", "small", "big")))
    found = one.rows(Request("r", "ResourceClaim x", wanted))
    assert [r.of_class.devices for r in found] == [3, 3, 3, 2]
    assert asked.count(CLASSES[0].expressions[0]) == 1


@pytest.mark.parametrize(
    ("wanted", "claims", "expected"),
    [
        pytest.param(["h100", "h100"], [], True, id="two of a node"),
        pytest.param(["h100", "h100"], [ONE_HELD], False, id="one on each node"),
        pytest.param(["small", "big"], [], True, id="of different classes"),
        pytest.param(["h100", "small"], [], False, id="on different nodes"),
        pytest.param(["h100", "two"], [], True, id="the choosy one gets its card"),
        pytest.param(["two", "two"], [], False, id="both want one card"),
        pytest.param(["two", "h100", "all"], [], False, id="three want two cards"),
    ],
)
def test_requests_together(wanted: list[str], claims: list[Any], expected: bool) -> None:
    one = judge(*claims)
    rows = [r for name in wanted for r in one.rows(Request("r", "x", (Alternative("r", name),)))]
    assert {r.cause for r in rows} == {Cause.FREE}
    assert one.common_node(rows) is expected
    assert one.common_node(rows[::-1]) is expected


def test_what_cannot_be_matched_is_no_reason() -> None:
    """Requests for all, admin access, and devices of no single node."""
    everywhere = cards("x", 1)
    del everywhere["spec"]["nodeName"]
    one = judge(published=[everywhere, slices("m1", 1, 0)])
    rows = [r for name in ("h100", "small") for r in one.rows(Request("r", "x", (Alternative("r", name),)))]
    assert [r.nodes for r in rows] == [("",), ("m1",)]
    assert one.common_node(rows)
    for special in (Alternative("r", "two", None), Alternative("r", "two", is_admin=True)):
        one = judge()
        pair = [one.rows(Request("r", "x", (a,)))[0] for a in (special, Alternative("r", "two"))]
        assert one.common_node(pair)


def test_devices_of_no_single_node_help_on_each() -> None:
    everywhere = cards("x", 1)
    del everywhere["spec"]["nodeName"]
    one = judge(published=[cards("n1", 2), everywhere])
    rows = [
        one.rows(Request("r", "x", (a,)))[0] for a in (Alternative("r", "h100", 2), Alternative("r", "two"))
    ]
    assert [r.nodes for r in rows] == [("n1",), ("n1",)]
    assert one.common_node(rows)
    rows[0] = one.rows(Request("r", "x", (Alternative("r", "h100", 3),)))[0]
    assert not one.common_node(rows)


@given(
    st.lists(st.sets(st.integers(0, 4), min_size=1), min_size=2, max_size=4),
    st.lists(st.integers(1, 2), min_size=4),
)
def test_the_matching_is_exact(choices: list[set[int]], counts: list[int]) -> None:
    """Against all ways to hand five cards of one node to the requests, tried one after the other."""
    uuids = [f"GPU-n-{n}" for n in range(5)]
    wanted = [
        Alternative("r", "h100", min(count, len(chosen)), (_one_of([uuids[n] for n in sorted(chosen)]),))
        for chosen, count in zip(choices, counts, strict=False)
    ]
    one = judge(published=[cards("n", 5)])
    rows = [one.rows(Request("r", "x", (a,)))[0] for a in wanted]
    slots = [chosen for chosen, a in zip(choices, wanted, strict=True) for _ in range(a.count or 0)]
    assert one.common_node(rows) is _possible(slots, frozenset())


def _one_of(uuids: list[str]) -> str:
    return f"{ATTRIBUTES}.uuid in [{', '.join(map(chr(34).__add__, [u + chr(34) for u in uuids]))}]"


def _possible(slots: list[set[int]], taken: frozenset[int]) -> bool:
    if not slots:
        return True
    return any(_possible(slots[1:], taken | {n}) for n in slots[0] - taken)
