"""Events, health answers, log lines, the command line."""

import asyncio
import json
import logging
import sys
from collections.abc import Callable

import aiohttp
import pytest

from gpupolicy.adapters import logs
from gpupolicy.api.conditions import Condition
from gpupolicy.controller import app, events, health, metrics
from gpupolicy.controller.queue import WorkQueue
from gpupolicy.controller.world import World

POLICY = events.Subject.policy("p", "u")


def condition(status: str, reason: str, message: str = "") -> Condition:
    return Condition.model_validate(
        {"type": "Ready", "status": status, "reason": reason, "message": message, "lastTransitionTime": "t"}
    )


@pytest.mark.parametrize(
    ("status", "reason", "type_"),
    [
        pytest.param("True", "Ready", "Normal", id="ready"),
        pytest.param("False", "RolloutPending", "Normal", id="under-way"),
        pytest.param("False", "Planned", "Normal", id="planned"),
        pytest.param("False", "InvalidLayout", "Warning", id="trouble"),
        pytest.param("Unknown", "Stale", "Warning", id="unknown"),
    ],
)
def test_a_condition_is_a_warning_when_somebody_should_look(status: str, reason: str, type_: str) -> None:
    event = events.condition_changed(POLICY, condition(status, reason))

    assert (event.type, event.reason, event.note) == (type_, reason, reason)


@pytest.mark.parametrize(
    ("claims", "type_", "text"),
    [
        pytest.param([], "Normal", "policy p is gone; 2 card(s) are let go", id="nobody"),
        pytest.param(
            ["a/b"], "Warning", "still held by a/b, which keep their devices until they end", id="somebody"
        ),
    ],
)
def test_the_end_of_a_policy_names_who_still_holds(claims: list[str], type_: str, text: str) -> None:
    event = events.policy_gone(events.Subject.node("n", "u"), "p", 2, claims)

    assert event.type == type_
    assert text in event.note


def test_reasons_of_events_are_words_of_their_own() -> None:
    assert all(r.value.isalpha() and r.value[0].isupper() for r in events.EventReason)


@pytest.mark.parametrize(
    ("alive", "ready", "answers"),
    [
        pytest.param(None, None, (200, 200), id="well"),
        pytest.param("stuck", None, (503, 200), id="dead"),
        pytest.param(None, "not read yet", (200, 503), id="not-ready"),
    ],
)
async def test_health_says_what_is_wrong(
    alive: str | None, ready: str | None, answers: tuple[int, int]
) -> None:
    checks = health.Checks(alive={"work": lambda: alive}, ready={"copies": lambda: ready})
    measured = metrics.for_controller(World(), WorkQueue(), lambda: True)
    server = health.HealthServer(checks, measured, host="127.0.0.1", port=0)
    bound: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    await server.start(bound.set_result)
    try:
        port = await bound
        async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:
            got = []
            for path, problem in (("/healthz", alive), ("/readyz", ready)):
                async with session.get(path) as answer:
                    got.append(answer.status)
                    assert (problem or "ok") in await answer.text()
            async with session.get("/metrics") as answer:
                assert answer.content_type == "text/plain"
                assert "gpupolicy_leader 1.0" in await answer.text()
    finally:
        await server.stop()

    assert tuple(got) == answers


def test_a_log_line_is_one_json_object() -> None:
    def record(fill: Callable[[], object]) -> logging.LogRecord:
        try:
            fill()
        except ValueError:
            return logging.LogRecord("a.b", logging.ERROR, "f", 1, "x %s\ny", ("1",), sys.exc_info())
        return logging.LogRecord("a.b", logging.INFO, "f", 1, "ünïcode %s", ("1",), None)

    plain = json.loads(logs.JsonFormatter().format(record(lambda: None)))
    failed = logs.JsonFormatter().format(record(lambda: int("x")))

    assert (plain["level"], plain["logger"], plain["message"]) == ("info", "a.b", "ünïcode 1")
    assert "\n" not in failed
    assert "ValueError" in json.loads(failed)["exception"]


def test_the_command_line_has_a_default_for_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POD_NAMESPACE", "somewhere")
    monkeypatch.setenv("POD_NAME", "controller-0")

    options, level = app._parse([])

    assert (options.namespace, options.health_port, level) == ("somewhere", 8080, "info")
    assert options.identity.startswith("controller-0_")
    assert app._parse([])[0].identity != options.identity


def test_a_missing_kubeconfig_is_one_line_and_an_exit_code(
    tmp_path: object, capsys: pytest.CaptureFixture[str]
) -> None:
    root = logging.getLogger()
    before = list(root.handlers), root.level, logging.getLogger("gpupolicy").level
    try:
        assert app.main(["--kubeconfig", f"{tmp_path}/nowhere", "--health-port", "0"]) == 2
    finally:
        root.handlers, root.level = before[0], before[1]
        logging.getLogger("gpupolicy").setLevel(before[2])


@pytest.mark.parametrize("option", ["--clean-up-seconds", "--stale-after-seconds"])
@pytest.mark.parametrize("value", ["nan", "inf", "-1", "86401", "soon", ""])
def test_a_time_that_is_none_is_refused(option: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        app._parse([f"{option}={value}"])
    said = capsys.readouterr().err
    assert f"{option}: {value!r} is no time" in said
    assert "seconds from 0 to 86400" in said


def told(*pairs: tuple[str, str, str]) -> list[Condition]:
    return [condition(status, reason).model_copy(update={"type": type_}) for type_, status, reason in pairs]


@pytest.mark.parametrize(
    ("before", "after", "count"),
    [
        pytest.param([], ("Ready", "False", "RolloutPending"), 1, id="first-word"),
        pytest.param(
            [("Ready", "False", "RolloutPending")], ("Ready", "False", "WaitingForSlices"), 0, id="to"
        ),
        pytest.param(
            [("Ready", "False", "WaitingForSlices")], ("Ready", "False", "RolloutPending"), 0, id="and-fro"
        ),
        pytest.param([("Ready", "False", "RolloutPending")], ("Ready", "True", "Ready"), 1, id="arrived"),
        pytest.param([("Ready", "True", "Ready")], ("Ready", "False", "WaitingForSlices"), 1, id="set-out"),
        pytest.param(
            [("Ready", "False", "RolloutPending")], ("Ready", "False", "Degraded"), 1, id="into-trouble"
        ),
        pytest.param(
            [("Ready", "False", "Degraded")], ("Ready", "False", "RolloutPending"), 1, id="out-of-trouble"
        ),
        pytest.param(
            [("Ready", "False", "Degraded")], ("Ready", "False", "Degraded"), 0, id="only-the-message"
        ),
        pytest.param(
            [("Ready", "False", "RolloutPending")], ("Ready", "False", "Planned"), 1, id="planned-instead"
        ),
        pytest.param([("Applied", "True", "Applied")], ("Applied", "False", "Degraded"), 0, id="no-summary"),
        pytest.param([("Reviewed", "True", "Reviewed")], ("Reviewed", "False", "QuotaName"), 1, id="finding"),
        pytest.param(
            [("Reviewed", "False", "QuotaName")], ("Reviewed", "True", "Reviewed"), 0, id="finding-is-gone"
        ),
    ],
)
def test_which_changes_of_a_policy_are_events(
    before: list[tuple[str, str, str]], after: tuple[str, str, str], count: int
) -> None:
    assert len(events.worth_telling(told(*before), told(after))) == count
