"""The plugin against grpc-go and the clients generated from the kubelet's own `.proto` files.

Our Python tests build their messages from the same descriptors as the server does, so they cannot see a wrong field
number. The Go program can: nothing in it is ours but the calls.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from gpupolicy.adapters.kubeletplugin import server
from gpupolicy.adapters.kubeletplugin.claims import (
    ClaimError,
    ClaimRef,
    DeviceHealth,
    HealthState,
    PreparedClaim,
    PreparedDevice,
)
from tests.contract import go_program
from tests.unit.adapters.kubeletplugin.kubelet import eventually

DRIVER = "gpu.example.com"
CLAIMS = [
    {"namespace": "team-a", "uid": "uid-1", "name": "good"},
    {"namespace": "team-b", "uid": "uid-2", "name": "bad"},
]


@pytest.fixture(scope="session")
def program() -> Path:
    return go_program.build(Path(__file__).parent / "kubeletclient")


class Driver:
    """Prepares what is called good, refuses the rest, and never ends with what is called slow."""

    def __init__(self) -> None:
        self.seen: list[ClaimRef] = []
        self.cancelled = 0

    async def prepare(self, claims: Sequence[ClaimRef]) -> Mapping[str, PreparedClaim | ClaimError]:
        self.seen.extend(claims)
        if any(claim.name == "slow" for claim in claims):
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
        device = PreparedDevice(
            pool="node/pool",
            device="gpu-0",
            requests=("main/a",),
            cdi_ids=("x/y=1", "x/y=2"),
            share_id="share",
        )
        good = PreparedClaim(devices=(device,))
        return {claim.uid: good if claim.name == "good" else ClaimError("bad: ünfit") for claim in claims}

    async def unprepare(self, claims: Sequence[ClaimRef]) -> Mapping[str, ClaimError | None]:
        return {claim.uid: None if claim.name == "good" else ClaimError("busy") for claim in claims}

    async def health(self) -> Sequence[DeviceHealth]:
        return [
            DeviceHealth(
                pool="node/pool", device="gpu-0", state=HealthState.UNHEALTHY, message="XID 79", observed_at=5
            ),
            DeviceHealth(pool="node/pool", device="gpu-1", state=HealthState.HEALTHY, timeout_seconds=60),
            DeviceHealth(pool="node/pool", device="gpu-2", state=HealthState.UNKNOWN),
        ]


class Client:
    """The Go program under a plugin: one line in, one line out."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    async def read(self) -> Any:
        assert self.process.stdout is not None
        line = await self.process.stdout.readline()
        assert line, "the client ended"
        return json.loads(line)

    async def call(self, call: str, version: str = "", **arguments: Any) -> Any:
        assert self.process.stdin is not None
        request = {"call": call, "version": version, "timeoutMilliseconds": 45_000, **arguments}
        self.process.stdin.write(json.dumps(request).encode() + b"\n")
        return await self.read()


@pytest.fixture
async def driver() -> Driver:
    return Driver()


@pytest.fixture
async def plugin(
    tmp_path_factory: pytest.TempPathFactory, driver: Driver
) -> AsyncIterator[server.KubeletPlugin]:
    path = tmp_path_factory.mktemp("s")
    started = server.KubeletPlugin(
        DRIVER,
        path / "p",
        path / "r",
        driver,
        health=driver,
        health_interval_seconds=0.05,
        watch_interval_seconds=0.05,
    )
    async with started:
        yield started


@pytest.fixture
async def client(program: Path, plugin: server.KubeletPlugin) -> AsyncIterator[Client]:
    process = await asyncio.create_subprocess_exec(
        str(program),
        str(plugin.paths.registration),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=64 << 20,
    )
    started = Client(process)
    registration = await started.read()
    assert registration["messages"] == [
        {
            "type": "DRAPlugin",
            "name": DRIVER,
            "endpoint": str(plugin.paths.service),
            "supportedVersions": [
                "v1.DRAPlugin",
                "v1beta1.DRAPlugin",
                "v1.DRAResourceHealth",
                "v1alpha1.DRAResourceHealth",
            ],
        }
    ]
    yield started
    assert process.stdin is not None
    process.stdin.close()
    assert await process.wait() == 0


async def test_the_kubelet_tells_the_outcome_of_the_registration(
    client: Client, plugin: server.KubeletPlugin
) -> None:
    assert (await client.call("notify", registered=True))["code"] == "OK"
    assert plugin.status.registered
    assert (await client.call("notify", registered=False, error="nö"))["code"] == "OK"
    assert plugin.status.problem == "the kubelet refused the registration: nö"


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
async def test_claims_are_prepared_and_unprepared(client: Client, driver: Driver, version: str) -> None:
    answer = await client.call("prepare", version, claims=CLAIMS)
    device = {
        "requestNames": ["main"],
        "poolName": "node/pool",
        "deviceName": "gpu-0",
        "cdiDeviceIds": ["x/y=1", "x/y=2"],
    }
    if version == "v1":
        device["shareId"] = "share"
    assert answer == {
        "code": "OK",
        "error": "",
        "messages": [
            {
                "claims": {
                    "uid-1": {"devices": [device], "error": ""},
                    "uid-2": {"devices": [], "error": "bad: ünfit"},
                }
            }
        ],
    }
    assert driver.seen == [
        ClaimRef(namespace="team-a", uid="uid-1", name="good"),
        ClaimRef(namespace="team-b", uid="uid-2", name="bad"),
    ]
    answer = await client.call("unprepare", version, claims=CLAIMS)
    assert answer["messages"] == [{"claims": {"uid-1": {"error": ""}, "uid-2": {"error": "busy"}}}]


async def test_our_words_come_before_the_deadline(client: Client, driver: Driver) -> None:
    claims = [{"namespace": "n", "uid": "u", "name": "slow"}]
    answer = await client.call("prepare", "v1", claims=claims, timeoutMilliseconds=10_000)
    assert answer["code"] == "OK"
    assert "not done after" in answer["messages"][0]["claims"]["u"]["error"]
    assert driver.cancelled == 1
    assert (await client.call("prepare", "v1", claims=CLAIMS[:1]))["code"] == "OK"


@pytest.mark.parametrize("version", ["v1", "v1alpha1"])
async def test_health_is_streamed(client: Client, version: str) -> None:
    answer = await client.call("health", version, messages=3)
    assert answer["code"] == "OK"
    assert len(answer["messages"]) == 3
    for message in answer["messages"]:
        sick, healthy, unknown = message["devices"]
        assert sick == {
            "device": {"poolName": "node/pool", "deviceName": "gpu-0"},
            "health": "UNHEALTHY",
            "lastUpdatedTime": "5",
            "healthCheckTimeoutSeconds": "0",
            "message": "XID 79",
        }
        assert (healthy["health"], healthy["healthCheckTimeoutSeconds"]) == ("HEALTHY", "60")
        assert unknown["health"] == "UNKNOWN"


async def test_large_batches_and_many_calls(client: Client) -> None:
    """Frames that are split, and a connection that is used for long: HTTP/2 details that a short call never sees."""
    claims = [{"namespace": "n" * 60, "uid": f"uid-{n}", "name": "good"} for n in range(2000)]
    answer = await client.call("prepare", "v1", claims=claims)
    assert len(answer["messages"][0]["claims"]) == 2000
    for _ in range(300):
        assert (await client.call("unprepare", "v1", claims=CLAIMS))["code"] == "OK"


async def test_a_connection_survives_the_loss_of_the_socket_file(
    client: Client, plugin: server.KubeletPlugin
) -> None:
    plugin.paths.service.unlink()
    await eventually(plugin.paths.service.exists)
    assert (await client.call("prepare", "v1", claims=CLAIMS))["code"] == "OK"
