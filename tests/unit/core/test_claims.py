"""What a claim asks of a node, and every way in which it can be wrong."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpupolicy.core import claims
from gpupolicy.core.claims import ClaimRefusal
from gpupolicy.core.inventory import Placement
from gpupolicy.core.records import ClaimRecord, ClaimState, DeviceKind, DeviceRecord, PreparedDevice

POOL = "gpu-01/gpupolicy"
DRIVER = "gpu.gpupolicy.dev"


def gpu(number: int) -> DeviceRecord:
    return DeviceRecord(name=f"gpu-{number}", kind=DeviceKind.GPU, policy="train", gpu_uuid=f"GPU-{number}")


def mig(number: int, start: int, size: int = 1) -> DeviceRecord:
    return DeviceRecord(
        name=f"mig-{number}-{start}",
        kind=DeviceKind.MIG,
        policy="infer",
        gpu_uuid=f"GPU-{number}",
        profile_id=19,
        placement=Placement(start, size),
        mig_uuid=f"MIG-{number}-{start}",
    )


DEVICES = {d.name: d for d in (gpu(0), gpu(1), mig(2, 0), mig(2, 1), mig(2, 4, 4))}


def result(device: str, request: str = "r", **more: Any) -> dict[str, Any]:
    return {"driver": DRIVER, "pool": POOL, "device": device, "request": request, **more}


def claim(*results: dict[str, Any], config: Any = (), uid: str = "u1") -> dict[str, Any]:
    return {
        "metadata": {"uid": uid, "name": "c", "namespace": "ns"},
        "status": {"allocation": {"devices": {"results": list(results), "config": list(config)}}},
    }


def config(parameters: Any, driver: str = DRIVER) -> dict[str, Any]:
    return {"source": "FromClaim", "requests": [], "opaque": {"driver": driver, "parameters": parameters}}


GOOD = {"apiVersion": "gpupolicy.dev/v1alpha1", "kind": "ClaimConfig"}

RESOLVED: list[Any] = [
    pytest.param(claim(result("gpu-0")), [("gpu-0", ("r",))], id="one"),
    pytest.param(
        claim(result("gpu-0", "a"), result("mig-2-0", "b")),
        [("gpu-0", ("a",)), ("mig-2-0", ("b",))],
        id="two-requests",
    ),
    pytest.param(claim(result("gpu-0", "a/first")), [("gpu-0", ("a",))], id="subrequest"),
    pytest.param(
        claim(result("gpu-0"), {**result("x"), "driver": "other.dev"}),
        [("gpu-0", ("r",))],
        id="foreign-driver-beside",
    ),
    pytest.param(
        claim(result("gpu-0"), {**result("gpu-1"), "pool": "gpu-02/gpupolicy"}),
        [("gpu-0", ("r",))],
        id="foreign-pool-beside",
    ),
    pytest.param(
        claim(result("gpu-0"), config=[config(GOOD)]), [("gpu-0", ("r",))], id="config-that-says-nothing"
    ),
    pytest.param(
        claim(result("gpu-0"), config=[config({"rm": "-rf"}, "other.dev")]),
        [("gpu-0", ("r",))],
        id="config-of-others",
    ),
]


@pytest.mark.parametrize(("body", "expected"), RESOLVED)
def test_a_claim_resolves_to_its_devices(
    body: dict[str, Any], expected: list[tuple[str, tuple[str, ...]]]
) -> None:
    """Devices of our driver and pool, with the requests they serve."""
    found = claims.resolve(body, "u1", POOL, DEVICES)
    assert isinstance(found, tuple)
    assert [(d.device.name, d.requests) for d in found] == expected


REFUSED: list[Any] = [
    pytest.param(
        claim(result("gpu-0"), uid="u2"), ["UID u2", "u1", "made again"], False, id="uid-of-another"
    ),
    pytest.param({"metadata": {"uid": "u1"}}, ["not allocated"], False, id="no-status"),
    pytest.param({"metadata": {"uid": "u1"}, "status": {}}, ["not allocated"], False, id="deallocated"),
    pytest.param(
        claim(result("gpu-7")), ["gpu-7", "does not exist", "delete the pod"], True, id="no-such-device"
    ),
    pytest.param(
        claim({**result("gpu-0"), "driver": "other.dev"}), ["no device of pool"], False, id="other-driver"
    ),
    pytest.param(
        claim({**result("gpu-0"), "pool": "gpu-02/gpupolicy"}), ["no device"], False, id="other-node"
    ),
    pytest.param(claim(result("gpu-0", adminAccess=True)), ["admin access"], False, id="admin-access"),
    pytest.param(
        claim(result("gpu-0"), config=[config(None)]), ["config[0]", "FromClaim"], False, id="config-null"
    ),
    pytest.param(claim(result("gpu-0"), config=[config("x")]), ["config[0]"], False, id="config-text"),
    pytest.param(claim(result("gpu-0"), config=[config([])]), ["config[0]"], False, id="config-list"),
    pytest.param(claim(result("gpu-0"), config=[config({})]), ["apiVersion"], False, id="config-empty"),
    pytest.param(
        claim(result("gpu-0"), config=[config({**GOOD, "kind": "GpuConfig"})]),
        ["kind"],
        False,
        id="config-other-kind",
    ),
    pytest.param(
        claim(result("gpu-0"), config=[config({**GOOD, "sharing": {}})]),
        ["sharing"],
        False,
        id="config-unknown-field",
    ),
    pytest.param(
        claim(result("gpu-0"), config=[config({**GOOD, "timeSlicing": {"interval": "Long"}})]),
        ["timeSlicing", "not served", "leave it out"],
        False,
        id="config-not-served",
    ),
    pytest.param(
        claim(result("gpu-0"), config=[config({**GOOD, "mps": {"activeThreadPercentage": 900}})]),
        ["mps.activeThreadPercentage"],
        False,
        id="config-out-of-range",
    ),
    pytest.param(
        claim(result("gpu-0"), config=[config(GOOD), config({**GOOD, "x" * 9000: 1})]),
        ["config[1]"],
        False,
        id="second-config-and-long-name",
    ),
]


@pytest.mark.parametrize(("body", "words", "waits"), REFUSED)
def test_a_claim_is_refused_with_its_reason(body: dict[str, Any], words: list[str], waits: bool) -> None:
    """The text names what is wrong, and stays short enough for an event."""
    refusal = claims.resolve(body, "u1", POOL, DEVICES)
    assert isinstance(refusal, ClaimRefusal)
    assert [word for word in words if word not in refusal.message] == [], refusal.message
    assert (refusal.waits, len(refusal.message) < 1024) == (waits, True)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=20,
)


@given(json_values)
def test_no_configuration_breaks_the_reader(parameters: Any) -> None:
    """A tenant's JSON is refused or says nothing; it never raises."""
    found = claims.resolve(claim(result("gpu-0"), config=[config(parameters)]), "u1", POOL, DEVICES)
    assert isinstance(found, ClaimRefusal)


def test_a_deeply_nested_configuration_is_refused() -> None:
    """Ten kilobytes of brackets are what the API server lets through."""
    nested = json.loads('{"a":' * 900 + "{}" + "}" * 900)
    found = claims.resolve(
        claim(result("gpu-0"), config=[config({**GOOD, "mps": nested})]), "u1", POOL, DEVICES
    )
    assert isinstance(found, ClaimRefusal)


def prepared(device: DeviceRecord, share: str = "") -> PreparedDevice:
    return PreparedDevice(device=device, pool=POOL, requests=("r",), share_id=share)


def record(uid: str, *devices: PreparedDevice) -> ClaimRecord:
    return ClaimRecord(uid=uid, namespace="ns", name=uid, state=ClaimState.PREPARE_COMPLETED, devices=devices)


OVERLAPS: list[Any] = [
    pytest.param(gpu(0), gpu(0), True, id="same-card"),
    pytest.param(gpu(0), gpu(1), False, id="other-card"),
    pytest.param(gpu(2), mig(2, 0), True, id="card-and-its-slice"),
    pytest.param(gpu(0), mig(2, 0), False, id="card-and-a-slice-of-another"),
    pytest.param(mig(2, 0), mig(2, 0), True, id="same-slice"),
    pytest.param(mig(2, 0), mig(2, 1), False, id="slices-side-by-side"),
    pytest.param(mig(2, 4, 4), mig(2, 6), True, id="slice-inside-a-larger-one"),
]


@pytest.mark.parametrize(("one", "other", "expected"), OVERLAPS)
def test_devices_overlap(one: DeviceRecord, other: DeviceRecord, expected: bool) -> None:
    """Two devices overlap if they share any of the hardware, whichever is asked first."""
    assert (claims.overlap(one, other), claims.overlap(other, one)) == (expected, expected)


def test_holders_are_the_other_claims_that_overlap() -> None:
    """A claim does not stand in its own way, and neighbours on the card do not either."""
    records = {
        "u1": record("u1", prepared(mig(2, 0))),
        "u2": record("u2", prepared(mig(2, 1))),
        "u3": record("u3", prepared(gpu(2))),
    }
    found = claims.holders("u1", [prepared(mig(2, 0))], records)
    assert [holder.uid for holder in found] == ["u3"]


def test_shares_of_one_device_have_several_holders() -> None:
    """Two shares live side by side; a claim on the whole device does not join them."""
    records = {"u1": record("u1", prepared(gpu(0), share="s1"))}
    assert claims.holders("u2", [prepared(gpu(0), share="s2")], records) == ()
    assert [h.uid for h in claims.holders("u2", [prepared(gpu(0))], records)] == ["u1"]


CURRENT: list[Any] = [
    pytest.param(claim(result("gpu-0")), True, id="allocated"),
    pytest.param(None, False, id="gone"),
    pytest.param(claim(result("gpu-0"), uid="u9"), False, id="made-again"),
    pytest.param({"metadata": {"uid": "u1"}, "status": {}}, False, id="deallocated"),
    pytest.param(claim(result("gpu-1")), False, id="allocated-elsewhere"),
]


@pytest.mark.parametrize(("body", "expected"), CURRENT)
def test_whether_a_record_is_current(body: dict[str, Any] | None, expected: bool) -> None:
    """A record is current while the API server allocates its device to a claim of its UID."""
    assert claims.is_current(body, record("u1", prepared(gpu(0)))) is expected
