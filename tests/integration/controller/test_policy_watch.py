"""The watch on policies against a real API server: what kopf does not tell is told all the same."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import pytest

from gpupolicy.adapters import kube
from gpupolicy.controller.policy_watch import PolicyWatch
from tests.cluster.cluster import Cluster
from tests.integration.controller.conftest import POLICIES, World

pytestmark = pytest.mark.cluster


class Heard:
    """What the watch told, in order."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str, bool]] = []
        self.threads: set[int] = set()

    def __call__(self, body: Mapping[str, Any], *, deleted: bool) -> None:
        meta = body["metadata"]
        self.told.append((meta["name"], meta["uid"], deleted))
        self.threads.add(threading.get_ident())

    def has(self, name: str, *, deleted: bool = False) -> bool:
        return any(n == name and d is deleted for n, _, d in self.told)


async def until(what: str, condition: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait until something holds."""
    try:
        async with asyncio.timeout(seconds):
            while not condition():  # noqa: ASYNC110 - what is waited for is a list
                await asyncio.sleep(0.05)
    except TimeoutError as error:
        raise TimeoutError(what) from error


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture
async def watch(installed: Cluster, heard: Heard) -> AsyncIterator[PolicyWatch]:
    """A watch that runs, as the controller's service account."""
    path = str(installed.control_plane.admin_kubeconfig)
    async with kube.Kube.connect(path) as client:
        made = PolicyWatch(client, path, heard)
        task = asyncio.create_task(made.run())
        await asyncio.wait_for(made.synced.wait(), 60.0)
        yield made
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until("kopf to end", lambda: not made.is_alive)


async def test_changes_are_told_in_the_loop_of_the_caller(
    world: World, watch: PolicyWatch, heard: Heard
) -> None:
    await asyncio.to_thread(world.policy, "a", {})
    await until("the policy", lambda: heard.has("a"))
    await until("kopf to run", lambda: watch.is_alive)

    await asyncio.to_thread(world.admin.delete, f"{POLICIES}/a")

    await until("its end", lambda: heard.has("a", deleted=True))
    assert heard.threads == {threading.get_ident()}


async def test_what_was_deleted_while_the_history_was_lost_is_told(
    world: World, watch: PolicyWatch, heard: Heard
) -> None:
    """Kopf lists again and says nothing of what is missing; the phantom stands for such a policy."""
    phantom = {"metadata": {"name": "phantom", "uid": "uid-phantom", "resourceVersion": "1"}, "spec": {}}
    watch._event("ADDED", phantom)
    listed = await asyncio.to_thread(world.policy, "a", {})

    watch._event(None, listed)

    await until("the end of the phantom", lambda: heard.has("phantom", deleted=True))
    assert not heard.has("a", deleted=True)


async def test_nothing_is_written_to_a_policy(world: World, watch: PolicyWatch, heard: Heard) -> None:
    """No annotation, no finalizer: kopf only looks."""
    made = await asyncio.to_thread(world.policy, "a", {})
    await until("the policy", lambda: heard.has("a"))
    await asyncio.to_thread(world.policy, "a", {"priority": 1})
    await until("the change", lambda: [n for n, _, _ in heard.told].count("a") >= 2)
    await asyncio.sleep(1.0)

    found = await asyncio.to_thread(world.admin.get, f"{POLICIES}/a")

    assert found["metadata"].keys() == made["metadata"].keys()
    assert watch.is_alive
