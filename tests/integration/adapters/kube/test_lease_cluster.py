"""Leader election on a real API server: one leads, never two, and somebody soon after a leader is gone."""

import asyncio
import contextlib

import pytest

from gpupolicy.adapters import kube
from tests.integration.adapters.kube.canned import until

pytestmark = pytest.mark.cluster


@pytest.fixture
async def client(cluster):
    async with kube.Kube.connect(str(cluster.control_plane.admin_kubeconfig)) as made:
        yield made


class Candidate:
    """One process of several: leads until it is told to end, and notes who leads at the same time.

    By default it loses the Lease only when somebody takes it, however slow the machine is; where time itself has to take
    it, a test chooses less.
    """

    leading: list[str]

    def __init__(self, client, namespace, identity, leading, **options):
        options = {"duration_seconds": 60, "renew_seconds": 0.5, "margin_seconds": 1.0, **options}
        self.identity = identity
        self.leading = leading
        self.election = kube.LeaderElection(client, namespace, "leader", identity, **options)
        self.end = asyncio.Event()
        self.terms = 0
        self.together = 0
        self.task = None

    async def lead(self):
        self.terms += 1
        self.leading.append(self.identity)
        self.together = max(self.together, len(self.leading))
        try:
            assert self.election.leads
            await self.end.wait()
        finally:
            self.leading.remove(self.identity)
            self.led_at_the_end = self.election.leads

    def start(self):
        self.task = asyncio.create_task(self.election.run(self.lead))

    async def stop(self):
        self.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.task


@pytest.fixture
async def candidates(client, namespace):
    """Makes and starts candidates; ends them after the test and checks that no two ever led together."""
    made, leading = [], []

    def start(identity, **options):
        candidate = Candidate(options.pop("client", client), namespace, identity, leading, **options)
        made.append(candidate)
        candidate.start()
        return candidate

    start.leading = leading
    yield start
    for candidate in made:
        await candidate.stop()
    assert max(candidate.together for candidate in made) == 1


async def test_one_leads_and_the_lease_says_so(candidates, client, namespace):
    for identity in ("a", "b", "c"):
        candidates(identity)
    await until(lambda: candidates.leading)
    lease = await client.get(kube.LEASES, "leader", namespace)
    assert [lease["spec"]["holderIdentity"]] == candidates.leading
    assert lease["spec"]["leaseDurationSeconds"] == 60
    assert lease["spec"]["leaseTransitions"] == 0
    await until_renewed(client, namespace, lease["metadata"]["resourceVersion"])
    assert len(candidates.leading) == 1


async def until_renewed(client, namespace, since):
    async for event in client.watch(kube.LEASES, namespace, resource_version=since):
        if event.object["spec"]["renewTime"] != event.object["spec"]["acquireTime"]:
            return


async def test_a_leader_that_ends_gives_the_lease_back(candidates, client, namespace):
    first = candidates("a")
    await until(lambda: candidates.leading == ["a"])
    await first.stop()
    assert first.led_at_the_end is True
    lease = await client.get(kube.LEASES, "leader", namespace)
    assert lease["spec"]["holderIdentity"] == ""
    candidates("b")
    await until(lambda: candidates.leading == ["b"])
    lease = await client.get(kube.LEASES, "leader", namespace)
    assert lease["spec"]["leaseTransitions"] == 1


async def test_the_next_need_not_wait_for_the_duration_for_the_duration(candidates):
    first = candidates("a", duration_seconds=3600)
    await until(lambda: candidates.leading == ["a"])
    candidates("b", duration_seconds=3600)
    await first.stop()
    await until(lambda: candidates.leading == ["b"])


async def test_work_that_returns_ends_the_election(client, namespace):
    election = kube.LeaderElection(client, namespace, "leader", "a")
    done = []

    async def lead():
        done.append(election.leads)

    await election.run(lead)
    assert done == [True]
    assert not election.leads
    assert (await client.get(kube.LEASES, "leader", namespace))["spec"]["holderIdentity"] == ""


async def test_work_that_fails_is_raised_and_the_lease_is_given_back(client, namespace):
    async def lead():
        raise RuntimeError("bug")

    with pytest.raises(RuntimeError, match="bug"):
        await kube.LeaderElection(client, namespace, "leader", "a").run(lead)
    assert (await client.get(kube.LEASES, "leader", namespace))["spec"]["holderIdentity"] == ""


async def test_a_leader_that_vanishes_is_followed(candidates, cluster):
    """It dies without giving the lease back: the client is closed under it, as if the machine were gone."""
    async with kube.Kube.connect(str(cluster.control_plane.admin_kubeconfig)) as doomed:
        first = candidates("a", client=doomed, duration_seconds=5)
        await until(lambda: candidates.leading == ["a"])
        candidates("b")
    await until(lambda: candidates.leading == ["b"])
    assert not first.election.leads


@pytest.mark.parametrize("year", [2001, 2026, 2101])
async def test_only_the_own_clock_counts(client, namespace, year):
    """A holder whose clock is wrong by years is alive as long as it writes, and gone when it has not for its duration."""
    written = f"{year}-01-01T00:00:00.000000Z"
    holder = {"holderIdentity": "x", "leaseDurationSeconds": 15, "renewTime": written, "acquireTime": written}
    lease = await client.create(
        kube.LEASES, {"metadata": {"name": "leader", "namespace": namespace}, "spec": holder}
    )
    seconds = 0.0
    candidate = kube.LeaderElection(client, namespace, "leader", "a", clock=lambda: seconds)
    for _ in range(3):
        assert await candidate._try_acquire() is not None
        seconds += 15.0
        assert await candidate._try_acquire() is not None
        lease["metadata"]["labels"] = {"written": str(seconds)}
        lease = await client.replace(kube.LEASES, lease)
    assert await candidate._try_acquire() is not None
    seconds += 15.2
    assert await candidate._try_acquire() is None
    assert candidate.leads
    seconds += 12.9
    assert candidate.leads
    seconds += 0.2
    assert not candidate.leads


async def test_of_two_that_see_an_expired_lease_one_gets_it(client, namespace):
    seconds = 0.0
    rivals = [
        kube.LeaderElection(client, namespace, "leader", name, clock=lambda: seconds) for name in "abcd"
    ]
    for round_ in range(5):
        seconds += 100.0
        await asyncio.gather(*(rival._try_acquire() for rival in rivals))
        seconds += 100.0
        await asyncio.gather(*(rival._try_acquire() for rival in rivals))
        lease = await client.get(kube.LEASES, "leader", namespace)
        assert [rival._identity for rival in rivals if rival.leads] == [lease["spec"]["holderIdentity"]], (
            round_
        )


async def test_a_lease_that_another_takes_by_force_is_lost_at_once(candidates, client, namespace):
    first = candidates("a")
    await until(lambda: candidates.leading == ["a"])
    taken = {"spec": {"holderIdentity": "x", "leaseDurationSeconds": 2}}
    await client.patch(kube.LEASES, "leader", taken, namespace)
    await until(lambda: candidates.leading == [])
    assert first.led_at_the_end is False
    await until(lambda: candidates.leading == ["a"])
    assert first.terms == 2


async def test_a_lease_that_is_deleted_is_lost_and_made_anew(candidates, client, namespace):
    first = candidates("a")
    await until(lambda: candidates.leading == ["a"])
    await client.delete(kube.LEASES, "leader", namespace)
    await until(lambda: first.terms == 2)
    assert (await client.get(kube.LEASES, "leader", namespace))["spec"]["holderIdentity"] == "a"


async def test_a_label_on_the_lease_is_no_loss(candidates, client, namespace):
    """A conflict is looked into: the holder is still us."""
    first = candidates("a")
    await until(lambda: candidates.leading == ["a"])
    for index in range(5):
        patched = await client.patch(
            kube.LEASES, "leader", {"metadata": {"labels": {"n": str(index)}}}, namespace
        )
        await until_renewed(client, namespace, patched["metadata"]["resourceVersion"])
    assert first.terms == 1
    assert (await client.get(kube.LEASES, "leader", namespace))["metadata"]["labels"] == {"n": "4"}


async def test_a_blip_of_the_server_is_outlived(candidates, cluster):
    first = candidates("a", duration_seconds=600)
    await until(lambda: candidates.leading == ["a"])
    await asyncio.to_thread(cluster.control_plane.restart_api_server)
    await asyncio.sleep(1.0)
    assert candidates.leading == ["a"]
    assert first.terms == 1


@pytest.mark.parametrize("how", ["killed", "frozen"])
async def test_a_leader_without_a_server_stops_leading_and_leads_again(candidates, cluster, how):
    server = cluster.control_plane.api_server
    first = candidates("a", duration_seconds=10)
    await until(lambda: candidates.leading == ["a"])
    await asyncio.to_thread(server.kill if how == "killed" else server.pause)
    try:
        await until(lambda: candidates.leading == [])
        assert first.led_at_the_end is False
    finally:
        await asyncio.to_thread(server.start if how == "killed" else server.resume)
        await asyncio.to_thread(cluster.control_plane.wait_ready)
    await until(lambda: candidates.leading == ["a"])
    assert first.terms == 2


@pytest.mark.parametrize(
    ("duration", "renew", "margin"),
    [(15, 0, 2), (15, 13, 2), (15, 20, 2), (15, -1, 2), (1, 1, 1)],
)
def test_periods_that_leave_no_second_attempt_are_refused(duration, renew, margin):
    with pytest.raises(ValueError, match="renew_seconds"):
        kube.LeaderElection(
            None, "n", "l", "a", duration_seconds=duration, renew_seconds=renew, margin_seconds=margin
        )


async def test_a_seized_lease_is_left_alone_for_as_long_as_it_says(candidates, client, namespace):
    """The leader loses it within the time that it is told to wait for, and nobody leads until it is over."""
    candidates("first")
    await until(lambda: candidates.leading == ["first"])
    held_seconds = await kube.seize(client, namespace, "leader", "job", seconds=30)
    assert held_seconds == 60
    await until(lambda: candidates.leading == [])
    assert await kube.seize(client, namespace, "leader", "job", seconds=1) == 0
    await until(lambda: candidates.leading == ["first"])
    lease = await client.get(kube.LEASES, "leader", namespace)
    assert lease["spec"]["holderIdentity"] == "first"


async def test_a_lease_that_nobody_has_is_seized_at_once(client, namespace):
    assert await kube.seize(client, namespace, "leader", "job", seconds=5) == 0
    lease = await client.get(kube.LEASES, "leader", namespace)
    assert (lease["spec"]["holderIdentity"], lease["spec"]["leaseDurationSeconds"]) == ("job", 5)
