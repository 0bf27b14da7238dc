"""CDI spec files: what a container runtime adds to a container that was given a device.

This module writes one file per prepared claim, removes it, lists its own, and reads the files that
`nvidia-ctk cdi generate` writes. It knows the format (CDI 1.1.0, every field) and nothing of GPUs. What it reads
and what it writes pass the same checks; a field that it does not know is an error, since a dropped field is a
container without its device.

It blocks: call it in a thread.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

from gpupolicy.adapters import files

_EARLIEST: Final = "0.3.0"
_KIND: Final = re.compile(r"[A-Za-z](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?/[A-Za-z](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?")
_DEVICE_NAME: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.:-]*[A-Za-z0-9])?")
_CLAIM_UID: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?")
_TO_ESCAPE: Final = re.compile("[\x7f-\uffff]")
_HOOK_NAMES: Final = frozenset(
    {"prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop"}
)


class SpecError(ValueError):
    """A CDI spec that no runtime would load, or whose meaning we would lose.

    Attributes:
        source: the file, or what the content was meant for.
        field: where in the document, for example `devices[0].containerEdits.mounts[2].type`.
    """

    def __init__(self, source: str, where: str, problem: str) -> None:
        self.source = source
        self.field = where
        super().__init__(f"CDI spec {source}: {where or 'document'}: {problem}")


def _wire(name: str, read: str, since: str = _EARLIEST) -> Mapping[str, str]:
    """Describe a field: its name in the document, the `_Reader` method for it, the CDI version that brought it."""
    return {"name": name, "read": read, "since": since}


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceNode:
    """A device node in the container. With type, major and minor it need not exist on the host."""

    path: str = field(metadata=_wire("path", "path"))
    host_path: str | None = field(default=None, metadata=_wire("hostPath", "path", "0.5.0"))
    type: str | None = field(default=None, metadata=_wire("type", "node_type"))
    major: int | None = field(default=None, metadata=_wire("major", "count"))
    minor: int | None = field(default=None, metadata=_wire("minor", "count"))
    file_mode: int | None = field(default=None, metadata=_wire("fileMode", "count"))
    permissions: str | None = field(default=None, metadata=_wire("permissions", "permissions"))
    uid: int | None = field(default=None, metadata=_wire("uid", "count"))
    gid: int | None = field(default=None, metadata=_wire("gid", "count"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A bind mount, or with `type` any other mount."""

    host_path: str = field(metadata=_wire("hostPath", "text"))
    container_path: str = field(metadata=_wire("containerPath", "path"))
    options: tuple[str, ...] = field(default=(), metadata=_wire("options", "texts"))
    type: str | None = field(default=None, metadata=_wire("type", "text", "0.4.0"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Hook:
    """An OCI hook: a program that the runtime starts on the host."""

    hook_name: str = field(metadata=_wire("hookName", "hook_name"))
    path: str = field(metadata=_wire("path", "path"))
    args: tuple[str, ...] = field(default=(), metadata=_wire("args", "texts"))
    env: tuple[str, ...] = field(default=(), metadata=_wire("env", "env"))
    timeout_seconds: int | None = field(default=None, metadata=_wire("timeout", "count"))


@dataclass(frozen=True, slots=True, kw_only=True)
class NetDevice:
    """A network interface moved into the container."""

    host_interface_name: str = field(metadata=_wire("hostInterfaceName", "text"))
    name: str = field(metadata=_wire("name", "text"))


@dataclass(frozen=True, slots=True, kw_only=True)
class IntelRdt:
    """Cache and memory bandwidth classes of Intel CPUs."""

    clos_id: str | None = field(default=None, metadata=_wire("closID", "clos_id"))
    l3_cache_schema: str | None = field(default=None, metadata=_wire("l3CacheSchema", "text"))
    mem_bw_schema: str | None = field(default=None, metadata=_wire("memBwSchema", "text"))
    schemata: tuple[str, ...] = field(default=(), metadata=_wire("schemata", "texts", "1.1.0"))
    enable_monitoring: bool = field(default=False, metadata=_wire("enableMonitoring", "flag", "1.1.0"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerEdits:
    """Everything that one device, or every device of a spec, changes in a container."""

    env: tuple[str, ...] = field(default=(), metadata=_wire("env", "env"))
    device_nodes: tuple[DeviceNode, ...] = field(default=(), metadata=_wire("deviceNodes", "device_nodes"))
    net_devices: tuple[NetDevice, ...] = field(
        default=(), metadata=_wire("netDevices", "net_devices", "1.1.0")
    )
    hooks: tuple[Hook, ...] = field(default=(), metadata=_wire("hooks", "hooks"))
    mounts: tuple[Mount, ...] = field(default=(), metadata=_wire("mounts", "mounts"))
    intel_rdt: IntelRdt | None = field(default=None, metadata=_wire("intelRdt", "intel_rdt", "0.7.0"))
    additional_gids: tuple[int, ...] = field(default=(), metadata=_wire("additionalGids", "counts", "0.7.0"))

    def __add__(self, other: "ContainerEdits") -> "ContainerEdits":
        """Append other edits; what both hold stands once, where it stood first."""
        return ContainerEdits(
            env=_joined(self.env, other.env),
            device_nodes=_joined(self.device_nodes, other.device_nodes),
            net_devices=_joined(self.net_devices, other.net_devices),
            hooks=_joined(self.hooks, other.hooks),
            mounts=_joined(self.mounts, other.mounts),
            intel_rdt=other.intel_rdt or self.intel_rdt,
            additional_gids=_joined(self.additional_gids, other.additional_gids),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """One spec file. Annotations are checked and left out: runtimes do not act on them."""

    kind: str
    devices: Mapping[str, ContainerEdits]
    common_edits: ContainerEdits = ContainerEdits()


def qualified_name(kind: str, claim_uid: str, device: str) -> str:
    """Return the CDI id of a prepared device, as the kubelet hands it to the runtime."""
    return f"{kind}={device_name(claim_uid, device)}"


def device_name(claim_uid: str, device: str) -> str:
    """Return the name of a device inside the spec of its claim. No two claims share it: runtimes cache names."""
    return f"{claim_uid}-{device}"


def write_spec(
    directory: Path,
    kind: str,
    claim_uid: str,
    devices: Mapping[str, ContainerEdits],
    common_edits: ContainerEdits,
    *,
    sync: files.Sync = files.Sync.NONE,
) -> dict[str, str]:
    """Write the spec of one claim, replacing an earlier one at once; return the CDI id of each device.

    Args:
        directory: where the runtime looks, such as /var/run/cdi. It must exist.
        kind: `vendor/class` of all our specs.
        claim_uid: names the file and prefixes the device names.
        devices: edits by device name, as in the ResourceSlice. Each needs at least one edit.
        common_edits: edits of every container that gets any device of the claim.
        sync: NONE suits a directory that a reboot empties.

    Raises:
        SpecError: a name or an edit is not valid CDI; nothing was written.
        files.FileError: the directory is missing, read-only or full; nothing was written.
    """
    path = spec_path(directory, kind, claim_uid)
    named = {device_name(claim_uid, device): edits for device, edits in devices.items()}
    files.replace(
        path, render(Spec(kind=kind, devices=named, common_edits=common_edits), source=str(path)), sync=sync
    )
    return {device: qualified_name(kind, claim_uid, device) for device in devices}


def remove_spec(directory: Path, kind: str, claim_uid: str, *, sync: files.Sync = files.Sync.NONE) -> bool:
    """Remove the spec of one claim; False when there was none.

    Raises:
        SpecError: the claim uid or the kind cannot be part of a file name.
        files.FileError: the spec is still there.
    """
    return files.remove(spec_path(directory, kind, claim_uid), sync=sync)


def list_specs(directory: Path, kind: str) -> tuple[str, ...]:
    """List the claim uids whose spec stands in the directory. Files of others are not looked at.

    Raises:
        files.FileError: the directory cannot be read.
    """
    prefix, suffix = _file_prefix(kind), ".json"
    uids = (
        name[len(prefix) : -len(suffix)]
        for name in files.names(directory)
        if name.startswith(prefix) and name.endswith(suffix)
    )
    return tuple(uid for uid in uids if _CLAIM_UID.fullmatch(uid))


def sweep_specs(directory: Path, kind: str) -> int:
    """Remove the unfinished files that a crash of ours left behind; return how many.

    Raises:
        files.FileError: the directory cannot be read.
    """
    return files.sweep(directory, prefix=_file_prefix(kind))


def spec_path(directory: Path, kind: str, claim_uid: str) -> Path:
    """Return the file of a claim's spec.

    Raises:
        SpecError: the claim uid or the kind cannot be part of a file name.
    """
    if not _CLAIM_UID.fullmatch(claim_uid):
        raise SpecError(
            str(directory), "claim uid", f"{claim_uid!r} is not a uid of letters, digits and dashes"
        )
    return directory / f"{_file_prefix(kind)}{claim_uid}.json"


def read_spec(path: Path) -> Spec:
    """Read a spec file in JSON or YAML, whoever wrote it.

    Raises:
        SpecError: it is not a CDI spec, or holds a field that we would lose.
        files.FileError: it cannot be read.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise files.FileError("read", path, error) from error
    return parse(content, source=str(path))


def parse(content: bytes, *, source: str) -> Spec:
    """Parse a spec document in JSON or YAML.

    Raises:
        SpecError: it is not a CDI spec, or holds a field that we would lose.
    """
    return _Reader(source).spec(_load(content, source))


def render(spec: Spec, *, source: str) -> bytes:
    """Render a spec as JSON, with the lowest cdiVersion that has every field in use.

    Raises:
        SpecError: a runtime would refuse it.
    """
    document: dict[str, Any] = {
        "cdiVersion": minimum_version(spec),
        "kind": spec.kind,
        "devices": [{"name": name, "containerEdits": _encode(edits)} for name, edits in spec.devices.items()],
    }
    if spec.common_edits != ContainerEdits():
        document["containerEdits"] = _encode(spec.common_edits)
    # One set of checks: what we write has to pass what we demand of others.
    _Reader(source).spec(document)
    # Runtimes read JSON as YAML, which knows neither surrogate pairs nor every character as it is.
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    return _TO_ESCAPE.sub(lambda match: f"\\u{ord(match[0]):04x}", text).encode() + b"\n"


def minimum_version(spec: Spec) -> str:
    """Return the lowest CDI version that has every field and name form in use."""
    versions = {_EARLIEST}
    if any(name[:1].isdigit() for name in spec.devices):
        versions.add("0.5.0")
    if "." in spec.kind.partition("/")[2]:
        versions.add("0.6.0")
    for edits in (spec.common_edits, *spec.devices.values()):
        versions.update(_versions(edits))
    return max(versions, key=lambda version: tuple(map(int, version.split("."))))


def _file_prefix(kind: str) -> str:
    """Return what the names of our files begin with, in the form that CDI proposes for transient specs."""
    if not _KIND.fullmatch(kind):
        raise SpecError("file name", "kind", f"{kind!r} is not a CDI kind (vendor/class)")
    return kind.replace("/", "-") + "_"


def _joined(first: tuple[Any, ...], second: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(dict.fromkeys((*first, *second)))


class _Field(NamedTuple):
    """One field of a dataclass: where its value is, and what `_wire` said of it."""

    attribute: str
    name: str
    read: str
    since: str
    required: bool


_SHAPES: Final[Mapping[type, tuple[_Field, ...]]] = {
    kind: tuple(_Field(item.name, **item.metadata, required=item.default is MISSING) for item in fields(kind))
    for kind in (ContainerEdits, DeviceNode, Mount, Hook, NetDevice, IntelRdt)
}


def _used(edit: Any) -> Iterator[tuple[_Field, Any]]:
    """Yield each field in use, and its value."""
    for item in _SHAPES[type(edit)]:
        value = getattr(edit, item.attribute)
        # Not `in`: 0 is a value, and a meaningful one for a uid.
        if value is not None and value is not False and value != ():
            yield item, value


def _versions(edit: Any) -> Iterator[str]:
    for item, value in _used(edit):
        yield item.since
        for part in value if isinstance(value, tuple) else (value,):
            if type(part) in _SHAPES:
                yield from _versions(part)


def _encode(edit: Any) -> Any:
    if isinstance(edit, tuple):
        return [_encode(part) for part in edit]
    if type(edit) in _SHAPES:
        return {item.name: _encode(value) for item, value in _used(edit)}
    return edit


def _load(content: bytes, source: str) -> Any:
    # JSON is the common case and is in the standard library; the YAML parser is loaded when it is needed.
    if content.lstrip()[:1] == b"{":
        try:
            return json.loads(content)
        except ValueError as error:
            raise SpecError(source, "", f"it is neither JSON nor YAML: {error}") from error
    import yaml

    try:
        return yaml.safe_load(content)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise SpecError(source, "", f"it is neither JSON nor YAML: {error}") from error


@dataclass(frozen=True, slots=True)
class _Reader:
    """The checks of one document; every method takes a value and where it stands."""

    source: str

    def spec(self, document: Any) -> Spec:
        self.mapping(document, "", allowed=("cdiVersion", "kind", "annotations", "devices", "containerEdits"))
        self.text(document.get("cdiVersion"), "cdiVersion")
        kind = self.text(document.get("kind"), "kind")
        if not _KIND.fullmatch(kind):
            raise self.error("kind", f"{kind!r} is not a CDI kind (vendor/class)")
        devices: dict[str, ContainerEdits] = {}
        for at, device in enumerate(self.sequence(document.get("devices"), "devices")):
            name, edits = self.device(device, f"devices[{at}]")
            if name in devices:
                raise self.error(f"devices[{at}].name", f"{name!r} stands twice")
            devices[name] = edits
        if not devices:
            raise self.error("devices", "there is none; a spec needs at least one")
        common = self.edits(document.get("containerEdits") or {}, "containerEdits")
        return Spec(kind=kind, devices=devices, common_edits=common)

    def device(self, value: Any, where: str) -> tuple[str, ContainerEdits]:
        self.mapping(value, where, allowed=("name", "annotations", "containerEdits"))
        name = self.text(value.get("name"), f"{where}.name")
        if not _DEVICE_NAME.fullmatch(name):
            raise self.error(f"{where}.name", f"{name!r} is not a CDI device name")
        edits = self.edits(value.get("containerEdits"), f"{where}.containerEdits")
        if edits == ContainerEdits():
            raise self.error(f"{where}.containerEdits", f"device {name!r} has no edits; runtimes refuse that")
        return name, edits

    def edits(self, value: Any, where: str) -> ContainerEdits:
        return cast("ContainerEdits", self.record(ContainerEdits, value, where))

    def record(self, kind: type, value: Any, where: str) -> Any:
        """Read one dataclass; a field without a default has to be there."""
        shape = _SHAPES[kind]
        self.mapping(value, where, allowed=[item.name for item in shape])
        read: dict[str, Any] = {}
        for item in shape:
            found = value.get(item.name)
            if found is not None or item.required:
                read[item.attribute] = getattr(self, item.read)(found, f"{where}.{item.name}")
        return kind(**read)

    def mapping(self, value: Any, where: str, *, allowed: Sequence[str]) -> None:
        if not isinstance(value, Mapping):
            raise self.error(where, f"{value!r} is not a mapping")
        for key in value:
            if key not in allowed:
                raise self.error(
                    where, f"field {key!r} is unknown to CDI 1.1.0; known are {', '.join(allowed)}"
                )

    def sequence(self, value: Any, where: str) -> Sequence[Any]:
        if not isinstance(value, list | tuple):
            raise self.error(where, f"{value!r} is not a list")
        return value

    def text(self, value: Any, where: str) -> str:
        if not isinstance(value, str) or not value or "\0" in value:
            raise self.error(where, f"{value!r} is not a text of at least one character")
        return value

    def texts(self, value: Any, where: str) -> tuple[str, ...]:
        # An empty argument is a legal argument.
        items = self.sequence(value, where)
        return tuple(
            item if item == "" else self.text(item, f"{where}[{at}]") for at, item in enumerate(items)
        )

    def path(self, value: Any, where: str) -> str:
        text = self.text(value, where)
        if not text.startswith("/"):
            raise self.error(where, f"{text!r} is not an absolute path")
        return text

    def count(self, value: Any, where: str) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 32:
            raise self.error(where, f"{value!r} is not a number from 0 to 4294967295")
        return value

    def counts(self, value: Any, where: str) -> tuple[int, ...]:
        return tuple(
            self.count(item, f"{where}[{at}]") for at, item in enumerate(self.sequence(value, where))
        )

    def flag(self, value: Any, where: str) -> bool:
        if not isinstance(value, bool):
            raise self.error(where, f"{value!r} is neither true nor false")
        return value

    def env(self, value: Any, where: str) -> tuple[str, ...]:
        variables = self.texts(value, where)
        for at, variable in enumerate(variables):
            if variable.find("=") <= 0:
                raise self.error(f"{where}[{at}]", f"{variable!r} is not NAME=value")
        return variables

    def node_type(self, value: Any, where: str) -> str:
        if value not in ("b", "c", "u", "p"):
            raise self.error(where, f"{value!r} is none of b, c, u, p")
        return str(value)

    def permissions(self, value: Any, where: str) -> str:
        if not set(self.text(value, where)) <= set("rwm"):
            raise self.error(where, f"{value!r} has letters other than r, w and m")
        return str(value)

    def clos_id(self, value: Any, where: str) -> str:
        text = self.text(value, where)
        # A directory of resctrl, or its root.
        if text != "/" and (text in {".", ".."} or set("/\n") & set(text)):
            raise self.error(where, f"{text!r} is not the name of a class")
        return text

    def hook_name(self, value: Any, where: str) -> str:
        if value not in _HOOK_NAMES:
            raise self.error(where, f"{value!r} is none of {', '.join(sorted(_HOOK_NAMES))}")
        return str(value)

    def device_nodes(self, value: Any, where: str) -> tuple[DeviceNode, ...]:
        return self.records(DeviceNode, value, where)

    def net_devices(self, value: Any, where: str) -> tuple[NetDevice, ...]:
        found: tuple[NetDevice, ...] = self.records(NetDevice, value, where)
        for names in ([each.host_interface_name for each in found], [each.name for each in found]):
            if len(set(names)) < len(names):
                raise self.error(where, f"an interface stands twice in {names}")
        return found

    def hooks(self, value: Any, where: str) -> tuple[Hook, ...]:
        return self.records(Hook, value, where)

    def mounts(self, value: Any, where: str) -> tuple[Mount, ...]:
        return self.records(Mount, value, where)

    def intel_rdt(self, value: Any, where: str) -> IntelRdt:
        return cast("IntelRdt", self.record(IntelRdt, value, where))

    def records(self, kind: type, value: Any, where: str) -> tuple[Any, ...]:
        return tuple(
            self.record(kind, item, f"{where}[{at}]") for at, item in enumerate(self.sequence(value, where))
        )

    def error(self, where: str, problem: str) -> SpecError:
        return SpecError(self.source, where, problem)
