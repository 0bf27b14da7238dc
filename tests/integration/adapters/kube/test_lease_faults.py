"""A leader whose server fails for longer than one call is patient, but goes on leading while its time lasts."""

import asyncio
import json

import pytest

from gpupolicy.adapters import kube
from tests.integration.adapters.kube import canned
from tests.integration.adapters.kube.canned import ok, status, until

FAULTS = {
    "401": status(401, "Unauthorized"),
    "403": status(403, "Forbidden"),
    "429": status(429, "TooManyRequests", headers={"Retry-After": "600"}),
    "500": status(500, "InternalError"),
    "503": status(503, "ServiceUnavailable"),
    "hang-up": canned.hang_up,
    "not-json": canned.page("<html>", 200, "text/html"),
}


@pytest.fixture
def renewals(server):
    """Answers as a server with one Lease whose writes fail as often as told."""
    left: list[canned.Answer] = []
    written: list[str] = []

    async def answer(request):
        if request.method == "GET":
            return await status(404, "NotFound")(request)
        if request.method == "PUT" and left:
            return await left.pop(0)(request)
        body = json.loads(server.bodies[-1])
        body["metadata"]["resourceVersion"] = str(len(server.requests))
        written.append(body["spec"]["holderIdentity"])
        return await ok(body)(request)

    server.always = answer
    return left, written


@pytest.mark.parametrize("fault", FAULTS)
async def test_failing_renewals_are_tried_again_while_the_time_lasts(client, renewals, monkeypatch, fault):
    monkeypatch.setattr("gpupolicy.adapters.kube.lease._RETRY_SECONDS", 0.01)
    left, written = renewals
    election = kube.LeaderElection(client, "n", "leader", "a", duration_seconds=600, renew_seconds=0.05)
    terms = []

    async def lead():
        terms.append(1)
        left.extend([FAULTS[fault]] * 12)
        await until(lambda: not left)
        renewed = len(written)
        await until(lambda: len(written) > renewed)
        assert election.leads

    async with asyncio.timeout(60):
        await election.run(lead)
    assert terms == [1]
    assert written[0] == "a"
    assert written[-1] == ""


async def test_a_conflict_that_cannot_be_looked_into_is_no_loss(client, renewals, server, monkeypatch):
    """Somebody labelled the Lease, say, and the server does not let us see it now: our time is not over."""
    monkeypatch.setattr("gpupolicy.adapters.kube.lease._RETRY_SECONDS", 0.01)
    left, written = renewals
    usual = server.always

    async def answer(request):
        return await (status(403, "Forbidden") if request.method == "GET" and terms else usual)(request)

    server.always = answer
    terms = []

    async def lead():
        terms.append(1)
        left.extend([status(409, "Conflict")] * 5)
        await until(lambda: not left)
        renewed = len(written)
        await until(lambda: len(written) > renewed)

    async with asyncio.timeout(60):
        await kube.LeaderElection(client, "n", "leader", "a", duration_seconds=600, renew_seconds=0.05).run(
            lead
        )
    assert terms == [1]


async def test_a_lease_that_cannot_be_given_back_is_no_failure(client, renewals, server):
    left, _ = renewals
    election = kube.LeaderElection(client, "n", "leader", "a")

    async def lead():
        left.extend([FAULTS["403"]])

    await election.run(lead)
    assert [request.method for request in server.requests] == ["GET", "POST", "PUT"]


async def test_work_that_fails_when_told_to_end_is_logged(client, renewals, caplog):
    election = kube.LeaderElection(client, "n", "leader", "a")
    started = asyncio.Event()

    async def lead():
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            raise RuntimeError("clean-up failed")

    task = asyncio.create_task(election.run(lead))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert "clean-up failed" in caplog.text
    _, written = renewals
    assert written == ["a", ""]
