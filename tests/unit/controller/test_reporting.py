"""What the status of a policy is composed of where the parts compete for room."""

import datetime as dt
from dataclasses import replace
from typing import Any

import pytest

from gpupolicy.api.conditions import Reason
from gpupolicy.controller import reporting
from gpupolicy.controller.judging import Case, with_refusal
from gpupolicy.controller.world import World
from gpupolicy.core import acceptance, classes, policies
from gpupolicy.core.classes import LiveClass
from gpupolicy.core.refusals import Refusal

NOW = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


def status(spec: dict[str, Any], lacking: Refusal | None = None) -> Any:
    """The status of a policy on a cluster without nodes."""
    world = World()
    world.put_policy({"metadata": {"name": "p", "uid": "u", "resourceVersion": "1"}, "spec": spec})
    entry = world.policies["p"]
    case = Case(entry, acceptance.Acceptance(), policies.view(entry.policy))
    case = replace(case, wishes=classes.desired(entry.policy))
    if lacking is not None:
        case = with_refusal(case, lacking)
    return reporting.policy_status(case, [], world, cases={"p": case}, dropped={}, now=NOW)


@pytest.mark.parametrize("mode", ["Apply", "Plan"])
@pytest.mark.parametrize("count", [1, 16])
def test_many_classes_do_not_crowd_out_the_queues(mode: str, count: int) -> None:
    offers = [{"deviceClassName": f"c{i}", "extendedResourceName": f"x.com/c{i}"} for i in range(count)]
    found = [e.name for e in status({"offers": offers, "rollout": {"mode": mode}}).examples]

    assert len(found) <= reporting.EXAMPLE_LIMIT
    assert found[-2:] == ["kueue", "kueue-configuration"]
    assert found[0] == ("DeviceClass c0" if mode == "Plan" else "c0-limits")


def test_where_nothing_can_be_queued_the_room_is_for_others() -> None:
    offers = [{"deviceClassName": f"{'c' * 64}{i}"} for i in range(16)]

    assert len(status({"offers": offers}).examples) == reporting.EXAMPLE_LIMIT


def test_findings_stand_in_the_condition_and_refuse_nothing() -> None:
    said = {
        c.type: (c.status, c.reason)
        for c in status({"offers": [{"deviceClassName": n} for n in "ab"]}).conditions
    }

    assert said["Reviewed"] == ("False", "QuotaName")
    assert said["Accepted"] == ("True", "Accepted")


def test_what_cannot_stand_in_the_cluster_does_not_say_that_nothing_is_touched() -> None:
    """Cards are planned as if it stood, so what is told of them must stay true."""
    conditions = status({}, Refusal(Reason.INVALID_POLICY, "there is no namespace x")).conditions
    said = {c.type: (c.status, c.reason, c.message) for c in conditions}

    assert said["Accepted"] == said["Ready"] == ("False", "InvalidPolicy", "there is no namespace x")
    assert said["Applied"] == ("False", "RolloutPending", "no card is assigned yet")
    assert said["Reviewed"][:2] == ("Unknown", "InvalidPolicy")


def live_class(name: str, owner: str) -> LiveClass:
    return LiveClass(name=name, uid=f"uid-{name}", owner_uids=(owner,))


@pytest.mark.parametrize(
    ("mode", "live", "told", "shown"),
    [
        pytest.param("Apply", [live_class("p", "u")], [], ["p"], id="stands"),
        pytest.param("Plan", [live_class("p", "u")], [], ["p"], id="stands-and-is-planned-anew"),
        pytest.param("Plan", [], [], [], id="only-planned"),
        pytest.param("Apply", [], [], [], id="refused-by-the-api-server"),
        pytest.param("Apply", [live_class("p", "other")], [], [], id="of-somebody-else"),
        pytest.param("Apply", [], ["p"], ["p"], id="deleted-by-hand"),
        pytest.param("Apply", [], ["old"], [], id="not-offered-any-more"),
        pytest.param("Plan", [], ["p"], [], id="deleted-by-hand-and-not-healed"),
    ],
)
def test_classes_are_shown_once_they_were_made(
    mode: str, live: list[LiveClass], told: list[str], shown: list[str]
) -> None:
    """A class that is shown and not there counts as deleted by somebody else."""
    world = World()
    for one in live:
        world.put_class(one)
    body = {
        "metadata": {"name": "p", "uid": "u", "resourceVersion": "1"},
        "spec": {"rollout": {"mode": mode}},
        "status": {"deviceClasses": [{"name": name} for name in told]},
    }
    world.put_policy(body)
    entry = world.policies["p"]
    case = Case(entry, acceptance.Acceptance(), policies.view(entry.policy))
    case = replace(case, wishes=classes.desired(entry.policy))

    found = reporting.policy_status(case, [], world, cases={"p": case}, dropped={}, now=NOW)

    assert [c.name for c in found.device_classes] == shown
