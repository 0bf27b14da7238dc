"""What the processes expose: the tables are the registries, and dashboard, alerts and documentation use nothing else."""

import datetime as dt
import json
import logging
import re
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from gpupolicy.adapters import logs, metrics
from gpupolicy.adapters.kubeletplugin import claims as wire
from gpupolicy.adapters.metrics import AGENT, CONTROLLER, OPEN, Descriptor, Kind, Metrics
from gpupolicy.adapters.nvml.errors import Fault, NvmlError
from gpupolicy.agent import changes
from gpupolicy.agent.metrics import MeasuredCards, MeasuredClaims, MeasuredLoop
from gpupolicy.api.conditions import Reason
from gpupolicy.controller import events
from gpupolicy.controller import metrics as controller_metrics
from gpupolicy.controller.queue import WorkQueue
from gpupolicy.controller.reconcile import Key
from gpupolicy.controller.world import World
from gpupolicy.core.inventory import Placement
from gpupolicy.core.refusals import Refusal
from tests.paths import ROOT

TABLES = {"controller": CONTROLLER, "agent": AGENT}
ALL = {d.name: d for d in (*CONTROLLER, *AGENT)}
FILES = ROOT / "charts/gpupolicy/files"


def built(descriptors: tuple[Descriptor, ...]) -> Metrics:
    observed = {d.name: list for d in descriptors if d.kind is Kind.OBSERVED}
    return Metrics(descriptors, version="1.2.3", observed=observed)


def samples(measured: Metrics) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    families = text_string_to_metric_families(measured.exposition().decode())
    return {(s.name, frozenset(s.labels.items())): s.value for f in families for s in f.samples}


def value(measured: Metrics, name: str, **labels: str) -> float:
    return samples(measured)[name, frozenset(labels.items())]


@pytest.mark.parametrize("table", TABLES)
def test_what_is_registered_is_what_the_table_says(table: str) -> None:
    families = {f.name: f for f in text_string_to_metric_families(built(TABLES[table]).exposition().decode())}
    own = {name for name in families if name.startswith("gpupolicy_")}
    assert own == {d.name.removesuffix("_total") for d in TABLES[table]}
    assert all(name.startswith("process_") for name in set(families) - own)


@pytest.mark.parametrize("descriptor", ALL.values(), ids=list(ALL))
def test_names_follow_the_conventions(descriptor: Descriptor) -> None:
    assert re.fullmatch(r"gpupolicy_[a-z0-9_]+", descriptor.name)
    assert descriptor.name.endswith("_total") == (descriptor.kind is Kind.COUNTER)
    assert descriptor.text.endswith(".")
    if descriptor.kind is Kind.HISTOGRAM:
        assert descriptor.name.endswith("_seconds")
        assert list(descriptor.buckets) == sorted(descriptor.buckets)
    forbidden = {"node", "pod", "namespace", "claim", "error", "message", "uuid"}
    assert not forbidden & set(descriptor.labels)
    unbounded = {label for label, values in descriptor.labels.items() if values == OPEN}
    assert unbounded <= {"policy", "version", "python"}


@pytest.mark.parametrize("table", TABLES)
def test_series_of_known_values_exist_from_the_start(table: str) -> None:
    found = samples(built(TABLES[table]))
    for descriptor in TABLES[table]:
        if descriptor.kind is Kind.COUNTER:
            expected = 1
            for values in descriptor.labels.values():
                expected *= len(values)
            series = {key: number for key, number in found.items() if key[0] == descriptor.name}
            assert len(series) == expected
            assert set(series.values()) == {0.0}


def test_faults_are_those_of_the_nvml_adapter() -> None:
    assert set(metrics.FAULTS) == {fault.value for fault in Fault}


def test_reasons_of_a_missed_layout_are_those_that_changes_give() -> None:
    of_the_loop = {Reason.WAITING_FOR_SLICES, Reason.WAITING_FOR_CLAIMS}
    of_changes = {*changes._REASONS.values(), Reason.DEGRADED, Reason.LEDGER_CORRUPT}
    listed = ALL["gpupolicy_node_apply_errors_total"].labels["reason"]
    assert set(listed) == {reason.value for reason in of_the_loop | of_changes}


def used_in(expression: str) -> set[str]:
    """Return the names of our metrics in a PromQL expression, without the suffixes of histograms."""
    names = re.findall(r"\bgpupolicy_[a-z0-9_]+", expression)
    return {n if n in ALL else re.sub(r"_(bucket|sum|count)$", "", n) for n in names}


def dashboard_expressions() -> list[str]:
    dashboard = json.loads((FILES / "dashboard.json").read_text())
    return [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]


def alerts() -> list[dict[str, object]]:
    return [
        rule
        for group in yaml.safe_load((FILES / "rules.yaml").read_text())["groups"]
        for rule in group["rules"]
    ]


EXPRESSIONS = [*dashboard_expressions(), *(str(rule["expr"]) for rule in alerts())]


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_dashboard_and_alerts_use_metrics_that_exist(expression: str) -> None:
    used = used_in(expression)
    assert used <= set(ALL)
    assert used or "process_" in expression
    for name, matcher in re.findall(r"(gpupolicy_[a-z0-9_]+)\{([^}]*)\}", expression):
        (base,) = used_in(name)
        for label, wanted in re.findall(r'(\w+)="([^"]*)"', matcher):
            assert wanted in ALL[base].labels[label]


def test_every_metric_is_documented() -> None:
    page = (ROOT / "docs/metrics.md").read_text()
    assert all(f"`{name}`" in page for name in ALL)


@pytest.mark.parametrize("rule", alerts(), ids=lambda rule: rule["alert"])
def test_an_alert_says_what_to_do(rule: dict[str, dict[str, str]]) -> None:
    assert rule["labels"]["severity"] in {"info", "warning", "critical"}
    assert rule["annotations"]["summary"].endswith(".")
    assert rule["annotations"]["description"].endswith(".")


class Cards:
    """Answers or fails as told."""

    def __init__(self, error: NvmlError | None) -> None:
        self.error = error

    async def destroy_instance(self, *_: object, **__: object) -> bool:
        if self.error:
            raise self.error
        return True


@pytest.mark.parametrize("error", [None, NvmlError("nvmlX", 19, "in use")], ids=["success", "in-use"])
async def test_changes_of_cards_are_counted_and_pass_through(error: NvmlError | None) -> None:
    measured = built(AGENT)
    cards = MeasuredCards(Cards(error), measured)  # type: ignore[arg-type]
    if error:
        with pytest.raises(NvmlError) as raised:
            await cards.destroy_instance("GPU-1", 19, Placement(0, 1))
        assert raised.value is error
    else:
        assert await cards.destroy_instance("GPU-1", 19, Placement(0, 1))
    result = "error" if error else "success"
    name = "gpupolicy_partition_operations_total"
    assert value(measured, name, operation="destroy_instance", result=result) == 1
    assert sum(v for (n, _), v in samples(measured).items() if n == name) == 1
    assert value(measured, "gpupolicy_nvml_errors_total", fault="InUse") == (1 if error else 0)
    timing = "gpupolicy_partition_operation_duration_seconds_count"
    assert value(measured, timing, operation="destroy_instance") == 1


def test_attempts_on_cards_are_counted_by_what_came_of_them() -> None:
    measured = built(AGENT)
    loop = MeasuredLoop(measured)
    loop.looked(0.2)
    loop.applied(1.5, None)
    loop.applied(3.0, Refusal(Reason.GPU_UNHEALTHY, "gone"))
    loop.applied(3.0, Refusal(Reason.GPU_UNHEALTHY, "gone"))
    loop.drifted()
    assert value(measured, "gpupolicy_node_reconcile_time_seconds_sum") == 0.2
    assert value(measured, "gpupolicy_node_apply_total", result="success") == 1
    assert value(measured, "gpupolicy_node_apply_total", result="error") == 2
    assert value(measured, "gpupolicy_node_apply_errors_total", reason="GpuUnhealthy") == 2
    assert value(measured, "gpupolicy_node_apply_errors_total", reason="Degraded") == 0
    assert value(measured, "gpupolicy_node_apply_duration_seconds_sum") == 7.5
    assert value(measured, "gpupolicy_node_drift_total") == 1


@pytest.mark.parametrize(
    ("status", "code"), [(200, "2xx"), (201, "2xx"), (404, "4xx"), (503, "5xx"), (0, "none")]
)
@pytest.mark.parametrize("table", TABLES)
def test_requests_are_counted_by_class_of_answer(table: str, status: int, code: str) -> None:
    measured = built(TABLES[table])
    measured.request("PATCH", status, 0.1)
    name = "gpupolicy_api_requests_total"
    assert value(measured, name, method="PATCH", code=code) == 1
    assert sum(v for (n, _), v in samples(measured).items() if n == name) == 1


class Client:
    """Takes events."""

    async def create_event(self, *_: object, **__: object) -> None:
        pass


async def test_only_drift_counts_as_drift() -> None:
    measured = controller_metrics.for_controller(World(), WorkQueue[Key](), lambda: True)
    poster = controller_metrics.MeasuredPoster(Client(), "me", measured)  # type: ignore[arg-type]
    policy = events.Subject.policy("train", "u")
    now = dt.datetime.now(dt.UTC)
    await poster.post(events.class_changed(policy, "train", ["spec.selectors"]), now)
    assert value(measured, "gpupolicy_drift_total") == 0
    await poster.post(events.class_healed(policy, "train", ["spec.selectors"]), now)
    await poster.post(events.class_healed(policy, "train", []), now)
    assert value(measured, "gpupolicy_drift_total") == 2


class Handler:
    """Prepares claim a and refuses claim b."""

    async def prepare(self, refs: list[wire.ClaimRef]) -> dict[str, wire.PreparedClaim | wire.ClaimError]:
        refused = wire.ClaimError("no")
        return {r.uid: wire.PreparedClaim(devices=()) if r.uid == "a" else refused for r in refs}

    async def unprepare(self, refs: list[wire.ClaimRef]) -> dict[str, wire.ClaimError | None]:
        return {r.uid: None if r.uid == "a" else wire.ClaimError("no") for r in refs}


class TalkativeHandler(Handler):
    """Logs a line for each claim."""

    async def prepare(self, refs: list[wire.ClaimRef]) -> dict[str, wire.PreparedClaim | wire.ClaimError]:
        for ref in refs:
            logging.getLogger("gpupolicy.test").warning("claim %s", ref.uid)
        return await super().prepare(refs)


async def test_what_is_logged_of_one_call_has_one_id(caplog: pytest.LogCaptureFixture) -> None:
    caplog.handler.setFormatter(logs.JsonFormatter())
    handler = MeasuredClaims(TalkativeHandler(), built(AGENT))
    refs = [wire.ClaimRef(namespace="n", name=uid, uid=uid) for uid in ("a", "b", "c")]
    await handler.prepare(refs[:2])
    await handler.prepare(refs[2:])
    a, b, c = map(json.loads, caplog.text.splitlines())
    assert a["operation"] == b["operation"] != c["operation"]
    assert {line["subject"] for line in (a, b, c)} == {"prepare"}


async def test_claims_are_counted_one_by_one_and_calls_timed() -> None:
    measured = built(AGENT)
    handler = MeasuredClaims(Handler(), measured)
    refs = [wire.ClaimRef(namespace="n", name=uid, uid=uid) for uid in ("a", "b")]
    assert isinstance((await handler.prepare(refs))["a"], wire.PreparedClaim)
    assert (await handler.unprepare(refs[:1])) == {"a": None}
    assert value(measured, "gpupolicy_dra_prepare_claims_total", result="success") == 1
    assert value(measured, "gpupolicy_dra_prepare_claims_total", result="error") == 1
    assert value(measured, "gpupolicy_dra_unprepare_claims_total", result="success") == 1
    assert value(measured, "gpupolicy_dra_unprepare_claims_total", result="error") == 0
    assert value(measured, "gpupolicy_dra_prepare_duration_seconds_count") == 1


def policy_body(name: str, *, ready: str, gpus: str, devices: int, allocated: int) -> dict[str, object]:
    return {
        "metadata": {"name": name, "uid": name, "resourceVersion": "1"},
        "spec": {},
        "status": {
            "gpus": gpus,
            "devices": devices,
            "allocated": allocated,
            "free": devices - allocated,
            "conditions": [
                {
                    "type": "Ready",
                    "status": ready,
                    "reason": "X",
                    "lastTransitionTime": "2026-01-01T00:00:00Z",
                    "message": "",
                }
            ],
        },
    }


def test_numbers_of_policies_are_those_of_their_status() -> None:
    world, queue = World(), WorkQueue[Key]()
    world.put_policy(policy_body("train", ready="True", gpus="7/8", devices=8, allocated=3))
    world.put_policy(policy_body("infer", ready="False", gpus="0/0", devices=0, allocated=0))
    measured = controller_metrics.for_controller(world, queue, lambda: True)
    assert value(measured, "gpupolicy_policy_ready", policy="train") == 1
    assert value(measured, "gpupolicy_policy_ready", policy="infer") == 0
    assert value(measured, "gpupolicy_policy_gpus", policy="train", state="applied") == 7
    assert value(measured, "gpupolicy_policy_gpus", policy="train", state="selected") == 8
    assert value(measured, "gpupolicy_policy_allocated_devices", policy="train") == 3
    assert value(measured, "gpupolicy_policy_free_devices", policy="train") == 5
    assert value(measured, "gpupolicy_leader") == 1
    world.drop_policy("train", "train")
    assert ("gpupolicy_policy_ready", frozenset({("policy", "train")})) not in samples(measured)


def test_a_run_that_fails_is_an_error_and_no_longer_active() -> None:
    measured = controller_metrics.for_controller(World(), WorkQueue[Key](), lambda: False)

    def fail() -> None:
        with controller_metrics.run(measured, "node"):
            assert value(measured, "gpupolicy_active_workers", controller="node") == 1
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    with controller_metrics.run(measured, "policy"):
        pass
    assert value(measured, "gpupolicy_active_workers", controller="node") == 0
    assert value(measured, "gpupolicy_reconcile_total", controller="node", result="error") == 1
    assert value(measured, "gpupolicy_reconcile_total", controller="policy", result="success") == 1
    assert value(measured, "gpupolicy_reconcile_time_seconds_count", controller="node") == 1


def test_the_dashboard_has_a_fixed_identity_and_a_data_source_to_choose() -> None:
    dashboard = json.loads(Path(FILES / "dashboard.json").read_text())
    assert dashboard["uid"] == "gpupolicy"
    assert [variable["name"] for variable in dashboard["templating"]["list"]] == ["datasource"]
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
