"""Attempts, deadlines and credentials against a server that misbehaves on command."""

import asyncio
import json
import socket

import pytest

from gpupolicy.adapters import kube
from gpupolicy.adapters.kube import transport
from tests.integration.adapters.kube import canned
from tests.integration.adapters.kube.canned import Tokens, ok, status

NODE = {"kind": "Node", "apiVersion": "v1", "metadata": {"name": "n1"}}

CALLS = {
    "get": lambda client: client.get(kube.NODES, "n1"),
    "replace": lambda client: client.replace(kube.NODES, NODE),
    "patch": lambda client: client.patch(kube.NODES, "n1", {"metadata": {}}),
    "apply": lambda client: client.apply(kube.NODES, NODE, field_manager="us"),
    "delete": lambda client: client.delete(kube.NODES, "n1"),
    "create": lambda client: client.create(kube.NODES, NODE),
}
IDEMPOTENT = [name for name in CALLS if name != "create"]
FAULTS = {
    "500": status(500, "InternalError"),
    "502-of-a-proxy": canned.page("<html>", 502, "text/html"),
    "503": status(503, "ServiceUnavailable"),
    "504": status(504, "Timeout"),
    "hang-up": canned.hang_up,
    "cut-off": canned.cut_off(),
}


@pytest.mark.parametrize("call", IDEMPOTENT)
@pytest.mark.parametrize("fault", FAULTS)
async def test_an_idempotent_call_outlives_a_fault(server, client, sleeps, call, fault):
    server.script(FAULTS[fault], ok(NODE))
    await CALLS[call](client)
    # aiohttp itself sends once more when a kept connection turns out to be closed, so hang-ups may take fewer waits.
    assert len(server.requests) == 2
    assert len(sleeps.seconds) == 1 or fault == "hang-up"


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_create_is_not_sent_twice_when_it_may_have_been_done(server, client, sleeps, fault):
    server.script(FAULTS[fault], ok(NODE))
    with pytest.raises(kube.Unavailable):
        await client.create(kube.NODES, NODE)
    assert len(server.requests) == 1
    assert sleeps.seconds == []


@pytest.mark.parametrize("call", CALLS)
async def test_a_call_comes_back_when_the_server_asks_to(server, client, sleeps, call):
    server.script(status(429, "TooManyRequests", headers={"Retry-After": "7"}), ok(NODE))
    await CALLS[call](client)
    assert len(server.requests) == 2
    assert sleeps.seconds == [7.0]


@pytest.mark.parametrize("call", CALLS)
async def test_a_call_does_not_wait_beyond_its_deadline(server, client, sleeps, call):
    server.script(status(429, "TooManyRequests", headers={"Retry-After": "31"}))
    with pytest.raises(kube.TooManyRequests) as caught:
        await CALLS[call](client)
    assert caught.value.retry_after_seconds == 31.0
    assert sleeps.seconds == []


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (400, kube.ApiError),
        (403, kube.Forbidden),
        (404, kube.NotFound),
        (409, kube.Conflict),
        (410, kube.Gone),
        (422, kube.Invalid),
    ],
)
@pytest.mark.parametrize("call", CALLS)
async def test_a_verdict_is_raised_at_once(server, client, sleeps, code, kind, call):  # noqa: PLR0917
    server.script(status(code, message="because"))
    with pytest.raises(kind, match="because"):
        await CALLS[call](client)
    assert len(server.requests) == 1
    assert sleeps.seconds == []


async def test_an_unknown_field_in_an_apply_is_raised_at_once(server, client):
    """The server answers 500 to it, which would otherwise be tried again."""
    server.script(
        status(500, message="failed to create typed patch object (/x): .spec.foo: field not declared")
    )
    with pytest.raises(kube.Invalid, match=r"spec\.foo"):
        await CALLS["apply"](client)
    assert len(server.requests) == 1


async def test_attempts_are_bounded_and_waits_grow(server, client, sleeps):
    server.script(*[FAULTS["503"]] * 20)
    with pytest.raises(kube.Unavailable):
        await client.get(kube.NODES, "n1")
    assert len(server.requests) == transport.ATTEMPTS
    assert sleeps.seconds == sorted(sleeps.seconds)
    assert len(set(sleeps.seconds)) == transport.ATTEMPTS - 1


async def test_the_callers_deadline_ends_the_attempts(server):
    server.script(*[FAULTS["503"]] * 1000)
    async with kube.Kube(transport.Transport(Tokens(server.url))) as client:
        with pytest.raises(kube.Unavailable):
            # The pauses before a fifth attempt take a second and a half at least.
            await client.get(kube.NODES, "n1", timeout_seconds=1.4)
    assert 1 < len(server.requests) < transport.ATTEMPTS


async def test_a_silent_server_is_a_timeout(server, client, sleeps):
    server.script(canned.never)
    with pytest.raises(kube.Unavailable) as caught:
        await client.get(kube.NODES, "n1", timeout_seconds=0.2)
    assert caught.value.reason == "Timeout"
    assert caught.value.status == 0
    assert sleeps.seconds == []


async def test_one_silent_attempt_leaves_time_for_another(server, client, monkeypatch):
    monkeypatch.setattr(transport, "ATTEMPT_SECONDS", 2.0)
    server.script(canned.never, ok(NODE))
    assert await client.get(kube.NODES, "n1") == NODE


@pytest.mark.parametrize("call", CALLS)
async def test_no_connection_is_tried_again_also_for_a_create(sleeps, call):
    seen = []
    # Ours, so that nobody else begins to listen there.
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        server = f"http://127.0.0.1:{silent.getsockname()[1]}"
        sender = transport.Transport(
            Tokens(server), sleep=sleeps, observer=lambda *attempt: seen.append(attempt)
        )
        async with kube.Kube(sender) as client:
            with pytest.raises(kube.Unavailable) as caught:
                await CALLS[call](client)
    assert caught.value.reason == "NoConnection"
    assert len(seen) == transport.ATTEMPTS
    assert {code for _, code, _ in seen} == {0}


@pytest.mark.parametrize("call", CALLS)
async def test_a_refused_token_is_read_again_once(server, call):
    server.script(status(401, "Unauthorized"), ok(NODE))
    source = Tokens(server.url, ["old", "new"])
    async with kube.Kube(transport.Transport(source)) as client:
        await CALLS[call](client)
    assert [request.headers["Authorization"] for request in server.requests] == ["Bearer old", "Bearer new"]
    assert source.reads == 2


async def test_a_token_that_stays_refused_is_an_error(server, sleeps):
    server.script(*[status(401, "Unauthorized")] * 20)
    source = Tokens(server.url)
    async with kube.Kube(transport.Transport(source, sleep=sleeps)) as client:
        with pytest.raises(kube.Unauthorized):
            await client.get(kube.NODES, "n1")
    assert len(server.requests) == 2
    assert sleeps.seconds == []


async def test_a_refusal_stays_the_error_when_the_credentials_cannot_be_read(server):
    class Broken(Tokens):
        async def read(self):
            if self.reads:
                raise kube.ConfigurationError("no file")
            return await super().read()

    server.script(status(401, "Unauthorized", message="no"))
    async with kube.Kube(transport.Transport(Broken(server.url))) as client:
        with pytest.raises(kube.Unauthorized, match="no"):
            await client.get(kube.NODES, "n1")


@pytest.mark.parametrize("when", ["first", "after-a-refusal"])
async def test_slow_credentials_do_not_outlast_the_callers_deadline(server, when):
    """An exec plugin that waits for a person."""

    class Slow(Tokens):
        async def read(self):
            if self.reads or when == "first":
                await asyncio.Event().wait()
            return await super().read()

    server.script(status(401, "Unauthorized"))
    async with asyncio.timeout(120):
        client = kube.Kube(transport.Transport(Slow(server.url)))
        with pytest.raises(kube.Unavailable) as caught:
            await client.get(kube.NODES, "n1", timeout_seconds=0.2)
        await client.close()
    assert caught.value.reason == "Timeout"


@pytest.mark.parametrize(("excepted", "requests"), [("", 1), ("127.0.0.1,api.example.com", 0)])
async def test_the_proxy_of_the_environment_is_used(server, sleeps, monkeypatch, excepted, requests):
    monkeypatch.setenv("http_proxy", server.url)
    monkeypatch.setenv("no_proxy", excepted)
    server.script(ok(NODE))
    async with kube.Kube(transport.Transport(Tokens("http://api.example.com:1"), sleep=sleeps)) as client:
        if requests:
            assert await client.get(kube.NODES, "n1") == NODE
            assert server.requests[0].host.startswith("api.example.com")
        else:
            with pytest.raises(kube.Unavailable):
                await client.get(kube.NODES, "n1", timeout_seconds=5)
    assert len(server.requests) == requests


async def test_a_token_that_aged_is_read_again_without_a_refusal(server):
    server.script(ok(NODE), ok(NODE))
    source = Tokens(server.url, ["one", "two", "three"], stale=0.0)
    async with kube.Kube(transport.Transport(source)) as client:
        await client.get(kube.NODES, "n1")
        await client.get(kube.NODES, "n1")
    assert [request.headers["Authorization"] for request in server.requests] == ["Bearer two", "Bearer three"]


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        pytest.param('{"kind": "Node"', "application/json", id="cut-json"),
        pytest.param("[1]", "application/json", id="a-list"),
        pytest.param("<html>login</html>", "text/html", id="a-login-page"),
        pytest.param("", "application/json", id="nothing"),
    ],
)
async def test_an_answer_that_is_no_object_is_unavailable(server, client, body, content_type):
    server.script(*[canned.page(body, 200, content_type)] * 20)
    with pytest.raises(kube.Unavailable) as caught:
        await client.get(kube.NODES, "n1")
    assert caught.value.reason == "InvalidAnswer"


@pytest.mark.parametrize("call", CALLS)
async def test_no_redirect_is_followed(server, client, call):
    """A redirect would carry the token to wherever it points, and is no success either."""
    server.always = status(302, headers={"Location": f"{server.url}/login"})
    with pytest.raises(kube.Unavailable):
        await CALLS[call](client)
    assert {request.path for request in server.requests} & {"/login"} == set()


async def test_secrets_are_neither_in_errors_nor_in_logs(server, caplog):
    caplog.set_level("DEBUG")
    server.script(FAULTS["503"], FAULTS["hang-up"], status(401, "Unauthorized"), status(401, "Unauthorized"))
    async with kube.Kube(transport.Transport(Tokens(server.url, ["s3cr3t"]))) as client:
        with pytest.raises(kube.Unauthorized) as caught:
            await client.patch(kube.NODES, "n1", {"metadata": {"annotations": {"password": "hunter2"}}})
    assert "again in" in caplog.text
    for secret in ("s3cr3t", "hunter2"):
        assert secret not in caplog.text
        assert secret not in str(caught.value)


async def test_a_closed_client_refuses(server, client, sleeps):
    await client.close()
    with pytest.raises(kube.Unavailable) as caught:
        await client.get(kube.NODES, "n1")
    assert caught.value.reason == "Closed"
    assert server.requests == []
    assert sleeps.seconds == []


async def test_cancelling_a_call_ends_it(server, client):
    server.script(canned.never)
    task = asyncio.create_task(client.get(kube.NODES, "n1"))
    await canned.until(lambda: len(server.requests) == 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_every_attempt_is_observed(server, sleeps):
    seen = []
    server.script(FAULTS["503"], FAULTS["cut-off"], ok(NODE))
    sender = transport.Transport(
        Tokens(server.url),
        sleep=sleeps,
        observer=lambda method, code, seconds: seen.append((method, code, seconds >= 0)),
    )
    async with kube.Kube(sender) as client:
        await client.get(kube.NODES, "n1")
    assert seen == [("GET", 503, True), ("GET", 0, True), ("GET", 200, True)]


async def test_what_is_sent(server, client):
    server.script(*[ok(NODE)] * 8)
    await client.apply(
        kube.NODES, {"metadata": {"name": "n1"}}, field_manager="us", force=True, subresource="status"
    )
    await client.patch(kube.NODES, "n1", {"a": None}, dry_run=True)
    await client.create(
        kube.PODS, {"metadata": {"name": "p", "namespace": "x"}}, field_manager="us", strict=False
    )
    await client.delete(
        kube.PODS,
        "p",
        "x",
        uid="u",
        resource_version="5",
        propagation="Foreground",
        grace_seconds=0,
        dry_run=True,
    )
    await client.delete_collection(kube.NODES, label_selector="a=b,c in (d,e)")
    await client.evict("p", "x", uid="u", dry_run=True)
    sent = [
        (r.method, r.path, dict(r.query), r.headers["Content-Type"], json.loads(body))
        for r, body in zip(server.requests, server.bodies, strict=True)
    ]
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "x"}}
    options = {"apiVersion": "v1", "kind": "DeleteOptions"}
    assert sent == [
        (
            "PATCH",
            "/api/v1/nodes/n1/status",
            {"fieldManager": "us", "force": "true", "fieldValidation": "Strict"},
            "application/apply-patch+yaml",
            node,
        ),
        (
            "PATCH",
            "/api/v1/nodes/n1",
            {"fieldValidation": "Strict", "dryRun": "All"},
            "application/merge-patch+json",
            {"a": None},
        ),
        (
            "POST",
            "/api/v1/namespaces/x/pods",
            {"fieldManager": "us", "fieldValidation": "Warn"},
            "application/json",
            pod,
        ),
        (
            "DELETE",
            "/api/v1/namespaces/x/pods/p",
            {},
            "application/json",
            {
                **options,
                "propagationPolicy": "Foreground",
                "dryRun": ["All"],
                "gracePeriodSeconds": 0,
                "preconditions": {"uid": "u", "resourceVersion": "5"},
            },
        ),
        ("DELETE", "/api/v1/nodes", {"labelSelector": "a=b,c in (d,e)"}, "application/json", options),
        (
            "POST",
            "/api/v1/namespaces/x/pods/p/eviction",
            {},
            "application/json",
            {
                "apiVersion": "policy/v1",
                "kind": "Eviction",
                "metadata": {"name": "p", "namespace": "x"},
                "deleteOptions": {**options, "dryRun": ["All"], "preconditions": {"uid": "u"}},
            },
        ),
    ]


async def test_an_eviction_that_a_budget_forbids_is_raised_at_once(server, client, sleeps):
    server.script(status(429, "TooManyRequests", headers={"Retry-After": "1"}, message="budget"))
    with pytest.raises(kube.TooManyRequests, match="budget"):
        await client.evict("p", "x")
    assert sleeps.seconds == []


async def test_everything_of_a_kind_is_never_deleted(server, client):
    with pytest.raises(ValueError, match="needs a label or a field selector"):
        await client.delete_collection(kube.NODES)
    assert server.requests == []


@pytest.mark.parametrize(
    "body", [{}, {"metadata": {}}, {"metadata": {"name": ""}}, {"metadata": {"name": 3}}]
)
async def test_an_object_without_a_name_cannot_be_written(server, client, body):
    for call in (client.replace(kube.NODES, body), client.apply(kube.NODES, body, field_manager="us")):
        with pytest.raises(ValueError, match=r"without metadata\.name"):
            await call
    assert server.requests == []
