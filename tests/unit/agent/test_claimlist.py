"""Claims are listed before a change and looked at one by one while they are waited for; nothing is believed gone
because the API server is away.
"""

from typing import Any

import pytest

from gpupolicy.adapters import kube
from gpupolicy.agent import claimlist
from gpupolicy.agent.claimlist import ClaimList

POOL = "gpu-01/gpupolicy"


def claim(
    name: str, device: str, *, pool: str = POOL, driver: str = "gpu.gpupolicy.dev", **result: Any
) -> kube.Object:
    entry = {"driver": driver, "pool": pool, "device": device, "request": "r", **result}
    return {
        "metadata": {"name": name, "namespace": "ns", "uid": f"uid-{name}"},
        "status": {
            "allocation": {"devices": {"results": [entry]}},
            "reservedFor": [{"resource": "pods", "name": f"{name}-pod", "uid": "u"}],
        },
    }


class Api:
    def __init__(self, *claims: kube.Object) -> None:
        self.claims = {c["metadata"]["name"]: c for c in claims}
        self.down = False
        self.gets: list[str] = []

    async def list(self, _: kube.Resource, *, transform: Any = None) -> Any:
        if self.down:
            raise kube.Unavailable(0, "Unreachable", "away")
        for found in self.claims.values():
            transform(found)

    async def get(self, _: kube.Resource, name: str, namespace: str | None = None) -> kube.Object:
        self.gets.append(name)
        if self.down:
            raise kube.Unavailable(0, "Unreachable", "away")
        if name not in self.claims:
            raise kube.NotFound(404, "NotFound", name)
        return self.claims[name]


def held(claims: ClaimList) -> dict[str, list[str]]:
    return {device: [use.name for use in uses] for device, uses in claims.allocated.items()}


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that the test turns."""
    now = [1000.0]
    monkeypatch.setattr(claimlist.time, "monotonic", lambda: now[0])
    return now


async def test_only_allocations_of_this_pool_count() -> None:
    api = Api(
        claim("a", "gpu-1"),
        claim("b", "gpu-1"),
        claim("other-node", "gpu-1", pool="gpu-02/gpupolicy"),
        claim("other-driver", "gpu-1", driver="gpu.nvidia.com"),
        claim("admin", "gpu-2", adminAccess=True),
        {"metadata": {"name": "pending", "namespace": "ns", "uid": "u"}},
    )
    claims = ClaimList(api, POOL)  # type: ignore[arg-type]
    assert {d: [u.name for u in uses] for d, uses in (await claims.list()).items()} == {"gpu-1": ["a", "b"]}
    assert claims.allocated["gpu-1"][0].pods == ("a-pod",)


async def test_what_nobody_waits_for_is_forgotten() -> None:
    claims = ClaimList(Api(claim("a", "gpu-1")), POOL)  # type: ignore[arg-type]
    await claims.list()
    assert not await claims.refresh(frozenset())
    assert held(claims) == {}


async def test_a_claim_that_went_is_noticed_and_told() -> None:
    api = Api(claim("a", "gpu-1"), claim("b", "gpu-2"))
    claims = ClaimList(api, POOL)  # type: ignore[arg-type]
    await claims.list()
    awaited = frozenset({"uid-a", "uid-b"})
    assert not await claims.refresh(awaited)
    del api.claims["a"]
    assert not await claims.refresh(awaited), "not looked at again so soon"
    assert await claims.refresh(awaited | {"uid-c"}), "something else is waited for: look now"
    assert held(claims) == {"gpu-2": ["b"]}


@pytest.mark.parametrize(
    "after",
    [
        pytest.param({**claim("a", "gpu-1"), "status": {}}, id="deallocated"),
        pytest.param({**claim("a", "gpu-1"), "metadata": {"name": "a", "uid": "another"}}, id="made again"),
        pytest.param(claim("a", "gpu-1", pool="gpu-02/gpupolicy"), id="allocated elsewhere"),
    ],
)
async def test_a_claim_that_holds_nothing_here_any_more_pins_nothing(after: kube.Object) -> None:
    api = Api(claim("a", "gpu-1"))
    claims = ClaimList(api, POOL)  # type: ignore[arg-type]
    await claims.list()
    api.claims["a"] = after
    assert await claims.refresh(frozenset({"uid-a"}))
    assert held(claims) == {}


async def test_an_api_server_that_is_away_frees_nothing(clock: list[float]) -> None:
    api = Api(claim("a", "gpu-1"))
    claims = ClaimList(api, POOL)  # type: ignore[arg-type]
    await claims.list()
    api.down = True
    for _ in range(3):
        assert not await claims.refresh(frozenset({"uid-a"}))
        assert held(claims) == {"gpu-1": ["a"]}
        clock[0] += 100
    with pytest.raises(kube.Unavailable):
        await claims.list()
    assert held(claims) == {"gpu-1": ["a"]}


async def test_an_api_server_that_is_away_is_asked_once_a_look() -> None:
    """Each question takes as long as its time-out, and the loop over the cards waits for it."""
    api = Api(*(claim(name, f"gpu-{name}") for name in "abc"))
    claims = ClaimList(api, POOL)  # type: ignore[arg-type]
    await claims.list()
    api.down = True
    assert not await claims.refresh(frozenset({"uid-a", "uid-b", "uid-c"}))
    assert len(api.gets) == 1
    assert held(claims) == {"gpu-a": ["a"], "gpu-b": ["b"], "gpu-c": ["c"]}


async def test_a_long_wait_is_looked_at_ever_less_often(clock: list[float]) -> None:
    api = Api(claim("a", "gpu-1"))
    claims = ClaimList(api, POOL)  # type: ignore[arg-type]
    await claims.list()
    for _ in range(600):
        await claims.refresh(frozenset({"uid-a"}))
        clock[0] += 1
    assert 15 <= len(api.gets) <= 30
