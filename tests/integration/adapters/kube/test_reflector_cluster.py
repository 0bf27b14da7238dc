"""Copies of a real API server's resources: what happens is told once, whatever becomes of the server meanwhile."""

import asyncio
import contextlib
import copy
import dataclasses
import itertools
import random
import shutil

import pytest

from gpupolicy.adapters import kube
from gpupolicy.adapters.kube import credentials, reflector, transport
from tests.cluster.cluster import Cluster
from tests.integration.adapters.kube import network
from tests.integration.adapters.kube.canned import running, until

pytestmark = pytest.mark.cluster

MAPS = kube.CONFIG_MAPS
LABEL = "test=reflector"


@pytest.fixture
async def client(cluster):
    async with kube.Kube.connect(str(cluster.control_plane.admin_kubeconfig)) as made:
        yield made


@pytest.fixture
def told():
    return []


@pytest.fixture
def make(client, namespace, told):
    """Makes reflectors of the labelled config maps of the namespace."""

    def reflector(kube_client=client, **options):
        options.setdefault("on_event", lambda event: told.append((str(event.change), event.key[1])))
        options.setdefault("namespace", namespace)
        options.setdefault("label_selector", LABEL)
        return kube.Reflector(kube_client, MAPS, **options)

    return reflector


@pytest.fixture
def write(client, namespace):
    """Writes a config map of the namespace with some data."""

    async def apply(name, **data):
        key, value = LABEL.split("=")
        metadata = {"name": name, "namespace": namespace, "labels": {key: value}}
        return await client.apply(MAPS, {"metadata": metadata, "data": data}, field_manager="test")

    return apply


async def test_the_copy_follows_the_server(make, write, told, client, namespace):
    await write("a", x="1")
    await write("b", x="1")
    reflector = make()
    async with running(reflector):
        await until(reflector.synced.is_set)
        assert sorted(told) == [("ADDED", "a"), ("ADDED", "b")]
        await write("a", x="2")
        await client.delete(MAPS, "b", namespace)
        await write("c", x="1")
        await until(lambda: len(told) == 5)
    assert told[2:] == [("MODIFIED", "a"), ("DELETED", "b"), ("ADDED", "c")]
    assert sorted(reflector.cache) == [(namespace, "a"), (namespace, "c")]
    assert reflector.get("a", namespace)["data"] == {"x": "2"}
    assert reflector.get("b", namespace) is None


async def test_an_object_looks_the_same_listed_and_watched(make, write, namespace):
    listing, watching = make(), make()
    async with running(watching):
        await until(watching.synced.is_set)
        await write("a", x="1")
        await until(lambda: watching.get("a", namespace) is not None)
        async with running(listing):
            await until(listing.synced.is_set)
    assert listing.get("a", namespace) == watching.get("a", namespace)
    assert listing.get("a", namespace)["kind"] == "ConfigMap"


async def test_a_change_tells_what_was_before(make, write):
    events = []
    await write("a", x="1")
    reflector = make(on_event=events.append)
    async with running(reflector):
        await until(reflector.synced.is_set)
        await write("a", x="2")
        await until(lambda: len(events) == 2)
    assert [(event.previous or {}).get("data") for event in events] == [None, {"x": "1"}]
    assert events[1].object["data"] == {"x": "2"}


async def test_a_selector_loses_an_object_whose_label_goes(make, write, told, client, namespace):
    await write("a", x="1")
    reflector = make()
    async with running(reflector):
        await until(reflector.synced.is_set)
        await client.patch(MAPS, "a", {"metadata": {"labels": None}}, namespace)
        await until(lambda: len(told) == 2)
    assert told[1] == ("DELETED", "a")


async def test_the_kubelets_view_of_claims_by_field(client, cluster):
    """Field selectors reach the server, which refuses one that it does not know."""
    bad = kube.Reflector(client, kube.RESOURCE_SLICES, field_selector="spec.driver=gpu.example.com")
    async with running(bad):
        await until(bad.synced.is_set)
    with pytest.raises(kube.ApiError, match="field label not supported"):
        await client.list(kube.RESOURCE_SLICES, field_selector="spec.nothing=x")


async def test_a_history_that_the_server_no_longer_has(cluster, make, write, told, client, namespace, caplog):  # noqa: PLR0917
    """A restarted server knows no events from before; the list after its 410 yields the differences only."""
    caplog.set_level("INFO")
    for name in ("same", "changed", "gone"):
        await write(name, x="1")
    reflector = make()
    async with running(reflector):
        await until(reflector.synced.is_set)
    told.clear()
    await write("changed", x="2")
    await client.delete(MAPS, "gone", namespace)
    await write("new", x="1")
    await asyncio.to_thread(cluster.control_plane.restart_api_server)
    reflector._version = "1"
    async with running(reflector):
        await until(lambda: len(told) == 3)
    assert sorted(told) == [("ADDED", "new"), ("DELETED", "gone"), ("MODIFIED", "changed")]
    assert "the history is lost" in caplog.text


async def test_a_watch_that_the_server_ends_is_resumed_without_a_list(make, write, told, cluster):
    """Watches end all the time by design."""
    seen = []
    path = str(cluster.control_plane.admin_kubeconfig)
    async with kube.Kube.connect(path, observer=lambda *attempt: seen.append(attempt)) as counting:
        await write("a", x="1")
        reflector = make(counting, watch_seconds=(6, 6))
        async with running(reflector):
            await until(reflector.synced.is_set)
            await until(lambda: len(seen) == 3)
            await write("b", x="1")
            await until(lambda: len(told) == 2)
    assert told == [("ADDED", "a"), ("ADDED", "b")]
    assert {code for _, code, _ in seen} == {200}


@pytest.mark.parametrize("how", ["killed", "frozen"])
async def test_a_server_that_goes_away_and_comes_back(make, write, told, cluster, namespace, how):  # noqa: PLR0917
    """Frozen, it keeps the connection open and says nothing: only silence gives it away."""
    server = cluster.control_plane.api_server
    await write("a", x="1")
    reflector = make(inactivity_seconds=3.0)
    async with running(reflector):
        await until(reflector.synced.is_set)
        await (asyncio.to_thread(server.kill) if how == "killed" else asyncio.to_thread(server.pause))
        try:
            await until(lambda: reflector._trouble is not None)
            assert reflector.get("a", namespace) is not None
            assert reflector.synced.is_set()
        finally:
            await asyncio.to_thread(server.start if how == "killed" else server.resume)
            await asyncio.to_thread(cluster.control_plane.wait_ready)
        await write("b", x="1")
        await until(lambda: len(told) == 2)
        assert reflector._trouble is None
    assert told == [("ADDED", "a"), ("ADDED", "b")]


async def test_a_reflector_that_may_not_read_waits_until_it_may(  # noqa: PLR0917
    make, write, told, cluster, client, namespace
):
    await write("a", x="1")
    async with kube.Kube.connect(str(cluster.kubeconfig("bob"))) as bob:
        reflector = make(bob)
        async with running(reflector):
            await until(lambda: reflector._trouble == "Forbidden")
            await _allow(client, namespace, {"kind": "User", "name": "bob"})
            await until(reflector.synced.is_set)
    assert told == [("ADDED", "a")]


async def _allow(client, namespace, subject):
    """Let somebody read config maps in the namespace."""
    group = "rbac.authorization.k8s.io"
    roles = f"/apis/{group}/v1/namespaces/{namespace}"
    rules = [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list", "watch"]}]
    with contextlib.suppress(kube.AlreadyExists):
        await client.raw("POST", f"{roles}/roles", body={"metadata": {"name": "reader"}, "rules": rules})
    binding = {
        "metadata": {"generateName": "reader-"},
        "roleRef": {"apiGroup": group, "kind": "Role", "name": "reader"},
        "subjects": [subject],
    }
    await client.raw("POST", f"{roles}/rolebindings", body=binding)


@pytest.fixture
async def account(client, namespace):
    """A service account that may read config maps; call it to make the account anew, which voids its tokens."""

    async def make_anew():
        with contextlib.suppress(kube.NotFound):
            await client.delete(kube.SERVICE_ACCOUNTS, "reader", namespace)
        await client.create(kube.SERVICE_ACCOUNTS, {"metadata": {"name": "reader", "namespace": namespace}})

    await make_anew()
    await _allow(client, namespace, {"kind": "ServiceAccount", "name": "reader", "namespace": namespace})
    return make_anew


@pytest.mark.parametrize("source", ["kubeconfig", "pod"])
async def test_a_token_that_was_replaced_is_read_again(  # noqa: PLR0917
    cluster, account, namespace, make, write, told, monkeypatch, source
):
    """The old token is void: the server says 401, the file holds a new one, callers notice nothing."""
    access = cluster.service_account_kubeconfig(namespace, "reader")
    host, port = cluster.control_plane.url.removeprefix("https://").split(":")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", port)
    found = {
        "kubeconfig": credentials.Kubeconfig(str(access.kubeconfig)),
        "pod": credentials.ServiceAccount(access.directory),
    }[source]
    seen = []
    sender = transport.Transport(found, observer=lambda *attempt: seen.append(attempt[1]))
    async with kube.Kube(sender) as reader:
        reflector = make(reader, watch_seconds=(6, 6))
        async with running(reflector):
            await until(reflector.synced.is_set)
            await account()
            await asyncio.to_thread(access.rotate)
            await until(lambda: 401 in seen)
            await write("a", x="1")
            await until(lambda: told == [("ADDED", "a")])
            await reader.list(MAPS, namespace)
    assert seen.count(401) >= 1


async def test_a_token_that_is_void_for_a_while_is_outlived(cluster, account, namespace, make, write, told):  # noqa: PLR0917
    """Rotation may lag behind: the reflector keeps trying, and other calls say 401."""
    access = await asyncio.to_thread(cluster.service_account_kubeconfig, namespace, "reader")
    async with kube.Kube.connect(str(access.kubeconfig)) as reader:
        reflector = make(reader, watch_seconds=(6, 6))
        async with running(reflector):
            await until(reflector.synced.is_set)
            await account()
            await until(lambda: reflector._trouble == "Unauthorized")
            with pytest.raises(kube.Unauthorized):
                await reader.list(MAPS, namespace)
            await asyncio.to_thread(access.rotate)
            await write("a", x="1")
            await until(lambda: told == [("ADDED", "a")])


@pytest.mark.parametrize("seed", range(3))
async def test_nothing_is_lost_or_told_twice_on_a_bad_network(  # noqa: PLR0917
    cluster, client, namespace, write, seed, monkeypatch
):
    """Whatever breaks when, the events are a possible history, and the copy ends up equal to the server's state."""
    monkeypatch.setattr(reflector, "_BACKOFF_CAP_SECONDS", 0.05)
    dice = random.Random(seed)
    copied, problems, attempts = {}, [], []

    def follow(event):
        known = copied.get(event.key)
        if (event.change == "ADDED") != (known is None) or event.previous != known:
            problems.append(event)
        if event.change == "DELETED":
            del copied[event.key]
        else:
            copied[event.key] = event.object

    known = await client.credentials()

    class Source:
        async def read(self):
            return dataclasses.replace(known, server=f"https://127.0.0.1:{port}")

        def stale_after_seconds(self):
            return None

    host, api_port = cluster.control_plane.url.removeprefix("https://").split(":")
    async with (
        network.unreliable(host, int(api_port), dice) as port,
        kube.Kube(
            transport.Transport(Source(), observer=lambda *attempt: attempts.append(attempt))
        ) as unlucky,
    ):
        copy_ = kube.Reflector(unlucky, MAPS, namespace, label_selector=LABEL, on_event=follow, page_size=3)
        async with running(copy_):
            for step in itertools.count():
                if step > 100 and len(attempts) > 20:
                    break
                name = f"c{dice.randrange(8)}"
                if dice.random() < 0.3:
                    with contextlib.suppress(kube.NotFound):
                        await client.delete(MAPS, name, namespace)
                else:
                    await write(name, step=str(step), filler="x" * dice.randrange(2000))
            await write("last", done="yes")
            await until(lambda: copy_.get("last", namespace) is not None)
            found = await client.list(MAPS, namespace, label_selector=LABEL)
    for item in found.items:
        del item["metadata"]["managedFields"]
    assert problems == []
    assert (
        dict(copy_.cache) == {(namespace, item["metadata"]["name"]): item for item in found.items} == copied
    )


async def test_the_cache_is_a_view_and_no_copy(make, write, namespace):
    await write("a", x="1")
    reflector = make()
    async with running(reflector):
        await until(reflector.synced.is_set)
        cache = reflector.cache
        before = copy.deepcopy(dict(cache))
        await write("b", x="1")
        await until(lambda: len(cache) == 2)
    assert {(namespace, "a"): before[namespace, "a"]}.items() <= cache.items()


async def test_a_server_that_was_restored_from_a_backup():
    """Its versions are older than ours. It accepts our watch and stays silent, so the reflector looks first."""
    told = []
    with await asyncio.to_thread(Cluster.start) as cluster:
        plane = cluster.control_plane
        data = cluster.run.data_directory / "etcd"
        backup = data.with_name("etcd.backup")
        metadata = {"namespace": "default", "labels": {"test": "reflector"}}
        async with kube.Kube.connect(str(plane.admin_kubeconfig)) as client:

            async def write(name, value):
                body = {"metadata": {**metadata, "name": name}, "data": {"x": value}}
                await client.apply(MAPS, body, field_manager="test")

            def swap(before, after):
                """Stop, exchange the data, start; the controllers are stopped too, for they would write at once."""
                plane.api_server.kill()
                plane.etcd.stop()
                shutil.copytree(before, after, dirs_exist_ok=False)
                plane.etcd.start()
                plane.api_server.start()
                plane.wait_ready()

            await write("changed", "1")
            await write("gone-later", "1")
            plane.controller_manager.stop()
            plane.scheduler.stop()
            await asyncio.to_thread(swap, data, backup)
            reflector = kube.Reflector(
                client,
                MAPS,
                label_selector=LABEL,
                on_event=lambda event: told.append((str(event.change), event.key[1])),
                inactivity_seconds=2.0,
            )
            async with running(reflector):
                await until(reflector.synced.is_set)
                await write("changed", "2")
                await client.delete(MAPS, "gone-later", "default")
                for index in range(30):
                    await write("only-later", str(index))
                await until(lambda: told.count(("MODIFIED", "only-later")) == 29)
                told.clear()
                data_after = data.with_name("etcd.after")
                await asyncio.to_thread(shutil.move, data, data_after)
                await asyncio.to_thread(swap, backup, data)
                await until(lambda: len(told) == 3)
            assert sorted(told) == [
                ("ADDED", "gone-later"),
                ("DELETED", "only-later"),
                ("MODIFIED", "changed"),
            ]
            assert reflector.get("changed", "default")["data"] == {"x": "1"}
