"""CDI spec files: what is written passes the format, what is read loses nothing, and the directory stays tidy."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gpupolicy.adapters import cdi, files

HERE = Path(__file__).parent
SCHEMA = jsonschema.Draft202012Validator(json.loads((HERE / "cdi_schema.json").read_text()))
KIND = "gpu.example.com/claim"
UID = "6ba7b810-9dad-11d1-80b4-00c04fd430c8"
NODE = cdi.DeviceNode(path="/dev/nvidia0", permissions="rw")
EDITS = cdi.ContainerEdits(device_nodes=(NODE,))


def document(**over: Any) -> dict[str, Any]:
    """Return the smallest valid spec document, with fields replaced."""
    return {
        "cdiVersion": "0.5.0",
        "kind": KIND,
        "devices": [{"name": "gpu0", "containerEdits": {"env": ["A=b"]}}],
        **over,
    }


def one_device(edits: Any) -> dict[str, Any]:
    return document(devices=[{"name": "gpu0", "containerEdits": edits}])


def parse(spec: Any) -> cdi.Spec:
    return cdi.parse(json.dumps(spec).encode(), source="test.json")


# A name is what passes the pattern; texts are anything that a file can hold.
names = st.from_regex(r"[A-Za-z0-9]([A-Za-z0-9_.:-]{0,10}[A-Za-z0-9])?", fullmatch=True)
texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=8)
paths = texts.map(lambda text: f"/{text}")
numbers = st.integers(0, 2**32 - 1)
envs = st.lists(st.tuples(texts.filter(lambda t: "=" not in t), texts).map("=".join), max_size=2).map(tuple)


def maybe(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | values


def several(shape: type, **values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(st.builds(shape, **values), max_size=2).map(tuple)


all_edits = st.builds(
    cdi.ContainerEdits,
    env=envs,
    device_nodes=several(
        cdi.DeviceNode,
        path=paths,
        host_path=maybe(paths),
        type=maybe(st.sampled_from("bcup")),
        major=maybe(numbers),
        minor=maybe(numbers),
        file_mode=maybe(numbers),
        permissions=maybe(st.sampled_from(["r", "rw", "rwm"])),
        uid=maybe(numbers),
        gid=maybe(numbers),
    ),
    net_devices=st.lists(
        st.builds(cdi.NetDevice, host_interface_name=texts, name=texts),
        max_size=2,
        unique_by=(lambda each: each.host_interface_name, lambda each: each.name),
    ).map(tuple),
    hooks=several(
        cdi.Hook,
        hook_name=st.sampled_from(["createContainer", "poststop"]),
        path=paths,
        args=st.lists(texts | st.just(""), max_size=2).map(tuple),
        env=envs,
        timeout_seconds=maybe(numbers),
    ),
    mounts=several(
        cdi.Mount,
        host_path=texts,
        container_path=paths,
        options=st.lists(texts, max_size=2).map(tuple),
        type=maybe(texts),
    ),
    intel_rdt=maybe(
        st.builds(
            cdi.IntelRdt,
            clos_id=st.sampled_from(["/", "gold", "a b"]),
            l3_cache_schema=maybe(texts),
            mem_bw_schema=maybe(texts),
            schemata=st.lists(texts, max_size=2).map(tuple),
            enable_monitoring=st.booleans(),
        )
    ),
    additional_gids=st.lists(numbers, max_size=2).map(tuple),
)
specs = st.builds(
    cdi.Spec,
    kind=st.just(KIND) | st.just("vendor.com/class.with.dots"),
    devices=st.dictionaries(
        names, all_edits.filter(lambda e: e != cdi.ContainerEdits()), min_size=1, max_size=3
    ),
    common_edits=all_edits,
)


@given(specs)
def test_what_is_rendered_passes_the_schema_and_reads_back_as_it_was(spec: cdi.Spec) -> None:
    """Nothing is lost on the way to the runtime, in JSON or as YAML of the same document."""
    content = cdi.render(spec, source="test")
    SCHEMA.validate(json.loads(content))
    assert cdi.parse(content, source="json") == spec
    assert cdi.parse(yaml.safe_dump(json.loads(content)).encode(), source="yaml") == spec


VERSIONS = [
    pytest.param(EDITS, "0.3.0", id="plain node"),
    pytest.param(
        cdi.ContainerEdits(mounts=(cdi.Mount(host_path="/a", container_path="/b"),)), "0.3.0", id="bind mount"
    ),
    pytest.param(
        cdi.ContainerEdits(mounts=(cdi.Mount(host_path="t", container_path="/b", type="tmpfs"),)),
        "0.4.0",
        id="mount type",
    ),
    pytest.param(cdi.ContainerEdits(device_nodes=(replace(NODE, host_path="/h"),)), "0.5.0", id="hostPath"),
    pytest.param(cdi.ContainerEdits(additional_gids=(44,)), "0.7.0", id="gids"),
    pytest.param(cdi.ContainerEdits(intel_rdt=cdi.IntelRdt(clos_id="x")), "0.7.0", id="rdt"),
    pytest.param(
        cdi.ContainerEdits(intel_rdt=cdi.IntelRdt(enable_monitoring=True)), "1.1.0", id="rdt monitoring"
    ),
    pytest.param(
        cdi.ContainerEdits(net_devices=(cdi.NetDevice(host_interface_name="e", name="f"),)),
        "1.1.0",
        id="net device",
    ),
]


@pytest.mark.parametrize("where", ["device", "common"])
@pytest.mark.parametrize(("edits", "version"), VERSIONS)
def test_the_version_is_the_lowest_that_has_every_field(
    edits: cdi.ContainerEdits, version: str, where: str
) -> None:
    """An older runtime is not shut out by a number that no field needs."""
    device, common = (edits, cdi.ContainerEdits()) if where == "device" else (EDITS, edits)
    assert cdi.minimum_version(cdi.Spec(kind=KIND, devices={"gpu": device}, common_edits=common)) == version


@pytest.mark.parametrize(
    ("kind", "name", "version"),
    [
        (KIND, "gpu", "0.3.0"),
        (KIND, "0gpu", "0.5.0"),
        ("a.b/c.d", "gpu", "0.6.0"),
        ("a.b/c.d", "0gpu", "0.6.0"),
    ],
)
def test_names_raise_the_version_too(kind: str, name: str, version: str) -> None:
    """A digit in front came with 0.5.0 and a dot in the class with 0.6.0; uids often begin with a digit."""
    assert cdi.minimum_version(cdi.Spec(kind=kind, devices={name: EDITS})) == version


def test_written_specs_are_listed_replaced_and_removed(tmp_path: Path) -> None:
    """The life of one claim's file, next to files of others that stay untouched."""
    others = {
        "nvidia.yaml": "x",
        "gpu.example.com-claim_.json": "no uid",
        "gpu.example.com-claim_..json": "not a uid",
        "gpu.example.com-other_123.json": "other class",
    }
    for name, content in others.items():
        (tmp_path / name).write_text(content)
    ids = cdi.write_spec(tmp_path, KIND, UID, {"a": EDITS, "b": EDITS}, cdi.ContainerEdits(env=("X=1",)))
    assert ids == {"a": f"{KIND}={UID}-a", "b": f"{KIND}={UID}-b"}
    assert cdi.list_specs(tmp_path, KIND) == (UID,)
    written = cdi.read_spec(cdi.spec_path(tmp_path, KIND, UID))
    assert written == cdi.Spec(
        kind=KIND,
        devices={f"{UID}-a": EDITS, f"{UID}-b": EDITS},
        common_edits=cdi.ContainerEdits(env=("X=1",)),
    )
    cdi.write_spec(tmp_path, KIND, UID, {"c": EDITS}, cdi.ContainerEdits())
    assert list(cdi.read_spec(cdi.spec_path(tmp_path, KIND, UID)).devices) == [f"{UID}-c"]
    assert cdi.remove_spec(tmp_path, KIND, UID)
    assert not cdi.remove_spec(tmp_path, KIND, UID)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == others


def test_leftovers_of_ours_are_swept_when_old(tmp_path: Path) -> None:
    """A crash between write and rename leaves a hidden file; that of another program is not ours to judge."""
    ours = tmp_path / f".gpu.example.com-claim_{UID}.json.0a0b.tmp"
    young = tmp_path / f".gpu.example.com-claim_{UID}.json.0c0d.tmp"
    foreign = tmp_path / ".spec.1234.tmp"
    for path in (ours, young, foreign):
        path.write_text("half")
    for path in (ours, foreign):
        os.utime(path, (0, 0))
    assert cdi.sweep_specs(tmp_path, KIND) == 1
    assert sorted(tmp_path.iterdir()) == sorted([young, foreign])


@pytest.mark.parametrize("uid", ["", "../x", "a/b", ".hidden", "a b", "a" * 64, "-a", "a\n"])
def test_a_claim_uid_cannot_leave_the_directory(tmp_path: Path, uid: str) -> None:
    """The uid comes over a socket and becomes a file name."""
    with pytest.raises(cdi.SpecError, match="claim uid"):
        cdi.write_spec(tmp_path, KIND, uid, {"a": EDITS}, cdi.ContainerEdits())
    with pytest.raises(cdi.SpecError, match="claim uid"):
        cdi.remove_spec(tmp_path, KIND, uid)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["", "noclass", "a/", "/b", "1a/b", "a/b/c", "a./b", "a/b-", "a/b\n"])
def test_a_bad_kind_is_refused(tmp_path: Path, kind: str) -> None:
    with pytest.raises(cdi.SpecError, match="kind"):
        cdi.list_specs(tmp_path, kind)
    with pytest.raises(cdi.SpecError, match="kind"):
        cdi.render(cdi.Spec(kind=kind, devices={"a": EDITS}), source="test")


BAD_EDITS = [
    pytest.param({"env": ["novalue"]}, "env[0]", id="env without ="),
    pytest.param({"env": ["=x"]}, "env[0]", id="env without name"),
    pytest.param({"env": ["A=\0"]}, "env[0]", id="env with NUL"),
    pytest.param({"env": "A=b"}, "env", id="env not a list"),
    pytest.param({"env": [1]}, "env[0]", id="env not text"),
    pytest.param({"deviceNodes": [{}]}, "deviceNodes[0].path", id="node without path"),
    pytest.param({"deviceNodes": [{"path": "dev/x"}]}, "deviceNodes[0].path", id="relative node"),
    pytest.param({"deviceNodes": [{"path": "/x", "type": "d"}]}, "deviceNodes[0].type", id="node type"),
    pytest.param(
        {"deviceNodes": [{"path": "/x", "permissions": "rx"}]}, "deviceNodes[0].permissions", id="permissions"
    ),
    pytest.param({"deviceNodes": [{"path": "/x", "major": -1}]}, "deviceNodes[0].major", id="negative"),
    pytest.param(
        {"deviceNodes": [{"path": "/x", "minor": True}]}, "deviceNodes[0].minor", id="bool for number"
    ),
    pytest.param({"deviceNodes": [{"path": "/x", "uid": 1 << 32}]}, "deviceNodes[0].uid", id="too large"),
    pytest.param({"deviceNodes": ["/x"]}, "deviceNodes[0]", id="node not a mapping"),
    pytest.param({"mounts": [{"hostPath": "/x"}]}, "mounts[0].containerPath", id="mount without target"),
    pytest.param(
        {"mounts": [{"hostPath": "", "containerPath": "/x"}]}, "mounts[0].hostPath", id="mount empty source"
    ),
    pytest.param({"hooks": [{"hookName": "prestop", "path": "/x"}]}, "hooks[0].hookName", id="hook name"),
    pytest.param({"hooks": [{"hookName": "prestart"}]}, "hooks[0].path", id="hook without path"),
    pytest.param(
        {"hooks": [{"hookName": "prestart", "path": "/x", "env": ["A"]}]}, "hooks[0].env[0]", id="hook env"
    ),
    pytest.param({"netDevices": [{"name": "x"}]}, "netDevices[0].hostInterfaceName", id="net device"),
    pytest.param(
        {"netDevices": [{"hostInterfaceName": "e", "name": "a"}, {"hostInterfaceName": "e", "name": "b"}]},
        "netDevices",
        id="interface twice",
    ),
    pytest.param({"intelRdt": {"closID": "a/b"}}, "intelRdt.closID", id="class of service"),
    pytest.param({"intelRdt": {"enableMonitoring": 1}}, "intelRdt.enableMonitoring", id="flag"),
    pytest.param({"additionalGids": ["44"]}, "additionalGids[0]", id="gid text"),
    pytest.param({"env": ["A=b"], "cpuset": "0"}, "containerEdits", id="unknown field"),
    pytest.param(
        {"deviceNodes": [{"path": "/x", "cgroup": "y"}]}, "deviceNodes[0]", id="unknown nested field"
    ),
    pytest.param({}, "containerEdits", id="no edits"),
    pytest.param(None, "containerEdits", id="null edits"),
]


@pytest.mark.parametrize(("edits", "where"), BAD_EDITS)
def test_a_bad_edit_is_named_by_its_place(edits: Any, where: str) -> None:
    """Whoever wrote the file finds the line."""
    with pytest.raises(cdi.SpecError) as caught:
        parse(one_device(edits))
    assert caught.value.field.endswith(where)
    assert caught.value.field.startswith("devices[0]")
    assert str(caught.value).startswith(f"CDI spec test.json: {caught.value.field}: ")


@pytest.mark.parametrize(
    ("spec", "where"),
    [
        pytest.param([], "", id="list"),
        pytest.param(document(kind="x"), "kind", id="kind"),
        pytest.param(document(cdiVersion=None), "cdiVersion", id="no version"),
        pytest.param(document(devices=[]), "devices", id="no devices"),
        pytest.param(document(devices=None), "devices", id="null devices"),
        pytest.param(document(extra=1), "", id="unknown field"),
        pytest.param(document(containerEdits={"env": [""]}), "containerEdits.env[0]", id="common edits"),
        pytest.param(document(devices=document()["devices"] * 2), "devices[1].name", id="twice"),
        pytest.param(
            document(devices=[{"name": "-", "containerEdits": {"env": ["A=b"]}}]),
            "devices[0].name",
            id="device name",
        ),
    ],
)
def test_a_bad_document_is_named_by_its_place(spec: Any, where: str) -> None:
    with pytest.raises(cdi.SpecError) as caught:
        parse(spec)
    assert caught.value.field == where


@pytest.mark.parametrize(
    "content", [b"", b"{", b"\xff\xfe{}", b"a: [", b"- 1", b"just text", b"!!python/name:os.system x"]
)
def test_anything_that_is_no_document_is_a_spec_error(content: bytes) -> None:
    """A half-written or hostile file is reported, never raised as something else, never executed."""
    with pytest.raises(cdi.SpecError):
        cdi.parse(content, source="x")


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda x: st.lists(x) | st.dictionaries(st.text(), x),
    )
)
def test_no_document_raises_anything_else(value: Any) -> None:
    """Whatever JSON stands in the file."""
    for spec in (
        value,
        document(devices=value),
        one_device(value),
        one_device({"hooks": value, "mounts": [value]}),
    ):
        with pytest.raises(cdi.SpecError):
            parse(spec)


def test_what_cannot_be_written_is_refused_before_the_file_exists(tmp_path: Path) -> None:
    with pytest.raises(cdi.SpecError, match="no edits"):
        cdi.write_spec(tmp_path, KIND, UID, {"a": cdi.ContainerEdits()}, cdi.ContainerEdits())
    with pytest.raises(cdi.SpecError, match="devices"):
        cdi.write_spec(tmp_path, KIND, UID, {}, cdi.ContainerEdits())
    with pytest.raises(cdi.SpecError, match="not a CDI device name"):
        cdi.write_spec(tmp_path, KIND, UID, {"a/b": EDITS}, cdi.ContainerEdits())
    assert list(tmp_path.iterdir()) == []


def test_a_missing_directory_says_what_to_do(tmp_path: Path) -> None:
    missing = tmp_path / "cdi"
    for call in (
        lambda: cdi.write_spec(missing, KIND, UID, {"a": EDITS}, cdi.ContainerEdits()),
        lambda: cdi.list_specs(missing, KIND),
        lambda: cdi.read_spec(missing / "nvidia.yaml"),
    ):
        with pytest.raises(files.FileError) as caught:
            call()
        assert caught.value.fault is files.Fault.MISSING
        assert "create the directory" in caught.value.remedy


def test_edits_add_up_without_repeating_themselves() -> None:
    """A claim of two devices names the shared nodes once, in the order of their first mention."""
    control = cdi.DeviceNode(path="/dev/nvidiactl")
    hook = cdi.Hook(hook_name="createContainer", path="/usr/bin/nvidia-cdi-hook", args=("x",))
    first = cdi.ContainerEdits(
        env=("A=1",), device_nodes=(control, NODE), hooks=(hook,), additional_gids=(1,)
    )
    second = cdi.ContainerEdits(
        env=("A=1", "B=2"), device_nodes=(control,), hooks=(hook,), intel_rdt=cdi.IntelRdt(clos_id="c")
    )
    assert first + second == cdi.ContainerEdits(
        env=("A=1", "B=2"),
        device_nodes=(control, NODE),
        hooks=(hook,),
        additional_gids=(1,),
        intel_rdt=cdi.IntelRdt(clos_id="c"),
    )
    assert (second + first).intel_rdt == second.intel_rdt


NVIDIA_CTK = """
---
cdiVersion: 0.5.0
kind: nvidia.com/gpu
containerEdits:
  deviceNodes:
  - path: /dev/nvidia-uvm
  env:
  - NVIDIA_VISIBLE_DEVICES=void
  hooks:
  - args: [nvidia-cdi-hook, update-ldcache, --folder, /usr/lib/x86_64-linux-gnu]
    env: [NVIDIA_CTK_DEBUG=false]
    hookName: createContainer
    path: /usr/bin/nvidia-cdi-hook
  mounts:
  - containerPath: /usr/bin/nvidia-smi
    hostPath: /run/driver/usr/bin/nvidia-smi
    options: [ro, nosuid, nodev, rbind, rprivate]
devices:
- name: "0"
  containerEdits:
    deviceNodes:
    - {path: /dev/nvidia0, hostPath: /run/driver/dev/nvidia0, major: 195, fileMode: 438, permissions: rw, type: c}
- name: MIG-4c2fe9a1
  containerEdits:
    deviceNodes:
    - path: /dev/nvidia-caps/nvidia-cap30
"""


def test_a_generated_spec_of_the_container_toolkit_is_read() -> None:
    """The shape that `nvidia-ctk cdi generate` writes, by device name."""
    spec = cdi.parse(NVIDIA_CTK.encode(), source="nvidia.yaml")
    assert spec.kind == "nvidia.com/gpu"
    assert list(spec.devices) == ["0", "MIG-4c2fe9a1"]
    (node,) = spec.devices["0"].device_nodes
    assert (node.host_path, node.major, node.file_mode) == ("/run/driver/dev/nvidia0", 195, 0o666)
    assert spec.common_edits.hooks[0].args[1] == "update-ldcache"
    assert spec.common_edits.mounts[0].options[0] == "ro"
    ours = cdi.Spec(kind=KIND, devices={"x": spec.devices["0"]}, common_edits=spec.common_edits)
    assert cdi.parse(cdi.render(ours, source="x"), source="x") == ours
