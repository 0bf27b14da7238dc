"""The client against a real API server: what is written, refused, dropped and compared."""

import contextlib
import datetime as dt
import json

import pytest

from gpupolicy.adapters import kube
from gpupolicy.adapters.kube import resources
from tests.cluster.cluster import Cluster
from tests.cluster.control_plane import ControlPlaneOptions
from tests.cluster.definitions import install_definitions
from tests.paths import ROOT

pytestmark = pytest.mark.cluster

ALL = [value for value in vars(resources).values() if isinstance(value, kube.Resource)]
DRIVER = "gpu.example.com"


@pytest.fixture
async def client(cluster):
    async with kube.Kube.connect(str(cluster.control_plane.admin_kubeconfig)) as made:
        yield made


@pytest.fixture
async def made(client):
    """Names objects to be deleted after the test: append (resource, name, namespace or None)."""
    names = []
    yield names
    for resource, name, namespace in names:
        with contextlib.suppress(kube.NotFound):
            await client.delete(resource, name, namespace)


@pytest.fixture(scope="module")
def definitions(cluster):
    install_definitions(cluster, ROOT / "crds")


def device_class(name="class-a", **spec):
    selectors = [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}]
    return {"metadata": {"name": name}, "spec": {"selectors": selectors, **spec}}


def config_map(namespace, name="c", **data):
    return {"metadata": {"name": name, "namespace": namespace}, "data": data}


def slice_of_partitions(name="partitions"):
    """A slice in which everything is behind a feature gate that 1.34 has off."""
    device = {
        "name": "gpu-0",
        "attributes": {"type": {"string": "mig"}},
        "capacity": {
            "memory": {"value": "10Gi"},
            "shares": {"value": "4", "requestPolicy": {"default": "1", "validRange": {"min": "1"}}},
        },
        "consumesCounters": [{"counterSet": "card-0", "counters": {"slices": {"value": "1"}}}],
        "taints": [{"key": "example.com/sick", "effect": "NoSchedule"}],
        "allowMultipleAllocations": True,
    }
    pool = {"name": "n1", "generation": 1, "resourceSliceCount": 1}
    return {
        "metadata": {"name": name},
        "spec": {"driver": DRIVER, "nodeName": "n1", "pool": pool, "devices": [device]},
    }


async def test_every_resource_is_what_the_server_serves(client, definitions):
    for resource in ALL:
        served = await client.raw("GET", resource.group_path)
        found = {(r["name"], r["kind"], r["namespaced"]) for r in served["resources"]}
        assert (resource.plural, resource.kind, resource.namespaced) in found
        assert await client.serves(resource)


async def test_what_is_not_served(client):
    assert not await client.serves(
        kube.Resource("resource.k8s.io", "v1", "nothings", "Nothing", namespaced=False)
    )
    assert not await client.serves(
        kube.Resource("nowhere.example.com", "v1", "nothings", "Nothing", namespaced=False)
    )


async def test_the_version(client):
    assert await client.version() == kube.ServerVersion("v1.37.2", 1, 37)


async def test_the_life_of_an_object(client, namespace):
    created = await client.create(kube.CONFIG_MAPS, config_map(namespace, a="1"), field_manager="us")
    assert created["metadata"]["managedFields"][0]["manager"] == "us"
    with pytest.raises(kube.AlreadyExists, match='"c" already exists'):
        await client.create(kube.CONFIG_MAPS, config_map(namespace))
    patched = await client.patch(kube.CONFIG_MAPS, "c", {"data": {"a": None, "b": "2"}}, namespace)
    assert patched["data"] == {"b": "2"}
    replaced = await client.replace(kube.CONFIG_MAPS, {**patched, "data": {"c": "3"}})
    assert (await client.get(kube.CONFIG_MAPS, "c", namespace)) == replaced
    with pytest.raises(kube.Conflict, match="the object has been modified") as caught:
        await client.replace(kube.CONFIG_MAPS, {**patched, "data": {}})
    assert not isinstance(caught.value, kube.AlreadyExists)
    await client.delete(kube.CONFIG_MAPS, "c", namespace)
    for call in (client.get, client.delete):
        with pytest.raises(kube.NotFound, match='"c" not found'):
            await call(kube.CONFIG_MAPS, "c", namespace)


async def test_a_patch_may_be_for_one_version_only(client, namespace):
    created = await client.create(kube.CONFIG_MAPS, config_map(namespace))
    version = {"metadata": {"resourceVersion": created["metadata"]["resourceVersion"]}}
    await client.patch(kube.CONFIG_MAPS, "c", {**version, "data": {"a": "1"}}, namespace)
    with pytest.raises(kube.Conflict):
        await client.patch(kube.CONFIG_MAPS, "c", {**version, "data": {"a": "2"}}, namespace)


@pytest.mark.parametrize("precondition", ["uid", "resource_version"])
async def test_another_object_of_the_name_is_not_deleted(client, namespace, precondition):
    first = await client.create(kube.CONFIG_MAPS, config_map(namespace))
    await client.delete(kube.CONFIG_MAPS, "c", namespace)
    second = await client.create(kube.CONFIG_MAPS, config_map(namespace))
    key = {"uid": "uid", "resource_version": "resourceVersion"}[precondition]
    with pytest.raises(kube.Conflict):
        await client.delete(kube.CONFIG_MAPS, "c", namespace, **{precondition: first["metadata"][key]})
    await client.delete(kube.CONFIG_MAPS, "c", namespace, **{precondition: second["metadata"][key]})


async def test_only_what_the_selector_names_is_deleted(client, namespace):
    for name, label in (("a", "x"), ("b", "x"), ("c", "y")):
        body = config_map(namespace, name)
        body["metadata"]["labels"] = {"kind": label}
        await client.create(kube.CONFIG_MAPS, body)
    await client.delete_collection(kube.CONFIG_MAPS, namespace, label_selector="kind=x", dry_run=True)
    assert len((await client.list(kube.CONFIG_MAPS, namespace, label_selector="kind=x")).items) == 2
    await client.delete_collection(kube.CONFIG_MAPS, namespace, label_selector="kind=x")
    left = await client.list(kube.CONFIG_MAPS, namespace, label_selector="kind")
    assert [item["metadata"]["name"] for item in left.items] == ["c"]


DRY = {
    "create": lambda client, namespace: client.create(
        kube.CONFIG_MAPS, config_map(namespace, "new"), dry_run=True
    ),
    "apply": lambda client, namespace: client.apply(
        kube.CONFIG_MAPS, config_map(namespace, "new"), field_manager="us", dry_run=True
    ),
    "patch": lambda client, namespace: client.patch(
        kube.CONFIG_MAPS, "c", {"data": {"b": "2"}}, namespace, dry_run=True
    ),
    "replace": lambda client, namespace: client.replace(
        kube.CONFIG_MAPS, config_map(namespace, b="2"), dry_run=True
    ),
    "delete": lambda client, namespace: client.delete(kube.CONFIG_MAPS, "c", namespace, dry_run=True),
}


@pytest.mark.parametrize("call", DRY)
async def test_a_dry_run_changes_nothing(client, namespace, call):
    await client.create(kube.CONFIG_MAPS, config_map(namespace, a="1"))

    async def state():
        found = await client.list(kube.CONFIG_MAPS, namespace)
        return {item["metadata"]["name"]: item["metadata"]["resourceVersion"] for item in found.items}

    before = await state()
    await DRY[call](client, namespace)
    assert await state() == before


async def test_a_list_comes_in_pages_of_one_snapshot(cluster, client, namespace):
    for index in range(7):
        await client.create(kube.CONFIG_MAPS, config_map(namespace, f"c{index}"))
    seen = []
    path = str(cluster.control_plane.admin_kubeconfig)
    async with kube.Kube.connect(path, observer=lambda *attempt: seen.append(attempt)) as counting:
        found = await counting.list(kube.CONFIG_MAPS, namespace, page_size=3)
    names = [item["metadata"]["name"] for item in found.items]
    assert [name for name in names if name != "kube-root-ca.crt"] == [f"c{index}" for index in range(7)]
    assert len(seen) == 3
    assert {(item["kind"], item["apiVersion"]) for item in found.items} == {("ConfigMap", "v1")}
    watched = client.watch(kube.CONFIG_MAPS, namespace, resource_version=found.resource_version)
    await client.create(kube.CONFIG_MAPS, config_map(namespace, "after"))
    event = await anext(watched)
    await watched.aclose()
    assert (event.type, event.object["metadata"]["name"]) == ("ADDED", "after")


async def test_unknown_fields_survive_a_read_and_a_write(client, made):
    """What this project's code does not know is kept, because nothing is decoded into models."""
    made.append((kube.DEVICE_CLASSES, "class-a", None))
    config = [{"opaque": {"driver": DRIVER, "parameters": {"anything": {"goes": [1, 2.5, None, "é"]}}}}]
    await client.create(kube.DEVICE_CLASSES, device_class(config=config))
    read = await client.get(kube.DEVICE_CLASSES, "class-a")
    read["metadata"]["labels"] = {"a": "b"}
    assert (await client.replace(kube.DEVICE_CLASSES, read))["spec"]["config"] == config


UNKNOWN = {
    "create": lambda client, body: client.create(kube.DEVICE_CLASSES, body, dry_run=True),
    "apply": lambda client, body: client.apply(kube.DEVICE_CLASSES, body, field_manager="us", dry_run=True),
}


@pytest.mark.parametrize("call", UNKNOWN)
async def test_an_unknown_field_is_refused_by_name(client, call):
    with pytest.raises(kube.Invalid, match="notAField"):
        await UNKNOWN[call](client, device_class(notAField=1))


@pytest.mark.parametrize("call", ["create", "apply", "patch"])
async def test_an_unknown_field_of_our_own_kinds_is_refused_by_name(client, definitions, made, call):
    made.append((kube.GPUNODES, "n1", None))
    good = {"metadata": {"name": "n1"}, "spec": {}}
    await client.apply(kube.GPUNODES, good, field_manager="us")
    bad = {**good, "spec": {"notAField": 1}}
    calls = {
        "create": lambda: client.create(kube.GPUNODES, bad, dry_run=True),
        "apply": lambda: client.apply(kube.GPUNODES, bad, field_manager="us"),
        "patch": lambda: client.patch(kube.GPUNODES, "n1", {"spec": {"notAField": 1}}),
    }
    with pytest.raises(kube.Invalid, match="notAField"):
        await calls[call]()


async def test_bad_content_is_refused_with_the_fields(client):
    with pytest.raises(kube.Invalid) as caught:
        await client.apply(
            kube.DEVICE_CLASSES,
            {"metadata": {"name": "bad"}, "spec": {"selectors": [{"cel": {"expression": "device.nope"}}]}},
            field_manager="us",
            dry_run=True,
        )
    assert [cause.field for cause in caught.value.causes] == ["spec.selectors[0].cel.expression"]
    assert "undefined field 'nope'" in caught.value.causes[0].message


async def test_two_managers_conflict_over_a_field_unless_forced(client, made):
    made.append((kube.DEVICE_CLASSES, "class-a", None))
    await client.apply(
        kube.DEVICE_CLASSES, device_class(extendedResourceName="example.com/a"), field_manager="us"
    )
    theirs = {"metadata": {"name": "class-a"}, "spec": {"extendedResourceName": "example.com/b"}}
    with pytest.raises(kube.Conflict) as caught:
        await client.apply(kube.DEVICE_CLASSES, theirs, field_manager="them")
    assert [(cause.reason, cause.field) for cause in caught.value.causes] == [
        ("FieldManagerConflict", ".spec.extendedResourceName")
    ]
    assert 'conflict with "us"' in caught.value.causes[0].message
    taken = await client.apply(kube.DEVICE_CLASSES, theirs, field_manager="them", force=True)
    assert taken["spec"]["extendedResourceName"] == "example.com/b"
    assert taken["spec"]["selectors"]


async def test_an_apply_removes_what_it_no_longer_names(client, made):
    made.append((kube.DEVICE_CLASSES, "class-a", None))
    body = device_class(extendedResourceName="example.com/a")
    await client.apply(kube.DEVICE_CLASSES, body, field_manager="us")
    left = await client.apply(kube.DEVICE_CLASSES, device_class(), field_manager="us")
    assert "extendedResourceName" not in left["spec"]


async def test_the_status_is_applied_apart(client, definitions, made):
    made.append((kube.GPUNODES, "n1", None))
    base = {"metadata": {"name": "n1"}}
    condition = {
        "type": "Ready",
        "status": "True",
        "reason": "Fine",
        "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    await client.apply(kube.GPUNODES, {**base, "spec": {}}, field_manager="us")
    body = {**base, "status": {"conditions": [condition]}}
    live = await client.apply(kube.GPUNODES, body, field_manager="us", subresource="status")
    assert live["status"]["conditions"] == [condition]
    assert kube.is_applied(body, live, "us", "status")
    assert not kube.is_applied(body, live, "us")
    assert kube.dropped_fields(body, live) == []
    ignored = await client.apply(
        kube.GPUNODES, {**base, "spec": {}, "status": {"conditions": []}}, field_manager="us"
    )
    assert ignored["status"]["conditions"] == [condition]


SHAPES = {
    "class": (
        kube.DEVICE_CLASSES,
        device_class(
            "shape",
            extendedResourceName="example.com/shape",
            config=[{"opaque": {"driver": DRIVER, "parameters": {"a": 1, "b": [], "c": {}}}}],
        ),
    ),
    "slice": (kube.RESOURCE_SLICES, slice_of_partitions("shape")),
    "labels-and-annotations": (
        kube.NAMESPACES,
        {"metadata": {"name": "shape-ns", "labels": {"a": "b"}, "annotations": {"example.com/a": ""}}},
    ),
    "claim": (
        kube.RESOURCE_CLAIM_TEMPLATES,
        {
            "metadata": {"name": "shape", "namespace": "default"},
            "spec": {
                "metadata": {"labels": {"a": "b"}},
                "spec": {
                    "devices": {
                        "requests": [
                            {"name": "a", "exactly": {"deviceClassName": "c"}},
                            {
                                "name": "b",
                                "exactly": {"deviceClassName": "c", "count": 2, "adminAccess": False},
                            },
                        ],
                        "constraints": [{"requests": ["a"], "matchAttribute": "example.com/numa"}],
                    }
                },
            },
        },
    ),
    "binding": (
        kube.VALIDATING_ADMISSION_POLICY_BINDINGS,
        {
            "metadata": {"name": "shape"},
            "spec": {
                "policyName": "shape",
                "validationActions": ["Deny"],
                "matchResources": {"namespaceSelector": {"matchLabels": {"a": "b"}}},
            },
        },
    ),
    "deployment": (
        kube.DEPLOYMENTS,
        {
            "metadata": {"name": "shape", "namespace": "default"},
            "spec": {
                "replicas": 0,
                "selector": {"matchLabels": {"a": "b"}},
                "template": {
                    "metadata": {"labels": {"a": "b"}},
                    "spec": {
                        "containers": [
                            {
                                "name": "c",
                                "image": "i",
                                "ports": [{"containerPort": 80}, {"containerPort": 81, "protocol": "UDP"}],
                                "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}],
                                "resources": {"limits": {"cpu": "1"}},
                                "args": ["a", "a"],
                            }
                        ],
                        "volumes": [{"name": "v", "emptyDir": {}}],
                    },
                },
            },
        },
    ),
    "quota": (
        kube.RESOURCE_QUOTAS,
        {
            "metadata": {"name": "shape", "namespace": "default"},
            "spec": {"hard": {"requests.example.com/a": "8"}},
        },
    ),
    "policy": (
        kube.VALIDATING_ADMISSION_POLICIES,
        {
            "metadata": {"name": "shape"},
            "spec": {
                "failurePolicy": "Fail",
                "matchConstraints": {
                    "resourceRules": [
                        {
                            "apiGroups": [""],
                            "apiVersions": ["v1"],
                            "operations": ["CREATE"],
                            "resources": ["pods"],
                        }
                    ]
                },
                "validations": [{"expression": "true", "message": "m"}],
                "variables": [{"name": "x", "expression": "1"}],
            },
        },
    ),
}


def takings(value):
    """Yield the object with one of its fields or elements taken out, each in turn, identities excepted."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key in {"metadata", "spec"}:
                yield from ({**value, key: less} for less in takings(inner))
            elif key not in {"name", "namespace"}:
                yield {k: v for k, v in value.items() if k != key}
                yield from ({**value, key: less} for less in takings(inner))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield value[:index] + value[index + 1 :]
            yield from ([*value[:index], less, *value[index + 1 :]] for less in takings(inner))


@pytest.mark.parametrize("shape", SHAPES)
async def test_is_applied_is_the_servers_own_verdict(client, made, shape):
    """An object as applied needs no writing; with any field less it is what a dry run says it is."""
    resource, body = SHAPES[shape]
    made.append((resource, body["metadata"]["name"], body["metadata"].get("namespace")))
    live = await client.apply(resource, body, field_manager="us")
    assert kube.dropped_fields(body, live) == []
    assert kube.is_applied(body, live, "us")
    variants = list(takings(body))
    assert variants
    for less in variants:
        try:
            then = await client.apply(resource, less, field_manager="us", force=True, dry_run=True)
        except kube.ApiError:
            # What is refused would have changed something.
            changes = True
        else:
            changes = _content(then) != _content(live)
        assert not (changes and kube.is_applied(less, live, "us")), less


def _content(live):
    """Return an object without what every write changes."""
    copy = json.loads(json.dumps(live))
    for entry in copy["metadata"].get("managedFields", ()):
        entry.pop("time", None)
    for key in ("resourceVersion", "generation"):
        copy["metadata"].pop(key, None)
    return copy


async def test_another_manager_who_takes_a_field_makes_it_unapplied(client, made):
    made.append((kube.DEVICE_CLASSES, "class-a", None))
    body = device_class(extendedResourceName="example.com/a")
    await client.apply(kube.DEVICE_CLASSES, body, field_manager="us")
    there_and_back = [{"extendedResourceName": "example.com/b"}, {"extendedResourceName": "example.com/a"}]
    for spec in there_and_back:
        live = await client.patch(kube.DEVICE_CLASSES, "class-a", {"spec": spec}, field_manager="them")
        assert not kube.is_applied(body, live, "us")
    live = await client.apply(kube.DEVICE_CLASSES, body, field_manager="us", force=True)
    assert kube.is_applied(body, live, "us")


async def test_an_event_is_posted(client, namespace, made):
    owner = await client.create(kube.CONFIG_MAPS, config_map(namespace))
    now = dt.datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=dt.UTC)
    words = {
        "reason": "Carved",
        "action": "Carve",
        "controller": "gpupolicy.dev/agent",
        "instance": "agent-1",
    }
    assert await client.create_event(owner, type_="Normal", note="é" * 2000, now=now, **words)
    (event,) = (await client.list(kube.EVENTS, namespace)).items
    assert event["regarding"]["uid"] == owner["metadata"]["uid"]
    assert event["note"] == "é" * 512
    assert (event["reason"], event["type"]) == ("Carved", "Normal")
    assert event["eventTime"] == "2026-01-02T03:04:05.000006Z"


@pytest.mark.parametrize(
    "name",
    ["class-a", "c" * 253, f"{'c' * 229}-{'c' * 20}", f"{'c' * 229}.{'c' * 20}"],
    ids=["short", "longest", "cut-at-a-dash", "cut-at-a-dot"],
)
async def test_an_event_about_a_cluster_scoped_object_is_posted(client, made, name):
    made.append((kube.DEVICE_CLASSES, name, None))
    owner = await client.create(kube.DEVICE_CLASSES, device_class(name))
    words = {"reason": "A", "action": "B", "controller": "gpupolicy.dev/agent", "instance": "i", "note": "n"}
    assert await client.create_event(owner, type_="Warning", now=dt.datetime.now(dt.UTC), **words)
    found = await client.list(
        kube.EVENTS, "default", field_selector=f"regarding.uid={owner['metadata']['uid']}"
    )
    assert len(found.items) == 1
    made.append((kube.EVENTS, found.items[0]["metadata"]["name"], "default"))


async def test_an_event_that_cannot_be_posted_is_no_failure(cluster, caplog):
    nobody = str(cluster.kubeconfig("nobody"))
    words = {"reason": "A", "action": "B", "controller": "gpupolicy.dev/agent", "instance": "i", "note": "n"}
    async with kube.Kube.connect(nobody) as client:
        owner = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}}
        assert not await client.create_event(owner, type_="Warning", now=dt.datetime.now(dt.UTC), **words)
    assert "was not posted" in caplog.text


def pod(namespace):
    return {
        "metadata": {"name": "p", "namespace": namespace, "labels": {"a": "b"}},
        # No node of other tests may take it: a pod without a node is gone as soon as it is deleted.
        "spec": {"containers": [{"name": "c", "image": "i"}], "nodeSelector": {"example.com/no": "node"}},
    }


async def test_a_pod_is_evicted(client, namespace):
    created = await client.create(kube.PODS, pod(namespace))
    with pytest.raises(kube.Conflict):
        await client.evict("p", namespace, uid="another")
    await client.evict("p", namespace, uid=created["metadata"]["uid"], dry_run=True)
    await client.get(kube.PODS, "p", namespace)
    await client.evict("p", namespace, uid=created["metadata"]["uid"])
    with pytest.raises(kube.NotFound):
        await client.evict("p", namespace)


async def test_a_disruption_budget_is_respected(client, namespace):
    budget = {
        "metadata": {"name": "b", "namespace": namespace},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"a": "b"}}},
    }
    await client.create(kube.POD_DISRUPTION_BUDGETS, budget)
    await client.create(kube.PODS, pod(namespace))
    ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    await client.patch(kube.PODS, "p", {"status": ready}, namespace, subresource="status")
    found = await client.list(kube.POD_DISRUPTION_BUDGETS, namespace)
    status = found.items[0].get("status", {})
    watch = client.watch(
        kube.POD_DISRUPTION_BUDGETS,
        namespace,
        resource_version=found.resource_version,
        inactivity_seconds=120,
    )
    while status.get("currentHealthy") != 1:
        status = (await anext(watch)).object.get("status", {})
    await watch.aclose()
    with pytest.raises(kube.TooManyRequests, match="disruption budget") as caught:
        await client.evict("p", namespace)
    assert caught.value.causes[0].reason == "DisruptionBudget"
    await client.get(kube.PODS, "p", namespace)


async def test_who_may_not_is_forbidden(cluster, namespace):
    async with kube.Kube.connect(str(cluster.kubeconfig("alice"))) as client:
        for call in (client.list(kube.NODES), client.create(kube.CONFIG_MAPS, config_map(namespace))):
            with pytest.raises(kube.Forbidden, match='User "alice" cannot'):
                await call


@pytest.fixture(scope="module")
def old_cluster():
    """The same API server, behaving as 1.34."""
    with Cluster.start(options=ControlPlaneOptions(emulated_version="1.34")) as old:
        yield old


GATED = [
    'spec.devices[0].capacity["shares"].requestPolicy',
    "spec.devices[0].allowMultipleAllocations",
    "spec.devices[0].consumesCounters",
    "spec.devices[0].taints",
]


async def test_fields_that_an_old_server_drops_are_named(client, old_cluster):
    gated_class = device_class(extendedResourceName="example.com/a")
    async with kube.Kube.connect(str(old_cluster.control_plane.admin_kubeconfig)) as old:
        assert await old.version() == kube.ServerVersion("v1.37.2", 1, 34)
        for sender, expected_class, expected_slice in (
            (
                old,
                ["spec.extendedResourceName"],
                sorted(path.replace('["shares"]', ".shares") for path in GATED),
            ),
            (client, [], []),
        ):
            for call in ("create", "apply"):
                kept_class = await _dry(sender, call, kube.DEVICE_CLASSES, gated_class)
                kept_slice = await _dry(sender, call, kube.RESOURCE_SLICES, slice_of_partitions())
                assert kube.dropped_fields(gated_class, kept_class) == expected_class
                assert sorted(kube.dropped_fields(slice_of_partitions(), kept_slice)) == expected_slice


async def _dry(sender, call, resource, body):
    if call == "create":
        return await sender.create(resource, body, dry_run=True)
    return await sender.apply(resource, body, field_manager="us", dry_run=True)
