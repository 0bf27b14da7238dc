"""The protobuf messages of the kubelet's plugin protocols, built from descriptors written here.

Generated code is locked to the protobuf release that generated it; descriptors are not. The field numbers are the
contract, from the `.proto` files of k8s.io/kubelet v0.37; a Go client generated from them is part of the tests.
The classes live in a descriptor pool of their own, so that no other copy of these protocols in the process clashes.
"""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_Field = descriptor_pb2.FieldDescriptorProto

# Name and type of each field, in the order of the field numbers from 1. `*` repeats, `?` tracks presence, `map`
# stands for a map from text; a name that is no scalar is a message of the same package.
_DRA_V1: Final = {
    "Claim": {"namespace": "string", "uid": "string", "name": "string"},
    "Device": {
        "request_names": "string*",
        "pool_name": "string",
        "device_name": "string",
        "cdi_device_ids": "string*",
        "share_id": "string?",
    },
    "NodePrepareResourcesRequest": {"claims": "Claim*"},
    "NodePrepareResourceResponse": {"devices": "Device*", "error": "string"},
    "NodePrepareResourcesResponse": {"claims": "map NodePrepareResourceResponse"},
    "NodeUnprepareResourcesRequest": {"claims": "Claim*"},
    "NodeUnprepareResourceResponse": {"error": "string"},
    "NodeUnprepareResourcesResponse": {"claims": "map NodeUnprepareResourceResponse"},
}
_DRA_V1BETA1: Final = {
    **_DRA_V1,
    "Device": {name: kind for name, kind in _DRA_V1["Device"].items() if name != "share_id"},
}
_REGISTRATION: Final = {
    "PluginInfo": {"type": "string", "name": "string", "endpoint": "string", "supported_versions": "string*"},
    "RegistrationStatus": {"plugin_registered": "bool", "error": "string"},
    "RegistrationStatusResponse": {},
    "InfoRequest": {},
}
_HEALTH: Final = {
    "NodeWatchResourcesRequest": {},
    "DeviceIdentifier": {"pool_name": "string", "device_name": "string"},
    "DeviceHealth": {
        "device": "DeviceIdentifier",
        # An enum on the wire, UNKNOWN 0, HEALTHY 1, UNHEALTHY 2: a varint, as an int32 is.
        "health": "int32",
        "last_updated_time": "int64",
        "health_check_timeout_seconds": "int64",
        "message": "string",
    },
    "NodeWatchResourcesResponse": {"devices": "DeviceHealth*"},
}

_SCALARS: Final = {
    "string": _Field.TYPE_STRING,
    "bool": _Field.TYPE_BOOL,
    "int32": _Field.TYPE_INT32,
    "int64": _Field.TYPE_INT64,
}


def _build(pool: descriptor_pool.DescriptorPool, package: str, table: Mapping[str, Mapping[str, str]]) -> Any:
    """Add one package to the pool; return a namespace of its message classes."""
    file = descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto3")
    for name, table_fields in table.items():
        message = file.message_type.add(name=name)
        for number, (field_name, kind) in enumerate(table_fields.items(), start=1):
            _add_field(message, f".{package}", field_name, number, kind)
    pool.Add(file)
    return SimpleNamespace(
        **{
            name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}"))
            for name in table
        }
    )


def _add_field(
    message: descriptor_pb2.DescriptorProto, package: str, name: str, number: int, kind: str
) -> None:
    field = message.field.add(name=name, number=number, label=_Field.LABEL_OPTIONAL)
    if kind.startswith("map "):
        # A map is a repeated entry message with two fields; that is all it is on the wire.
        entry = message.nested_type.add(name=f"{name.capitalize()}Entry")
        entry.options.map_entry = True
        _add_field(entry, package, "key", 1, "string")
        _add_field(entry, package, "value", 2, kind.removeprefix("map "))
        field.label = _Field.LABEL_REPEATED
        field.type, field.type_name = _Field.TYPE_MESSAGE, f"{package}.{message.name}.{entry.name}"
        return
    if kind.endswith("*"):
        field.label = _Field.LABEL_REPEATED
    if kind.endswith("?"):
        # proto3 presence is a oneof of one field.
        field.oneof_index, field.proto3_optional = len(message.oneof_decl), True
        message.oneof_decl.add(name=f"_{name}")
    kind = kind.rstrip("*?")
    if kind in _SCALARS:
        field.type = _SCALARS[kind]
    else:
        field.type, field.type_name = _Field.TYPE_MESSAGE, f"{package}.{kind}"


_POOL: Final = descriptor_pool.DescriptorPool()

DRA_V1: Final = _build(_POOL, "k8s.io.kubelet.pkg.apis.dra.v1", _DRA_V1)
DRA_V1BETA1: Final = _build(_POOL, "k8s.io.kubelet.pkg.apis.dra.v1beta1", _DRA_V1BETA1)
REGISTRATION: Final = _build(_POOL, "pluginregistration", _REGISTRATION)
HEALTH_V1: Final = _build(_POOL, "v1", _HEALTH)
HEALTH_V1ALPHA1: Final = _build(_POOL, "v1alpha1", _HEALTH)
