"""The plugin against a kubelet: registration, calls, health, and every way in which the sockets can suffer."""

import asyncio
import contextlib
import errno
import shutil
import socket
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from gpupolicy.adapters.kubeletplugin import server, services, sockets
from gpupolicy.adapters.kubeletplugin.claims import (
    ClaimError,
    ClaimRef,
    DeviceHealth,
    HealthState,
    PreparedClaim,
    PreparedDevice,
)
from tests.unit.adapters.kubeletplugin.kubelet import connect, eventually

DRIVER = "gpu.example.com"
ONE = ("ns", "claim", "uid-1")
TWO = ("ns", "other", "uid-2")
DEVICE = PreparedDevice(
    pool="node/pool",
    device="gpu-0",
    requests=("main/first", "main", "side"),
    cdi_ids=("gpu.example.com/claim=uid-1-gpu-0",),
    share_id="share-7",
)
PREPARED = PreparedClaim(devices=(DEVICE,))
BOTH = [services.DRA_V1, services.DRA_V1BETA1]


class Driver:
    """A handler whose answer is whatever the test wants, and which notes what it was asked."""

    def __init__(self, answer: Any = PREPARED) -> None:
        self.answer = answer
        self.asked: list[Sequence[ClaimRef]] = []
        self.cancelled = 0
        self.list: list[DeviceHealth] | Exception = []
        self.health_calls = 0

    async def prepare(self, claims: Sequence[ClaimRef]) -> Mapping[str, Any]:
        self.asked.append(claims)
        if isinstance(self.answer, BaseException):
            raise self.answer
        if callable(self.answer):
            try:
                return await self.answer(claims)
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
        if isinstance(self.answer, dict):
            return self.answer
        return {claim.uid: self.answer for claim in claims}

    unprepare = prepare

    async def health(self) -> Sequence[DeviceHealth]:
        self.health_calls += 1
        if isinstance(self.list, Exception):
            raise self.list
        return self.list


@pytest.fixture
def short(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A directory short enough for sockets."""
    path = tmp_path_factory.mktemp("s")
    yield path
    shutil.rmtree(path, ignore_errors=True)


@asynccontextmanager
async def running(short: Path, driver: Driver, **options: Any) -> AsyncIterator[server.KubeletPlugin]:
    options = {"watch_interval_seconds": 0.01, "health_interval_seconds": 0.05, "health": driver, **options}
    plugin = server.KubeletPlugin(DRIVER, short / "p", short / "r", driver, **options)
    async with plugin:
        yield plugin


@pytest.fixture
async def driver() -> Driver:
    return Driver()


async def test_registration(short: Path, driver: Driver) -> None:
    """What the kubelet asks first, and what it says then."""
    heard: list[server.PluginStatus] = []
    async with (
        running(short, driver, on_status=heard.append) as plugin,
        connect(plugin.paths.registration) as kubelet,
    ):
        assert not plugin.status.registered
        info = await kubelet.get_info()
        assert (info.type, info.name, info.endpoint) == ("DRAPlugin", DRIVER, str(short / "p" / "dra.sock"))
        assert list(info.supported_versions) == [
            "v1.DRAPlugin",
            "v1beta1.DRAPlugin",
            "v1.DRAResourceHealth",
            "v1alpha1.DRAResourceHealth",
        ]
        await kubelet.notify(registered=True)
        assert plugin.status == server.PluginStatus(registered=True)
        await kubelet.notify(registered=False, error="version is too old")
        assert not plugin.status.registered
        assert "version is too old" in plugin.status.problem
        # A kubelet that registers us again has restarted, and the driver wants to know even if nothing changed.
        await kubelet.notify(registered=True)
        await kubelet.notify(registered=True)
        assert [(status.registered, bool(status.problem)) for status in heard] == [
            (True, False),
            (False, True),
            (True, False),
            (True, False),
        ]


async def test_without_health_only_the_dra_services_are_offered(short: Path, driver: Driver) -> None:
    async with running(short, driver, health=None) as plugin:
        async with connect(plugin.paths.registration) as kubelet:
            assert list((await kubelet.get_info()).supported_versions) == [
                "v1.DRAPlugin",
                "v1beta1.DRAPlugin",
            ]
        async with connect(plugin.paths.service) as kubelet:
            with pytest.raises(GRPCError):
                async with kubelet.watch_health() as stream:
                    await anext(stream)
        plugin.health_changed()


async def test_only_the_wanted_versions_are_served(short: Path, driver: Driver) -> None:
    async with (
        running(short, driver, versions=[services.DRA_V1BETA1]) as plugin,
        connect(plugin.paths.service) as kubelet,
    ):
        await kubelet.prepare([ONE], version=services.DRA_V1BETA1)
        with pytest.raises(GRPCError):
            await kubelet.prepare([ONE], version=services.DRA_V1)
        assert len(driver.asked) == 1


def test_an_unknown_version_is_a_bug_of_the_caller(short: Path, driver: Driver) -> None:
    with pytest.raises(ValueError, match="v2"):
        server.KubeletPlugin(DRIVER, short / "p", short / "r", driver, versions=["v2.DRAPlugin"])


@pytest.mark.parametrize("version", BOTH)
async def test_prepared_devices(short: Path, driver: Driver, version: str) -> None:
    """Subrequests become requests, and only v1 knows shares."""
    reports: list[services.CallReport] = []
    async with (
        running(short, driver, on_call=reports.append) as plugin,
        connect(plugin.paths.service) as kubelet,
    ):
        answer = await kubelet.prepare([ONE], version=version)
        (device,) = answer["uid-1"].devices
        assert list(device.request_names) == ["main", "side"]
        assert (device.pool_name, device.device_name) == ("node/pool", "gpu-0")
        assert list(device.cdi_device_ids) == ["gpu.example.com/claim=uid-1-gpu-0"]
        assert getattr(device, "share_id", None) == ("share-7" if version == services.DRA_V1 else None)
        assert answer["uid-1"].error == ""
        assert driver.asked == [(ClaimRef(namespace="ns", name="claim", uid="uid-1"),)]
        (report,) = reports
        assert (report.method, report.version, report.claims, report.errors) == ("prepare", version, 1, {})
        assert plugin.status.last_call_at is not None


@pytest.mark.parametrize("version", BOTH)
async def test_unprepared_claims(short: Path, version: str) -> None:
    driver = Driver({"uid-1": None, "uid-2": ClaimError("busy")})
    async with running(short, driver) as plugin, connect(plugin.paths.service) as kubelet:
        answer = await kubelet.unprepare([ONE, TWO], version=version)
        assert {uid: entry.error for uid, entry in answer.items()} == {"uid-1": "", "uid-2": "busy"}


SLOW_SECONDS = 5.0
"""A deadline that is left to pass. A tenth of it is kept back for the answer, which a busy machine may need."""


async def slow(_: Sequence[ClaimRef]) -> Any:
    await asyncio.sleep(3600)


async def times_out(_: Sequence[ClaimRef]) -> Any:
    raise TimeoutError("NVML did not answer")


ANSWERS = [
    pytest.param(RuntimeError("no such device"), "RuntimeError: no such device", id="raises"),
    pytest.param(KeyError(), "KeyError", id="raises without text"),
    pytest.param(times_out, "TimeoutError: NVML did not answer", id="its own time-out"),
    pytest.param({}, "the driver gave no answer for this claim", id="forgets a claim"),
    pytest.param({"uid-1": 7}, "the driver answered with int for this claim", id="nonsense for a claim"),
    pytest.param({"uid-1": ClaimError("")}, "the driver failed without saying why", id="empty error"),
    pytest.param({"uid-1": ClaimError("taken by ns/b")}, "taken by ns/b", id="refuses"),
    pytest.param({"uid-1": ClaimError("no \ud800 here")}, "no ? here", id="half a character"),
    pytest.param(slow, "not done after", id="too slow"),
]


@pytest.mark.parametrize("verb", ["prepare", "unprepare"])
@pytest.mark.parametrize(("answer", "error"), ANSWERS)
async def test_whatever_the_driver_does_becomes_an_error_of_the_claim(
    short: Path, answer: Any, error: str, verb: str
) -> None:
    """Never a failed call: its text would be lost on the other claims of the pod."""
    driver = Driver(answer)
    async with running(short, driver) as plugin, connect(plugin.paths.service) as kubelet:
        entries = await getattr(kubelet, verb)([ONE], seconds=SLOW_SECONDS if answer is slow else 60)
        assert list(entries) == ["uid-1"]
        assert error in entries["uid-1"].error
        assert driver.cancelled == (answer is slow)


@pytest.mark.parametrize("answer", [None, ["x"], 3], ids=["nothing", "list", "number"])
async def test_an_answer_that_is_no_mapping_is_an_error_too(short: Path, answer: Any) -> None:
    async def give(_: Sequence[ClaimRef]) -> Any:
        return answer

    async with running(short, Driver(give)) as plugin, connect(plugin.paths.service) as kubelet:
        entries = await kubelet.prepare([ONE])
        assert "in place of a mapping" in entries["uid-1"].error


async def test_one_bad_claim_does_not_spoil_the_other(short: Path) -> None:
    driver = Driver({"uid-1": PREPARED, "uid-3": PREPARED})
    reports: list[services.CallReport] = []
    async with (
        running(short, driver, on_call=reports.append) as plugin,
        connect(plugin.paths.service) as kubelet,
    ):
        entries = await kubelet.prepare([ONE, TWO, ONE])
        assert sorted(entries) == ["uid-1", "uid-2"]
        assert entries["uid-1"].devices
        assert entries["uid-2"].error
        assert len(driver.asked[0]) == 2
        assert list(reports[0].errors) == ["uid-2"]


def broken(_: Any) -> None:
    raise RuntimeError("a bug in the driver's metrics")


async def test_a_listener_that_raises_spoils_nothing(
    short: Path, driver: Driver, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither the answer to the kubelet nor the watch over the sockets."""
    async with running(short, driver, on_status=broken, on_call=broken) as plugin:
        async with connect(plugin.paths.registration) as kubelet:
            await kubelet.notify(registered=True)
        async with connect(plugin.paths.service) as kubelet:
            assert (await kubelet.prepare([ONE]))["uid-1"].devices
        plugin.paths.registration.unlink()
        await eventually(lambda: not plugin.status.registered and plugin.paths.registration.exists())
        plugin.paths.registration.unlink()
        await eventually(plugin.paths.registration.exists)
    assert "a bug in the driver's metrics" in caplog.text


async def test_a_claim_without_uid_is_answered(short: Path, driver: Driver) -> None:
    async with running(short, driver) as plugin, connect(plugin.paths.service) as kubelet:
        entries = await kubelet.prepare([("ns", "claim", "")])
        assert "without a uid" in entries[""].error
        assert await kubelet.prepare([]) == {}


async def test_success_of_the_wrong_kind_is_an_error(short: Path) -> None:
    """A prepared claim is no answer to unprepare, and None none to prepare: each would read as success."""
    async with running(short, Driver(PREPARED)) as plugin, connect(plugin.paths.service) as kubelet:
        assert "PreparedClaim" in (await kubelet.unprepare([ONE]))["uid-1"].error
    async with running(short, Driver({"uid-1": None})) as plugin, connect(plugin.paths.service) as kubelet:
        assert "NoneType" in (await kubelet.prepare([ONE]))["uid-1"].error


async def test_a_kubelet_that_hangs_up_cancels_the_call(short: Path) -> None:
    driver = Driver(slow)
    async with running(short, driver) as plugin:
        async with connect(plugin.paths.service) as kubelet:
            call = asyncio.ensure_future(kubelet.prepare([ONE]))
            await eventually(lambda: driver.asked)
            assert plugin.status.in_flight == 1
            call.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await call
        await eventually(lambda: plugin.status.in_flight == 0)
        assert driver.cancelled == 1


async def test_calls_run_side_by_side(short: Path) -> None:
    """One pod's slow card is not another pod's problem."""
    release = asyncio.Event()

    async def answer(claims: Sequence[ClaimRef]) -> Any:
        if claims[0].uid == "uid-1":
            await release.wait()
        return {claim.uid: PREPARED for claim in claims}

    async with running(short, Driver(answer)) as plugin, connect(plugin.paths.service) as kubelet:
        first = asyncio.ensure_future(kubelet.prepare([ONE]))
        assert (await kubelet.prepare([TWO]))["uid-2"].devices
        assert not first.done()
        release.set()
        assert (await first)["uid-1"].devices


HEALTHY = DeviceHealth(pool="p", device="a", state=HealthState.HEALTHY, observed_at=123.9)
SICK = DeviceHealth(pool="p", device="b", state=HealthState.UNHEALTHY, message="é" * 600, timeout_seconds=60)


@pytest.mark.parametrize("version", [services.HEALTH_V1, services.HEALTH_V1ALPHA1])
async def test_health_is_a_full_list_repeated(short: Path, driver: Driver, version: str) -> None:
    driver.list = [HEALTHY, SICK]
    async with (
        running(short, driver) as plugin,
        connect(plugin.paths.service) as kubelet,
        kubelet.watch_health(version) as stream,
    ):
        for _ in range(3):
            message = await anext(stream)
            healthy, sick = message.devices
            assert (healthy.device.pool_name, healthy.device.device_name, healthy.health) == ("p", "a", 1)
            assert (healthy.last_updated_time, healthy.health_check_timeout_seconds) == (123, 0)
            assert (sick.health, sick.health_check_timeout_seconds) == (2, 60)
            assert sick.last_updated_time > 1_700_000_000
            # Cut between characters, not inside one.
            assert sick.message == "é" * 512


async def test_a_change_is_sent_at_once(short: Path, driver: Driver) -> None:
    """On every open stream, long before the interval is over."""
    async with (
        running(short, driver, health_interval_seconds=3600) as plugin,
        connect(plugin.paths.service) as kubelet,
        kubelet.watch_health() as one,
        kubelet.watch_health(services.HEALTH_V1ALPHA1) as other,
    ):
        for stream in (one, other):
            assert len((await anext(stream)).devices) == 0
        driver.list = [HEALTHY]
        plugin.health_changed()
        for stream in (one, other):
            assert len((await anext(stream)).devices) == 1


async def test_health_that_cannot_be_told_is_silence(short: Path, driver: Driver) -> None:
    """The stream survives, and speaks again when there is something true to say."""
    driver.list = RuntimeError("NVML is gone")
    async with (
        running(short, driver) as plugin,
        connect(plugin.paths.service) as kubelet,
        kubelet.watch_health() as stream,
    ):
        await eventually(lambda: driver.health_calls > 2)
        driver.list = [HEALTHY]
        assert len((await anext(stream)).devices) == 1


async def test_a_closed_health_stream_is_forgotten(short: Path, driver: Driver) -> None:
    async with running(short, driver) as plugin:
        async with connect(plugin.paths.service) as kubelet, kubelet.watch_health() as stream:
            await anext(stream)
        health = plugin._health
        assert health is not None
        await eventually(lambda: health._wakes == set())
        calls = driver.health_calls
        await asyncio.sleep(0.2)
        assert driver.health_calls == calls


def remove_file(paths: sockets.SocketPaths) -> None:
    paths.registration.unlink()


def remove_directory(paths: sockets.SocketPaths) -> None:
    shutil.rmtree(paths.registration.parent)


def remove_everything(paths: sockets.SocketPaths) -> None:
    shutil.rmtree(paths.registration.parent)
    shutil.rmtree(paths.service.parent)


@pytest.mark.parametrize("damage", [remove_file, remove_directory, remove_everything])
async def test_a_removed_socket_is_served_again(
    short: Path, driver: Driver, damage: Callable[[sockets.SocketPaths], None]
) -> None:
    """A wiped registry is how some restarts look; the driver must not stay unregistered."""
    heard: list[server.PluginStatus] = []
    async with running(short, driver, on_status=heard.append) as plugin:
        async with connect(plugin.paths.registration) as kubelet:
            await kubelet.notify(registered=True)
        damage(plugin.paths)
        await eventually(lambda: not plugin.status.registered and plugin.paths.registration.exists())
        await eventually(plugin.paths.service.exists)
        async with connect(plugin.paths.registration) as kubelet:
            assert (await kubelet.get_info()).name == DRIVER
            await kubelet.notify(registered=True)
        async with connect(plugin.paths.service) as kubelet:
            assert (await kubelet.prepare([ONE]))["uid-1"].devices
        assert plugin.status.registered
        assert [status.registered for status in heard] == [True, False, True]


async def test_a_socket_is_served_again_after_any_trouble(
    short: Path, driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process without a free file descriptor cannot even look; once it can, it must still be looking."""
    bind, refused = sockets.bind, []

    def without_descriptors(path: Path) -> sockets.BoundSocket:
        if len(refused) < 3:
            refused.append(path)
            raise OSError(errno.EMFILE, "Too many open files")
        return bind(path)

    async with running(short, driver) as plugin:
        monkeypatch.setattr(sockets, "bind", without_descriptors)
        plugin.paths.registration.unlink()
        await eventually(plugin.paths.registration.exists)
        assert len(refused) == 3
        async with connect(plugin.paths.registration) as kubelet:
            assert (await kubelet.get_info()).name == DRIVER


async def test_an_open_connection_outlives_its_socket_file(short: Path, driver: Driver) -> None:
    """The kubelet's calls go on while the file is put back."""
    async with running(short, driver) as plugin, connect(plugin.paths.service) as kubelet:
        await kubelet.prepare([ONE])
        inode = plugin.paths.service.stat().st_ino
        plugin.paths.service.unlink()
        await eventually(
            lambda: plugin.paths.service.exists() and plugin.paths.service.stat().st_ino != inode
        )
        assert (await kubelet.prepare([ONE]))["uid-1"].devices


async def test_a_socket_taken_by_another_process_is_left_to_it(short: Path, driver: Driver) -> None:
    """Taking it back would start a fight that serves nobody."""
    heard: list[server.PluginStatus] = []
    async with running(short, driver, on_status=heard.append) as plugin:
        async with connect(plugin.paths.registration) as kubelet:
            await kubelet.notify(registered=True)
        with socket.socket(socket.AF_UNIX) as thief:
            hidden = plugin.paths.registration.with_name(".t")
            thief.bind(str(hidden))
            thief.listen()
            hidden.rename(plugin.paths.registration)
            await eventually(lambda: "taken over by another process" in plugin.status.problem)
            assert not plugin.status.registered
            assert heard[-1] == plugin.status
    assert plugin.paths.registration.is_socket()


async def test_what_cannot_be_put_back_is_a_problem_until_it_can(short: Path, driver: Driver) -> None:
    async with running(short, driver) as plugin:
        async with connect(plugin.paths.registration) as kubelet:
            await kubelet.notify(registered=True)
        shutil.rmtree(short / "r")
        (short / "r").touch()
        await eventually(lambda: "cannot serve at" in plugin.status.problem)
        assert not plugin.status.registered
        (short / "r").unlink()
        await eventually(lambda: not plugin.status.problem and plugin.paths.registration.is_socket())


async def test_sockets_of_a_killed_instance_are_replaced(short: Path, driver: Driver) -> None:
    """After SIGKILL both files are still there, and so they are with another instance's id."""
    for name in (short / "p" / "dra.sock", short / "r" / f"{DRIVER}-reg.sock", short / "p" / "dra-old.sock"):
        name.parent.mkdir(exist_ok=True)
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(name))
    async with running(short, driver) as plugin, connect(plugin.paths.service) as kubelet:
        assert (await kubelet.prepare([ONE]))["uid-1"].devices
        assert not (short / "p" / "dra-old.sock").exists()


async def test_a_second_instance_without_id_does_not_start(short: Path, driver: Driver) -> None:
    async with running(short, driver) as plugin:
        with pytest.raises(sockets.SocketError, match="another process serves there"):
            async with running(short, driver):
                pytest.fail("two instances serve the same sockets")
        async with connect(plugin.paths.service) as kubelet:
            assert (await kubelet.prepare([ONE]))["uid-1"].devices


async def test_two_instances_with_ids_live_side_by_side(short: Path, driver: Driver) -> None:
    """The rolling update: the old one goes, and takes only its own sockets."""
    async with running(short, driver, instance_id="new") as new:
        async with running(short, driver, instance_id="old") as old:
            assert old.paths != new.paths
            async with connect(new.paths.registration) as kubelet:
                assert (await kubelet.get_info()).endpoint == str(new.paths.service)
        assert not old.paths.service.exists()
        assert not old.paths.registration.exists()
        async with connect(new.paths.service) as kubelet:
            assert (await kubelet.prepare([ONE]))["uid-1"].devices


async def test_a_failed_start_leaves_nothing_behind(short: Path, driver: Driver) -> None:
    (short / "r").mkdir()
    (short / "r" / f"{DRIVER}-reg.sock").write_text("a file")
    with pytest.raises(sockets.SocketError, match="not a socket"):
        async with running(short, driver):
            pytest.fail("it started")
    assert list((short / "p").iterdir()) == []
    assert (short / "r" / f"{DRIVER}-reg.sock").read_text() == "a file"


async def test_stopping_finishes_what_is_under_way_and_takes_nothing_new(short: Path) -> None:
    """The registration goes first, so that the kubelet turns elsewhere."""
    release = asyncio.Event()

    async def answer(claims: Sequence[ClaimRef]) -> Any:
        await release.wait()
        return {claim.uid: PREPARED for claim in claims}

    driver = Driver(answer)
    plugin = server.KubeletPlugin(DRIVER, short / "p", short / "r", driver)
    await plugin.start()
    async with connect(plugin.paths.service) as kubelet:
        call = asyncio.ensure_future(kubelet.prepare([ONE]))
        await eventually(lambda: driver.asked)
        stopping = asyncio.ensure_future(plugin.stop())
        await eventually(lambda: not plugin.paths.registration.exists())
        assert plugin.paths.service.exists()
        with pytest.raises(GRPCError) as caught:
            await kubelet.prepare([TWO])
        assert caught.value.status is Status.UNAVAILABLE
        release.set()
        assert (await call)["uid-1"].devices
        await stopping
    assert not plugin.paths.service.exists()


async def test_stopping_cancels_what_takes_too_long(short: Path) -> None:
    driver = Driver(slow)
    plugin = server.KubeletPlugin(DRIVER, short / "p", short / "r", driver)
    await plugin.start()
    async with connect(plugin.paths.service) as kubelet:
        call = asyncio.ensure_future(kubelet.prepare([ONE]))
        await eventually(lambda: driver.asked)
        await plugin.stop(grace_seconds=0.05)
        await eventually(lambda: driver.cancelled == 1)
        call.cancel()
        with contextlib.suppress(asyncio.CancelledError, GRPCError, OSError):
            await call


async def test_stopping_twice_is_harmless(short: Path, driver: Driver) -> None:
    async with running(short, driver) as plugin:
        await plugin.stop()
    assert not plugin.status.registered
