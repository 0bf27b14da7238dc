"""A write of a DeviceClass lands on the class that was decided about, or on none."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from gpupolicy.adapters import kube
from gpupolicy.controller import apply
from gpupolicy.core import classes
from gpupolicy.core.classes import DesiredClass, LiveClass
from tests.cluster.cluster import Cluster
from tests.cluster.rest import RestClient
from tests.integration.controller.conftest import CLASSES

pytestmark = pytest.mark.cluster

_numbers = itertools.count(1)
ABSENT_POLICY = "00000000-0000-0000-0000-000000000000"


@pytest.fixture
async def client(cluster: Cluster) -> AsyncIterator[kube.Kube]:
    async with kube.Kube.connect(str(cluster.control_plane.admin_kubeconfig)) as made:
        yield made


@pytest.fixture
def admin(cluster: Cluster) -> RestClient:
    return cluster.control_plane.admin


@pytest.fixture
def wish(admin: RestClient) -> Iterator[DesiredClass]:
    """A class whose name nobody has yet."""
    made = DesiredClass(name=f"written-{next(_numbers)}", policy="p", extended_resource_name="example.com/w")
    yield made
    admin.call("DELETE", f"{CLASSES}/{made.name}")


def manifest(wish: DesiredClass) -> dict[str, Any]:
    """The class as it is applied; without its owner, or the garbage collector would take it away."""
    body = classes.manifest(wish, policy_uid=ABSENT_POLICY, changed_at="2026-01-02T00:00:00Z")
    del body["metadata"]["ownerReferences"]
    return body


def foreign(admin: RestClient, name: str) -> dict[str, Any]:
    spec = {"selectors": [{"cel": {"expression": "true"}}], "extendedResourceName": "example.com/theirs"}
    made: dict[str, Any] = admin.create(CLASSES, {"metadata": {"name": name}, "spec": spec})
    return made


async def test_a_class_that_somebody_made_meanwhile_is_not_overwritten(
    client: kube.Kube, admin: RestClient, wish: DesiredClass
) -> None:
    """The watch that tells of it may be late, or broken for minutes."""
    theirs = foreign(admin, wish.name)

    with pytest.raises(kube.Conflict):
        await apply.device_class(client, manifest(wish), None)

    assert admin.get(f"{CLASSES}/{wish.name}") == theirs


async def test_a_class_that_took_the_name_of_ours_is_not_overwritten(
    client: kube.Kube, admin: RestClient, wish: DesiredClass
) -> None:
    ours, _ = await apply.device_class(client, manifest(wish), None)
    admin.delete(f"{CLASSES}/{wish.name}")
    theirs = foreign(admin, wish.name)

    with pytest.raises(kube.Conflict):
        await apply.device_class(client, manifest(wish), ours)

    assert admin.get(f"{CLASSES}/{wish.name}") == theirs


async def test_a_mark_for_a_class_that_was_made_anew_is_not_set(
    client: kube.Kube, admin: RestClient, wish: DesiredClass
) -> None:
    before = LiveClass.of(foreign(admin, wish.name))
    admin.delete(f"{CLASSES}/{wish.name}")
    anew = foreign(admin, wish.name)

    with pytest.raises(kube.Conflict):
        await apply.annotate_class(client, before, classes.TAKEN_BY_ANNOTATION, "c")

    assert admin.get(f"{CLASSES}/{wish.name}") == anew


async def test_a_class_that_is_gone_is_not_made_in_the_place_of_another(
    client: kube.Kube, admin: RestClient, wish: DesiredClass
) -> None:
    ours, _ = await apply.device_class(client, manifest(wish), None)
    admin.delete(f"{CLASSES}/{wish.name}")

    with pytest.raises(kube.Conflict):
        await apply.device_class(client, manifest(wish), ours)


async def test_our_own_class_of_which_the_watch_is_late_is_no_conflict(
    client: kube.Kube, admin: RestClient, wish: DesiredClass
) -> None:
    first, _ = await apply.device_class(client, manifest(wish), None)
    again, _ = await apply.device_class(client, manifest(wish), None)

    assert again == first


async def test_what_somebody_changed_in_ours_is_taken_back(
    client: kube.Kube, admin: RestClient, wish: DesiredClass
) -> None:
    await apply.device_class(client, manifest(wish), None)
    edit = {"spec": {"selectors": [{"cel": {"expression": "true"}}]}}
    live = LiveClass.of(admin.patch(f"{CLASSES}/{wish.name}", edit))

    healed, _ = await apply.device_class(client, manifest(wish), live)

    assert healed.expressions == (wish.expression,)
    assert healed.uid == live.uid
