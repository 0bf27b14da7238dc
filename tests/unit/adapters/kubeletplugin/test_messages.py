"""The messages on the wire, byte by byte: field numbers and types are the contract with the kubelet.

The expected bytes are written by hand from the protobuf encoding rules, so that no code of ours produced them.
"""

from typing import Any

import pytest

from gpupolicy.adapters.kubeletplugin import messages as m

CLAIM = b"\x0a\x02ns\x12\x03uid\x1a\x04name"
IDENTIFIER = b"\x0a\x04pool\x12\x03dev"


def text(number: int, value: bytes) -> bytes:
    return bytes([number << 3 | 2, len(value)]) + value


CASES = [
    pytest.param(
        m.DRA_V1.NodePrepareResourcesRequest(claims=[{"namespace": "ns", "uid": "uid", "name": "name"}]),
        text(1, CLAIM),
        id="prepare request",
    ),
    pytest.param(
        m.DRA_V1BETA1.NodeUnprepareResourcesRequest(
            claims=[{"namespace": "ns", "uid": "uid", "name": "name"}] * 2
        ),
        text(1, CLAIM) * 2,
        id="unprepare request",
    ),
    pytest.param(
        m.DRA_V1.Device(
            request_names=["r", "s"], pool_name="p", device_name="d", cdi_device_ids=["v/c=x"], share_id="i"
        ),
        text(1, b"r") + text(1, b"s") + text(2, b"p") + text(3, b"d") + text(4, b"v/c=x") + text(5, b"i"),
        id="device",
    ),
    pytest.param(m.DRA_V1.Device(share_id=""), b"\x2a\x00", id="an empty share id is present"),
    pytest.param(m.DRA_V1.Device(), b"", id="no share id is absent"),
    pytest.param(
        m.DRA_V1.NodePrepareResourceResponse(devices=[{"device_name": "d"}], error="e"),
        text(1, text(3, b"d")) + text(2, b"e"),
        id="prepare entry",
    ),
    pytest.param(
        m.DRA_V1.NodePrepareResourcesResponse(claims={"u": m.DRA_V1.NodePrepareResourceResponse(error="e")}),
        text(1, text(1, b"u") + text(2, text(2, b"e"))),
        id="prepare answer",
    ),
    pytest.param(
        m.DRA_V1BETA1.NodeUnprepareResourcesResponse(
            claims={"u": m.DRA_V1BETA1.NodeUnprepareResourceResponse()}
        ),
        text(1, text(1, b"u") + text(2, b"")),
        id="an entry without error is still an entry",
    ),
    pytest.param(
        m.REGISTRATION.PluginInfo(type="t", name="n", endpoint="e", supported_versions=["v", "w"]),
        text(1, b"t") + text(2, b"n") + text(3, b"e") + text(4, b"v") + text(4, b"w"),
        id="plugin info",
    ),
    pytest.param(
        m.REGISTRATION.RegistrationStatus(plugin_registered=True, error="e"),
        b"\x08\x01" + text(2, b"e"),
        id="registration status",
    ),
    pytest.param(
        m.HEALTH_V1.NodeWatchResourcesResponse(
            devices=[
                {
                    "device": {"pool_name": "pool", "device_name": "dev"},
                    "health": 2,
                    "last_updated_time": 300,
                    "health_check_timeout_seconds": 30,
                    "message": "m",
                }
            ]
        ),
        text(1, text(1, IDENTIFIER) + b"\x10\x02\x18\xac\x02\x20\x1e" + text(5, b"m")),
        id="health",
    ),
]


@pytest.mark.parametrize(("message", "wire"), CASES)
def test_a_message_is_these_bytes(message: Any, wire: bytes) -> None:
    assert message.SerializeToString(deterministic=True) == wire
    assert type(message).FromString(wire) == message


@pytest.mark.parametrize(
    ("message", "name"),
    [
        (m.DRA_V1.Claim, "k8s.io.kubelet.pkg.apis.dra.v1.Claim"),
        (m.DRA_V1BETA1.Claim, "k8s.io.kubelet.pkg.apis.dra.v1beta1.Claim"),
        (m.REGISTRATION.PluginInfo, "pluginregistration.PluginInfo"),
        (m.HEALTH_V1.DeviceHealth, "v1.DeviceHealth"),
        (m.HEALTH_V1ALPHA1.DeviceHealth, "v1alpha1.DeviceHealth"),
    ],
)
def test_messages_have_their_upstream_names(message: Any, name: str) -> None:
    assert message.DESCRIPTOR.full_name == name


def test_the_older_version_lacks_the_share_id() -> None:
    """That is the only difference between the two versions."""
    fields = {
        version: set(types.Device.DESCRIPTOR.fields_by_name)
        for version, types in (("v1", m.DRA_V1), ("v1beta1", m.DRA_V1BETA1))
    }
    assert fields["v1"] - fields["v1beta1"] == {"share_id"}
    assert fields["v1beta1"] < fields["v1"]


def test_unknown_fields_of_a_newer_kubelet_do_no_harm() -> None:
    assert m.DRA_V1.Claim.FromString(CLAIM + text(9, b"new")).uid == "uid"
