"""Streams and lists that go wrong in ways that a real API server cannot be told to."""

import asyncio

import pytest

from gpupolicy.adapters import kube
from gpupolicy.adapters.kube import backoff, transport
from tests.integration.adapters.kube import canned
from tests.integration.adapters.kube.canned import event, ok, running, status, stream, until


@pytest.fixture(autouse=True)
def pauses(monkeypatch):
    """The pauses after failures, as they would be; none is waited for."""
    seconds = []
    original = backoff.Backoff.next_seconds

    def next_seconds(self):
        seconds.append(original(self))
        return 0.001

    monkeypatch.setattr(backoff.Backoff, "next_seconds", next_seconds)
    return seconds


def node(name, version, uid=None, **fields):
    return {"metadata": {"name": name, "uid": uid or name, "resourceVersion": str(version)}, **fields}


def listed(version, *items, more=None):
    metadata = {"resourceVersion": str(version)} | ({"continue": more} if more else {})
    return ok({"kind": "NodeList", "metadata": metadata, "items": list(items)})


def changed(name, version, type_="MODIFIED"):
    return event(type_, name=name, uid=name, resourceVersion=str(version))


def bookmark(version):
    return event("BOOKMARK", resourceVersion=str(version))


IDLE = stream(end="silent")


def asked(server):
    """Return what each request was for: `list`, `look` (at the version), or the version that it watches from."""
    lists = {"1": "look", "500": "list"}
    return [
        lists[r.query["limit"]] if "limit" in r.query else r.query["resourceVersion"] for r in server.requests
    ]


@pytest.fixture
def told():
    return []


@pytest.fixture
def make(client, told):
    def reflector(**options):
        options.setdefault("on_event", lambda e: told.append(f"{e.change} {e.key[1]}"))
        return kube.Reflector(client, kube.NODES, **options)

    return reflector


def by_kind(server, watches, otherwise=IDLE):
    """Answer watches in the order given, and every list alike."""
    left = iter(watches)

    async def answer(request):
        chosen = next(left, otherwise) if "watch" in request.query else listed(5, node("a", 3))
        return await chosen(request)

    server.always = answer


BREAKS = {
    "ended": (stream(changed("b", 7, "ADDED"), bookmark(9)), "9"),
    "broken": (stream(changed("b", 7, "ADDED"), bookmark(9), end="broken"), "9"),
    "cut-inside-an-event": (stream(changed("b", 7, "ADDED"), changed("c", 8, "ADDED")[:20]), "7"),
    "not-json": (stream(changed("b", 7, "ADDED"), b"<html>\n"), "7"),
    "not-an-event": (stream(changed("b", 7, "ADDED"), b'{"type": "ADDED"}\n', b"[]\n"), "7"),
    "not-an-object": (stream(changed("b", 7, "ADDED"), b'{"type": "ADDED", "object": 3}\n'), "7"),
    "server-error-inside": (
        stream(
            changed("b", 7, "ADDED"), b'{"type":"ERROR","object":{"code":500,"reason":"InternalError"}}\n'
        ),
        "7",
    ),
}


@pytest.mark.parametrize("how", BREAKS)
async def test_a_watch_is_resumed_from_the_last_version(server, make, told, how):
    """After an ordinary end at once, else after a look whether the server still is the one it was."""
    broken, version = BREAKS[how]
    look = [] if how == "ended" else ["look"]
    server.script(listed(5, node("a", 3)), broken, *[listed(9, node("a", 3)) for _ in look], IDLE)
    reflector = make()
    async with running(reflector):
        await until(lambda: len(server.requests) == 3 + len(look))
    assert asked(server) == ["list", "5", *look, version]
    assert told == ["ADDED a", "ADDED b"]


async def test_a_silent_stream_is_given_up(server, make, told):
    """A connection whose other side vanished without a word looks like a quiet one; only time tells."""
    server.script(
        listed(5),
        stream(bookmark(6), end="silent"),
        listed(6),
        stream(changed("b", 7, "ADDED"), end="silent"),
    )
    reflector = make(inactivity_seconds=2.0)
    async with running(reflector):
        await until(lambda: told == ["ADDED b"])
    assert asked(server)[:4] == ["list", "5", "look", "6"]


LOST = {
    "as-an-answer": status(410, "Expired"),
    "as-an-event": stream(b'{"type":"ERROR","object":{"code":410,"reason":"Expired"}}\n'),
    "older-than-ours": stream(end="broken"),
    "no-number": stream(end="broken"),
}
LOOKS = {"older-than-ours": [listed(4)], "no-number": [listed("abc")]}


@pytest.mark.parametrize("how", LOST)
async def test_a_lost_history_is_listed_again_and_only_differences_are_told(server, make, told, how):
    server.script(
        listed(5, node("same", 1), node("changed", 2), node("gone", 3), node("reborn", 4, "first")),
        LOST[how],
        *LOOKS.get(how, []),
        listed(20, node("same", 1), node("changed", 12), node("new", 13), node("reborn", 14, "second")),
        IDLE,
    )
    reflector = make(on_rewind=lambda: told.append("REWOUND"))
    async with running(reflector):
        await until(lambda: "20" in asked(server))
    rewound = [number for number, line in enumerate(told) if line == "REWOUND"]
    assert rewound == ([4] if how in LOOKS else []), "before anything is told of the new list"
    told = [line for line in told if line != "REWOUND"]
    assert asked(server) == ["list", "5", *["look" for _ in LOOKS.get(how, [])], "list", "20"]
    assert told[:4] == ["ADDED same", "ADDED changed", "ADDED gone", "ADDED reborn"]
    assert sorted(told[4:]) == [
        "ADDED new",
        "ADDED reborn",
        "DELETED gone",
        "DELETED reborn",
        "MODIFIED changed",
    ]
    assert told.index("DELETED reborn") < told.index("ADDED reborn", 4)
    assert sorted(name for _, name in reflector.cache) == ["changed", "new", "reborn", "same"]


FAILURES = {
    "401": status(401, "Unauthorized"),
    "403": status(403, "Forbidden"),
    "404": status(404, "NotFound"),
    "429": status(429, "TooManyRequests", headers={"Retry-After": "0.01"}),
    "500": status(500, "InternalError"),
    "hang-up": canned.hang_up,
    "cut-off": canned.cut_off(),
    "not-json": canned.page("<html>", 200, "text/html"),
}


@pytest.mark.parametrize("failure", FAILURES)
async def test_a_list_that_fails_is_tried_again(server, make, told, failure):
    server.script(*[FAILURES[failure]] * 4, listed(5, node("a", 3)), IDLE)
    reflector = make()
    async with running(reflector):
        await until(reflector.synced.is_set)
    assert told == ["ADDED a"]


@pytest.mark.parametrize("failure", [name for name in FAILURES if name != "not-json"])
async def test_a_watch_that_fails_is_tried_again_from_the_same_version(server, make, failure):
    by_kind(server, [FAILURES[failure]] * 4)
    reflector = make()
    async with running(reflector):
        await until(lambda: asked(server).count("5") == 5)
    assert asked(server)[:2] == ["list", "5"]
    assert "list" not in asked(server)[1:]
    assert asked(server)[-2:] == ["look", "5"]


async def test_a_watch_that_ends_at_once_is_not_repeated_in_a_loop(server, make, pauses):
    by_kind(server, [stream()] * 5)
    reflector = make()
    async with running(reflector):
        await until(lambda: asked(server).count("5") == 6)
    assert len(pauses) == 5


async def test_pauses_grow_until_something_arrives(server, make, pauses):
    failed = status(503, "ServiceUnavailable")
    by_kind(server, [*[failed] * 6, stream(changed("b", 6, "ADDED"), end="broken"), *[failed] * 2])
    reflector = make()
    async with running(reflector):
        await until(lambda: len(pauses) == 9)
    assert pauses[:6] == sorted(pauses[:6])
    assert pauses[5] > 8.0
    assert pauses[6] <= 0.5
    assert pauses[7] <= 1.0


async def test_pages_of_a_snapshot_that_expires_are_begun_again_and_then_read_at_once(server, client):
    server.script(
        listed(5, node("a", 1), more="x"),
        status(410, "Expired"),
        listed(6, node("a", 1), more="y"),
        status(410, "Expired"),
        listed(7, node("a", 1), node("b", 2)),
    )
    found = await client.list(kube.NODES, page_size=1)
    assert [item["metadata"]["name"] for item in found.items] == ["a", "b"]
    assert found.resource_version == "7"
    assert [(r.query.get("limit"), r.query.get("continue")) for r in server.requests] == [
        ("1", None),
        ("1", "x"),
        ("1", None),
        ("1", "y"),
        (None, None),
    ]


async def test_pages_are_joined(server, client):
    server.script(
        listed(5, node("a", 1), more="x"), listed(5, node("b", 2), more="y"), listed(5, node("c", 3))
    )
    found = await client.list(kube.NODES)
    assert [(item["metadata"]["name"], item["kind"], item["apiVersion"]) for item in found.items] == [
        ("a", "Node", "v1"),
        ("b", "Node", "v1"),
        ("c", "Node", "v1"),
    ]


async def test_a_transform_trims_drops_and_silences(server, make, told):
    def transform(item):
        if item["metadata"]["name"].startswith("x"):
            return None
        return {"metadata": {"name": item["metadata"]["name"]}, "seen": item.get("spec")}

    server.script(
        listed(5, node("a", 1, spec=1), node("x", 2)),
        stream(
            changed("x", 6),
            changed("y", 7, "ADDED"),
            changed("a", 8),
            changed("a", 9),
            end="silent",
        ),
    )
    reflector = make(transform=transform)
    async with running(reflector):
        await until(lambda: len(told) == 3)
        # The second change of `a` leaves the trimmed object as it is.
        await until(lambda: reflector._version == "9")
    assert told == ["ADDED a", "ADDED y", "MODIFIED a"]
    assert dict(reflector.cache) == {
        ("", "a"): {"metadata": {"name": "a"}, "seen": None},
        ("", "y"): {"metadata": {"name": "y"}, "seen": None},
    }


async def test_an_object_that_the_transform_drops_later_is_deleted(server, make, told):
    server.script(listed(5, node("a", 1, keep=True)), stream(changed("a", 6), end="silent"))
    reflector = make(transform=lambda item: item if item.get("keep") else None)
    async with running(reflector):
        await until(lambda: len(told) == 2)
    assert told == ["ADDED a", "DELETED a"]


@pytest.mark.parametrize("keep", [True, False])
async def test_managed_fields_are_dropped_unless_wanted(server, make, keep):
    item = node("a", 1)
    item["metadata"]["managedFields"] = [{"manager": "us"}]
    server.script(listed(5, item), IDLE)
    reflector = make(keep_managed_fields=keep)
    async with running(reflector):
        await until(reflector.synced.is_set)
    assert ("managedFields" in reflector.get("a")["metadata"]) is keep


async def test_an_exception_of_the_caller_is_a_bug_and_ends_the_reflector(server, make):
    def broken(_event):
        raise RuntimeError("bug")

    server.script(listed(5, node("a", 1)), IDLE)
    with pytest.raises(RuntimeError, match="bug"):
        await make(on_event=broken).run()


async def test_the_age_of_the_last_contact(server, make):
    server.script(status(503, "ServiceUnavailable"), listed(5), IDLE)
    reflector = make()
    assert reflector.last_contact_age_seconds() == float("inf")
    async with running(reflector):
        await until(reflector.synced.is_set)
    first = reflector.last_contact_age_seconds()
    assert 0 <= first < float("inf")
    await asyncio.sleep(0.01)
    assert reflector.last_contact_age_seconds() > first


async def test_trouble_is_told_once_and_its_end_too(server, make, caplog):
    caplog.set_level("INFO")
    server.script(*[status(503, "ServiceUnavailable")] * 5, *[status(403, "Forbidden")] * 3, listed(5), IDLE)
    reflector = make()
    async with running(reflector):
        await until(reflector.synced.is_set)
    told = [record.getMessage() for record in caplog.records if record.name.endswith("reflector")]
    assert len(told) == 3
    assert "ServiceUnavailable" in told[0]
    assert "Forbidden" in told[1]
    assert "in touch again" in told[2]


async def test_a_large_event_arrives_whole(server, make, told):
    large = event("ADDED", name="large", uid="u", resourceVersion="6", annotations={"a": "x" * 3_000_000})
    server.script(
        listed(5),
        stream(
            *[large[i : i + 100_000] for i in range(0, len(large), 100_000)], changed("b", 7), end="silent"
        ),
    )
    reflector = make()
    async with running(reflector):
        await until(lambda: len(told) == 2)
    assert len(reflector.get("large")["metadata"]["annotations"]["a"]) == 3_000_000


async def test_an_endless_line_is_given_up(server, make, monkeypatch):
    monkeypatch.setattr(transport, "LINE_LIMIT_BYTES", 1000)
    server.script(listed(5), stream(*[b"x" * 600] * 3, end="silent"), listed(5), IDLE)
    reflector = make()
    async with running(reflector):
        await until(lambda: len(server.requests) == 4)
    assert asked(server) == ["list", "5", "look", "5"]


async def test_selectors_and_namespace_are_passed_on(server, client):
    server.script(listed(5), IDLE)
    reflector = kube.Reflector(
        client, kube.PODS, "x", label_selector="a=b", field_selector="spec.nodeName=n1"
    )
    async with running(reflector):
        await until(lambda: len(server.requests) == 2)
    for request in server.requests:
        assert request.path == "/api/v1/namespaces/x/pods"
        assert (request.query["labelSelector"], request.query["fieldSelector"]) == ("a=b", "spec.nodeName=n1")
    assert server.requests[1].query["allowWatchBookmarks"] == "true"
    assert 300 <= int(server.requests[1].query["timeoutSeconds"]) <= 600
