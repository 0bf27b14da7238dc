"""What an expression reads of a device."""

import pytest

from gpupolicy.adapters.cel import engine
from gpupolicy.core.selection import Read, Reads

A = 'device.attributes["a.com"]'
C = 'device.capacity["a.com"]'
EVERYTHING = Reads((), everything=True)


def names(*pairs: str) -> Reads:
    return Reads(tuple(sorted(Read(*pair.split(" ")) for pair in pairs)))


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("true", names()),
        ("device.driver == 'x' && device.allowMultipleAllocations", names()),
        (f"{A}.x == 1", names("attributes a.com x")),
        (
            f"{A}['x'] == 1 && {C}.m == {C}.n",
            names("attributes a.com x", "capacity a.com m", "capacity a.com n"),
        ),
        ("device.attributes.foo.x == 1", names("attributes foo x")),
        (
            f"has({A}.x) && {A}.?y.orValue(1) == 1 && {A}[?'z'].hasValue()",
            names("attributes a.com x", "attributes a.com y", "attributes a.com z"),
        ),
        (f"'x' in {A} && !('y' in {C})", names("attributes a.com x", "capacity a.com y")),
        (
            f"cel.bind(a, {A}, a.x == 1 && cel.bind(b, a, b.y == 2))",
            names("attributes a.com x", "attributes a.com y"),
        ),
        ("cel.bind(d, device, d.attributes['a.com'].x == 1)", names("attributes a.com x")),
        (f"{A}.?x.optMap(v, v == 1).orValue(false)", names("attributes a.com x")),
        (f"[1].exists(x, x == {A}.y)", names("attributes a.com y")),
        (f"[1].exists(device, device == {'1'})", names()),
        (f"{A}.exists(k, k == 'x')", EVERYTHING),
        ("device.attributes.exists(d, d == 'x')", EVERYTHING),
        ("'a.com' in device.attributes", EVERYTHING),
        (f"size({A}) == 1", EVERYTHING),
        (f"{A}[device.driver] == 1", EVERYTHING),
        ("device.attributes[device.driver].x == 1", EVERYTHING),
        ("device == device", EVERYTHING),
        (f"cel.bind(a, {A}, a == {A})", EVERYTHING),
        (f"device.driver in {A}", EVERYTHING),
        ("this does not compile", names()),
    ],
)
def test_reads(expression: str, expected: Reads) -> None:
    assert engine.reads(expression) == expected
