"""What Prometheus makes of alerts, dashboard and metrics: promtool is the judge, on the rendered chart and real processes.

The series that the alerts are tried on are written by hand. The dashboard is tried on what a controller and an agent
really serve, with the labels that the chart's PodMonitor adds. Their logs are looked at as well.
"""

import json
import re
import subprocess
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.cluster import build
from tests.cluster.cluster import Cluster
from tests.integration.test_chart import objects
from tests.stack import GpuNodeOptions, Stack

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

OBJECTS = ("PrometheusRule", "gpupolicy"), ("ConfigMap", "gpupolicy-dashboard")


def promtool(*arguments: str | Path, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run the pinned promtool."""
    (tool,) = [tool for tool in build.TOOLS if tool.name == build.PROMTOOL]
    program = build.bin_directory([tool]) / "promtool"
    return subprocess.run(
        [program, *arguments], input=stdin, capture_output=True, text=True, check=False, timeout=240
    )


@pytest.fixture(scope="module")
def rendered() -> tuple[dict[str, Any], dict[str, Any]]:
    """The alerts and the dashboard as the chart installs them."""
    found = objects("monitoring.enabled=true")
    rules, dashboard = (found[key] for key in OBJECTS)
    return rules["spec"], json.loads(dashboard["data"]["gpupolicy.json"])


@pytest.fixture(scope="module")
def rules(rendered: tuple[dict[str, Any], dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with the alerts."""
    path = tmp_path_factory.mktemp("rules") / "rules.yaml"
    path.write_text(yaml.safe_dump(rendered[0]))
    return path


@pytest.fixture(scope="module")
def alerts(rendered: tuple[dict[str, Any], dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The alerts by name."""
    return {rule["alert"]: rule for group in rendered[0]["groups"] for rule in group["rules"]}


@pytest.fixture(scope="module")
def expressions(rendered: tuple[dict[str, Any], dict[str, Any]]) -> dict[str, str]:
    """The expressions of the dashboard by panel and target, with what Grafana fills in."""
    return {
        f"{panel['title']} {target['refId']}": target["expr"].replace("$__rate_interval", "5m")
        for panel in rendered[1]["panels"]
        for target in panel["targets"]
    }


def test_prometheus_takes_the_alerts(rules: Path) -> None:
    done = promtool("check", "rules", "--lint=all", "--lint-fatal", rules)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(ALERTS)} rules found" in done.stdout


AGENT = 'namespace="gp",pod="agent-x"'
AGENT_LABELS = {"namespace": "gp", "pod": "agent-x"}


@dataclass(frozen=True)
class Case:
    """Series, one sample a minute, and whether an alert fires on them at a minute."""

    alert: str
    series: Mapping[str, str]
    minute: int
    labels: Mapping[str, str] | None = None
    """Labels of the alert beside its severity; None: it does not fire."""
    value: str = ""
    others: list[Mapping[str, str]] = field(default_factory=list)
    """Labels of more alerts of that name."""


def case(name: str, alert: str, series: Mapping[str, str], minute: int, **more: Any) -> Any:
    return pytest.param(Case(alert, series, minute, **more), id=f"{alert}-{name}")


READY = 'gpupolicy_policy_ready{policy="train"}'
FREE, DEVICES = 'gpupolicy_policy_free_devices{policy="train"}', 'gpupolicy_policy_devices{policy="train"}'
RUNS = 'gpupolicy_reconcile_total{controller="node",result="%s"}'
PREPARES = f'gpupolicy_dra_prepare_claims_total{{{AGENT},result="%s"}}'
UNHEALTHY = f"gpupolicy_node_unhealthy_devices{{{AGENT}}}"
CHANGES = f'gpupolicy_partition_operations_total{{{AGENT},operation="create_instance",result="%s"}}'
DRIFT = 'gpupolicy_drift_total{pod="controller-a"}'
CARDS = f"gpupolicy_node_drift_total{{{AGENT}}}"
TRAIN = {"policy": "train"}

CASES = [
    case("fires", "GpuPolicyNotReady", {READY: "0x40"}, 31, labels=TRAIN),
    case("not-yet", "GpuPolicyNotReady", {READY: "0x40"}, 29),
    case("was-ready-in-between", "GpuPolicyNotReady", {READY: "0x20 1 0x40"}, 40),
    case("ready", "GpuPolicyNotReady", {READY: "1x40"}, 40),
    case(
        "each-policy-for-itself",
        "GpuPolicyNotReady",
        {READY: "0x40", READY.replace("train", "infer"): "0x40", READY.replace("train", "short"): "1x40"},
        31,
        labels=TRAIN,
        others=[{"policy": "infer"}],
    ),
    case("fires", "GpuPolicyExhausted", {FREE: "0x70", DEVICES: "8x70"}, 61, labels=TRAIN),
    case("one-is-free", "GpuPolicyExhausted", {FREE: "1x70", DEVICES: "8x70"}, 61),
    case("has-no-devices", "GpuPolicyExhausted", {FREE: "0x70", DEVICES: "0x70"}, 61),
    case("for-a-while", "GpuPolicyExhausted", {FREE: "1x10 0x70", DEVICES: "8x80"}, 61),
    case(
        "nobody", "GpuPolicyNoLeader", {f'gpupolicy_leader{{pod="{p}"}}': "0x20" for p in "ab"}, 11, labels={}
    ),
    case("all-gone", "GpuPolicyNoLeader", {"up": "1x20"}, 11, labels={}),
    case(
        "a-change-of-leader",
        "GpuPolicyNoLeader",
        {'gpupolicy_leader{pod="a"}': "1x5 0x20", 'gpupolicy_leader{pod="b"}': "0x8 1x20"},
        20,
    ),
    case(
        "fires",
        "GpuPolicyReconcileErrors",
        {RUNS % "error": "0+6x40", RUNS % "success": "0+4x40"},
        35,
        labels={"controller": "node"},
    ),
    case("some-fail", "GpuPolicyReconcileErrors", {RUNS % "error": "0+4x40", RUNS % "success": "0+6x40"}, 35),
    case("nothing-runs", "GpuPolicyReconcileErrors", {RUNS % "error": "3x40", RUNS % "success": "5x40"}, 35),
    case("fires", "GpuPolicyPrepareErrors", {PREPARES % "error": "0+1x30"}, 20, labels=AGENT_LABELS),
    case("two-once", "GpuPolicyPrepareErrors", {PREPARES % "error": "0x5 2x30"}, 15),
    case("all-succeed", "GpuPolicyPrepareErrors", {PREPARES % "success": "0+9x30"}, 20),
    case("fires", "GpuPolicyUnhealthyDevices", {UNHEALTHY: "0x5 7x20"}, 15, labels=AGENT_LABELS, value="7"),
    case("flickers", "GpuPolicyUnhealthyDevices", {UNHEALTHY: "1 1 0 1 1 0 1 1 0 1 1 0 1 1 0"}, 13),
    case("healthy", "GpuPolicyUnhealthyDevices", {UNHEALTHY: "0x20"}, 15),
    case("fires", "GpuPolicyPartitionErrors", {CHANGES % "error": "0x5 1x40"}, 25, labels=AGENT_LABELS),
    case("is-over", "GpuPolicyPartitionErrors", {CHANGES % "error": "0x5 1x60"}, 50),
    case("fires", "GpuPolicyDrift", {DRIFT: "0+1x30"}, 20, labels={"pod": "controller-a"}),
    case("five-times", "GpuPolicyDrift", {DRIFT: "0x5 0+1x4 4x60"}, 20),
    case("is-over", "GpuPolicyDrift", {DRIFT: "0x2 0+1x9 9x120"}, 100),
    case("fires", "GpuPolicyCardsChangedByHand", {CARDS: "0x5 1x20"}, 10, labels=AGENT_LABELS),
    case("never", "GpuPolicyCardsChangedByHand", {CARDS: "1x20"}, 10),
    case("all-succeed", "GpuPolicyPartitionErrors", {CHANGES % "success": "0+1x40"}, 25),
]
ALERTS = {parameters.values[0].alert for parameters in CASES}


def filled(template: str, labels: Mapping[str, str], value: str) -> str:
    """Return an annotation as Prometheus fills it in; a label that the alert has not is an error."""
    text = re.sub(r"\{\{ \$labels\.(\w+) \}\}", lambda match: labels[match[1]], template)
    return text.replace("{{ $value }}", value)


@pytest.mark.parametrize("tried", CASES)
def test_an_alert_fires_when_it_should(
    tried: Case, rules: Path, alerts: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    rule = alerts[tried.alert]
    expected = [
        {
            "exp_labels": {**rule["labels"], **labels},
            "exp_annotations": {
                name: filled(text, labels, tried.value) for name, text in rule["annotations"].items()
            },
        }
        for labels in ([] if tried.labels is None else [tried.labels, *tried.others])
    ]
    test = {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in tried.series.items()],
        "alert_rule_test": [
            {"eval_time": f"{tried.minute}m", "alertname": tried.alert, "exp_alerts": expected}
        ],
    }
    path = tmp_path / "test.yaml"
    path.write_text(
        yaml.safe_dump({"rule_files": [str(rules)], "evaluation_interval": "1m", "tests": [test]})
    )
    done = promtool("test", "rules", path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_is_tried_both_ways(alerts: dict[str, dict[str, Any]]) -> None:
    cases = [parameters.values[0] for parameters in CASES]
    assert {c.alert for c in cases if c.labels is not None} == set(alerts)
    assert {c.alert for c in cases if c.labels is None} == set(alerts)


def test_prometheus_can_read_every_expression_of_the_dashboard(
    expressions: dict[str, str], tmp_path: Path
) -> None:
    recorded = [{"record": f"panel:{n}", "expr": text} for n, text in enumerate(expressions.values())]
    path = tmp_path / "dashboard.yaml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": recorded}]}))
    done = promtool("check", "rules", path)
    assert done.returncode == 0, done.stdout + done.stderr


# What the processes really serve.

POLICY = {
    "apiVersion": "gpupolicy.dev/v1alpha1",
    "kind": "GpuPolicy",
    "metadata": {"name": "train"},
    "spec": {
        "nodeSelector": {"matchLabels": {"gpu-pool": "train"}},
        "sharing": {"strategy": "MIG", "mig": {"layout": [{"profile": "3g.40gb", "count": 2}]}},
    },
}
CARDS_OF_NODE = 8


@dataclass(frozen=True)
class Observed:
    """What an admin can see of the two processes, by their names."""

    metrics: Mapping[str, str]
    lines: Mapping[str, list[dict[str, str]]]


@pytest.fixture(scope="module")
def observed() -> Iterator[Observed]:
    """A controller and an agent, with one policy applied to one node."""
    with Cluster.start() as cluster:
        stack = Stack(cluster)
        stack.install()
        controller = stack.start_controller()
        cards = GpuNodeOptions(name="gpu-01", pool="train", gpus=CARDS_OF_NODE)
        (node,) = stack.add_nodes(cards, agents=False)
        stack.make_cards(cards, node)
        (port,) = cluster.run.reserve_ports(1)
        agent = stack.start_agent(node, f"--health-port={port}")
        stack.apply(POLICY)
        stack.wait_policies("train", seconds=240)
        ports = {"controller": health_port(controller.log), "agent": port}
        served = {}

        def read() -> bool:
            served.update({name: fetch(f"http://127.0.0.1:{ports[name]}/metrics") for name in ports})
            # The count of devices follows the slices within seconds.
            return 'gpupolicy_policy_devices{policy="train"} 16.0' in served["controller"]

        stack.wait(read, "all devices in the controller's metrics", 240)
        logs = {"controller": controller.log, "agent": agent.log}
        lines = {name: [json.loads(line) for line in whole_lines(log)] for name, log in logs.items()}
        yield Observed(served, lines)


def whole_lines(log: Path) -> list[str]:
    """Return the lines of a log without the one that is just being written."""
    return [line for line in log.read_text().splitlines(keepends=True) if line.endswith("\n")]


def health_port(log: Path) -> int:
    """Return the port that a controller says it listens on."""
    found = re.search(r"health on port (\d+)", log.read_text())
    assert found
    return int(found[1])


def fetch(url: str) -> str:
    with urllib.request.urlopen(url, timeout=120) as answer:
        text: str = answer.read().decode()
        return text


@pytest.mark.parametrize("process", ["controller", "agent"])
def test_prometheus_finds_no_fault_in_what_is_served(observed: Observed, process: str) -> None:
    done = promtool("check", "metrics", stdin=observed.metrics[process])
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_panel_of_the_dashboard_shows_something(
    observed: Observed, expressions: dict[str, str], tmp_path: Path
) -> None:
    """A label that no series has would leave a panel empty in silence."""
    series = [
        {"series": name, "values": f"{value}x10"}
        for process, text in observed.metrics.items()
        for name, value in scraped(text, process).items()
    ]
    tests = [
        {"expr": f"count({expression}) > bool 0", "eval_time": "10m", "exp_samples": [{"value": 1}]}
        for expression in expressions.values()
    ]
    path = tmp_path / "test.yaml"
    path.write_text(
        yaml.safe_dump({"tests": [{"interval": "1m", "input_series": series, "promql_expr_test": tests}]})
    )
    done = promtool("test", "rules", path)
    assert done.returncode == 0, done.stdout + done.stderr


def scraped(text: str, process: str) -> dict[str, float]:
    """Return the series of an exposition with the labels that a scrape adds."""
    target = {"job": "gpupolicy-system/gpupolicy", "namespace": "gpupolicy-system", "pod": f"{process}-x"}
    return {
        f"{s.name}{{{','.join(f'{k}={json.dumps(v)}' for k, v in {**s.labels, **target, 'instance': process}.items())}}}": s.value
        for family in text_string_to_metric_families(text)
        for s in family.samples
    }


def test_requests_and_layouts_are_counted(observed: Observed) -> None:
    agent, controller = (scraped(observed.metrics[name], name) for name in ("agent", "controller"))

    def total(series: Mapping[str, float], start: str) -> float:
        return sum(value for name, value in series.items() if name.startswith(start))

    assert total(agent, 'gpupolicy_node_apply_total{result="success"') == CARDS_OF_NODE
    assert total(agent, "gpupolicy_node_apply_errors_total") == 0
    assert total(agent, "gpupolicy_node_reconcile_time_seconds_count") > 1
    for series in (agent, controller):
        assert total(series, 'gpupolicy_api_requests_total{code="2xx",method="PATCH"') >= 2
        assert total(series, 'gpupolicy_api_requests_total{code="2xx",method="GET"') >= 3


def test_lines_of_one_operation_are_found_by_its_id(observed: Observed) -> None:
    told = [line for line in observed.lines["controller"] if "ClassCreated" in line["message"]]
    assert [line["subject"] for line in told] == ["policy train"]
    cards = [line for line in observed.lines["agent"] if line.get("subject", "").startswith("card ")]
    assert len({line["subject"] for line in cards}) == CARDS_OF_NODE
    assert len({line["operation"] for line in [*told, *cards]}) == CARDS_OF_NODE + 1
