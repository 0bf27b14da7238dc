"""Repairs against somebody who undoes them: the first at once, the others ever less often, and quiet is forgiven."""

import datetime as dt
from dataclasses import replace
from typing import Any

import pytest

from gpupolicy.adapters import kube
from gpupolicy.controller import access, judging, pacing
from gpupolicy.controller.pacing import Pacing
from gpupolicy.controller.queue import WorkQueue
from gpupolicy.controller.reconcile import Key, Reconciler
from gpupolicy.controller.world import World
from gpupolicy.core import acceptance, classes, policies
from gpupolicy.core.classes import LiveClass


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_first_repair_comes_at_once_and_the_others_ever_later() -> None:
    clock = Clock()
    pace = Pacing(clock=clock)
    pauses = []
    for _ in range(12):
        pauses.append(pace.due_seconds("a"))
        clock.now += pauses[-1]
        assert pace.due_seconds("a") == pytest.approx(0)
        pace.note("a")
    assert pauses[:4] == pytest.approx([0, 1, 2, 4])
    assert max(pauses) == pytest.approx(pacing.LONGEST_SECONDS)
    assert pace.due_seconds("b") == 0, "another thing is none of it"


def test_what_was_quiet_for_a_while_is_repaired_at_once_again() -> None:
    clock = Clock()
    pace = Pacing(clock=clock)
    for _ in range(3):
        clock.now += pace.due_seconds("a")
        pace.note("a")
    clock.now += 13
    pace.note("a")
    assert pace.due_seconds("a") == pytest.approx(1)


def test_nothing_is_remembered_for_ever() -> None:
    clock = Clock()
    pace = Pacing(clock=clock)
    for number in range(1000):
        pace.note(number)
        clock.now += 4
    assert len(pace._repairs) <= 2


class Api:
    """DeviceClasses that somebody else puts back each time."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.version = 10
        self.applied = 0

    async def apply(self, _: kube.Resource, body: dict[str, Any], **__: object) -> dict[str, Any]:
        self.applied += 1
        return self.stored(body)

    async def get(self, _: kube.Resource, name: str, namespace: str | None = None) -> dict[str, Any]:
        raise kube.NotFound(404, "NotFound", f"{namespace}/{name}")

    def stored(self, body: dict[str, Any], **spec: Any) -> dict[str, Any]:
        self.version += 1
        meta = {**body["metadata"], "uid": "class-uid", "resourceVersion": str(self.version)}
        return {**body, "metadata": meta, "spec": {**body["spec"], **spec}}


async def test_a_class_that_somebody_fights_over_is_put_right_in_growing_pauses() -> None:
    """And each time there is one event, so these do not flood either."""
    world, queue = World(), WorkQueue[Key]()
    api = Api(world)
    meta = {"name": "p", "uid": "u", "resourceVersion": "1", "creationTimestamp": "2026-01-01T00:00:00Z"}
    world.put_policy({"metadata": meta, "spec": {}})
    entry = world.policies["p"]
    wishes = classes.desired(entry.policy)
    case = judging.Case(entry, acceptance.Acceptance(None), policies.view(entry.policy), wishes=wishes)
    reconciler = Reconciler(
        api,  # type: ignore[arg-type]
        world,
        queue,
        judges=None,  # type: ignore[arg-type]
        poster=None,  # type: ignore[arg-type]
        clock=lambda: dt.datetime(2026, 1, 1, tzinfo=dt.UTC),
    )
    assert [e.reason for e in await reconciler._apply_classes(case)] == ["ClassCreated"]
    posts = []
    for _ in range(5):
        body = classes.manifest(wishes[0], policy_uid="u", changed_at="2026-01-01T00:00:00Z")
        world.put_class(LiveClass.of(api.stored(body, extendedResourceName="example.com/other")))
        posts += await reconciler._apply_classes(case)
    assert [e.reason for e in posts] == ["Drift"]
    assert api.applied == 2
    assert len(queue) == 2, "the policy is looked at again when the pause is over, and names once"


async def test_a_quota_that_somebody_fights_over_is_put_right_in_growing_pauses() -> None:
    """The first edit is put right at once and told; of the next ones only when is told, and that it is soon."""
    world = World()
    api = Api(world)
    quota = {"namespace": "a", "deviceClassName": "p", "devices": 1}
    meta = {"name": "p", "uid": "u", "resourceVersion": "1", "creationTimestamp": "2026-01-01T00:00:00Z"}
    world.put_policy({"metadata": meta, "spec": {"access": {"quotas": [quota]}}})
    entry = world.policies["p"]
    wishes = classes.desired(entry.policy)
    writer = access.AccessWriter(api, world, lambda _: "")  # type: ignore[arg-type]
    assert await writer.write(entry, wishes) == access.Outcome()
    outcomes = []
    for _ in range(5):
        (live,) = world.access.values()
        hard = {**live.spec["hard"], "requests.example.com/x": "9"}
        world.put_access(replace(live, spec={"hard": hard}, resource_version=f"{live.resource_version}0"))
        outcomes.append(await writer.write(entry, wishes))
    assert [[e.reason for e in o.posts] for o in outcomes] == [["Drift"], [], [], [], []]
    assert outcomes[0].again_seconds is None
    assert all(0 < (o.again_seconds or 0) <= 1 for o in outcomes[1:])
    assert api.applied == 2


@pytest.mark.parametrize("longest", [10.0, 300.0])
def test_the_longest_pause_can_be_chosen(longest: float) -> None:
    clock = Clock()
    pace = Pacing(longest_seconds=longest, clock=clock)
    pauses = []
    for _ in range(12):
        pauses.append(pace.due_seconds("a"))
        clock.now += pauses[-1]
        pace.note("a")
    assert max(pauses) == pytest.approx(longest)
