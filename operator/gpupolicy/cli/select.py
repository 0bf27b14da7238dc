"""Show which devices a CEL selector matches, and why the others do not.

Devices come from the cluster, or with -f from a file of ResourceSlices (a list, one, or several documents, JSON or
YAML) or a map of named devices. Verdicts are those of the scheduler: match, no-match, error, or cannot-tell where
they are not known here. With --new the expression is also judged as the API server would on create; against a
cluster its own verdict, taken with a dry run, stands beside ours.

exit codes:
  0  at least one device matches (with --new and no devices: the expression would be accepted)
  1  no device matches
  2  the arguments or the input cannot be used, or the cluster cannot be reached
  3  the expression is refused, or fails on a device
  4  a verdict is not known here

Examples:
  kubectl gpupolicy select 'device.driver == "gpu.gpupolicy.dev"'
  kubectl get resourceslices -o json | kubectl gpupolicy select "$EXPRESSION" -f - --new
"""

import argparse
import asyncio
import json
from dataclasses import dataclass
from typing import Any, Final

from gpupolicy.adapters.cel import engine
from gpupolicy.adapters.cel.declarations import OLDEST_MINOR, Environment
from gpupolicy.cli.documents import read_documents
from gpupolicy.cli.main import CommandError
from gpupolicy.cli.table import columns
from gpupolicy.core import lint, selection, slice_devices
from gpupolicy.core.lint import Finding
from gpupolicy.core.selection import Admission, Answer, Device, Outcome, Preview

__all__ = ["add_arguments", "run"]

NO_MATCH: Final = 1
REFUSED: Final = 3
UNKNOWN: Final = 4

_DOES_NOT_COMPILE: Final = "the expression does not compile"
_NEWEST_MINOR: Final = Environment().minor


@dataclass(frozen=True, slots=True)
class _Input:
    """What is selected from, and where the verdicts count."""

    devices: tuple[Device, ...]
    problems: tuple[str, ...]
    minor: int
    server_verdict: str | None = None
    """What the API server said to a dry run: "accepted", or its words; None when it was not asked."""


@dataclass(frozen=True, slots=True)
class _Report:
    """Everything there is to show."""

    expression: str
    problem: str
    """Why the expression does not compile, "" when it does."""
    source: _Input
    preview: Preview
    findings: tuple[Finding, ...]
    admission: Admission | None

    @property
    def exit_code(self) -> int:
        refused = self.admission is not None and self.admission.answer is Answer.REJECTED
        if (
            refused
            or self.source.server_verdict not in (None, "accepted")
            or self.preview.count(Outcome.ERROR)
        ):
            return REFUSED
        unsure = self.admission is not None and self.admission.answer is Answer.CANNOT_TELL
        if (unsure and self.source.server_verdict is None) or self.preview.count(Outcome.CANNOT_TELL):
            return UNKNOWN
        if not self.source.devices and self.admission is not None:
            return 0
        return 0 if self.preview.count(Outcome.MATCH) else NO_MATCH


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    parser.add_argument("expression", metavar="EXPRESSION", help="the CEL expression, as in a DeviceClass")
    parser.add_argument(
        "-f", "--filename", metavar="FILE", help="read devices from a file, - for standard input"
    )
    parser.add_argument(
        "-o", "--output", choices=("table", "json", "yaml"), default="table", help="default: table"
    )
    parser.add_argument(
        "--new", action="store_true", help="judge the expression as the API server would on create"
    )
    parser.add_argument(
        "--meant-for",
        choices=("gpu", "mig", "share"),
        help="type of devices that it should select, for the lint",
    )
    parser.add_argument(
        "--kubernetes",
        metavar="1.N",
        help=f"release whose rules apply to a file (default: 1.{_NEWEST_MINOR})",
    )
    parser.add_argument(
        "--list-attributes", action="store_true", help="the feature gate DRAListTypeAttributes is on"
    )
    parser.add_argument("--kubeconfig", metavar="FILE", help="kubeconfig of the cluster")
    parser.add_argument("--context", metavar="NAME", help="context of the kubeconfig")


def run(arguments: argparse.Namespace) -> int:
    """Run the command; return the exit code."""
    expression = arguments.expression
    source = _from_file(arguments) if arguments.filename else asyncio.run(_from_cluster(arguments))
    stored = Environment(minor=source.minor, list_attributes=arguments.list_attributes)
    new = Environment(minor=source.minor, list_attributes=arguments.list_attributes, new=True)
    evaluator = engine.Engine(stored)
    found = selection.preview(expression, source.devices, evaluator)
    findings = lint.lint(expression, source.devices, found, evaluator, meant_for=arguments.meant_for)
    admission = engine.judge(expression, new) if arguments.new else None
    problem = evaluator.problem(expression)
    report = _Report(expression, problem, source, found, findings, admission)
    print(_RENDERERS[arguments.output](report))
    return report.exit_code


def _from_file(arguments: argparse.Namespace) -> _Input:
    collected = slice_devices.collect(read_documents(arguments.filename))
    if not collected.devices and collected.problems:
        raise CommandError(f"{arguments.filename}: {'; '.join(collected.problems)}")
    return _Input(collected.devices, collected.problems, _minor(arguments.kubernetes))


def _minor(text: str | None) -> int:
    if text is None:
        return _NEWEST_MINOR
    major, _, minor = text.removeprefix("v").partition(".")
    number = minor.partition(".")[0]
    if major != "1" or not number.isdecimal() or int(number) < OLDEST_MINOR:
        raise CommandError(
            f"--kubernetes {text}: give a release from 1.{OLDEST_MINOR} on, such as 1.{_NEWEST_MINOR}"
        )
    return int(number)


async def _from_cluster(arguments: argparse.Namespace) -> _Input:
    from gpupolicy.adapters import kube

    try:
        async with kube.Kube.connect(arguments.kubeconfig, arguments.context) as client:
            slices = await client.list(kube.RESOURCE_SLICES)
            version = await client.version()
            verdict = await _server_verdict(client, arguments.expression) if arguments.new else None
    except kube.KubeError as error:
        raise CommandError(f"the cluster cannot be read: {error}; with -f a file is read instead") from error
    collected = slice_devices.collect([{"kind": "ResourceSliceList", "items": list(slices.items)}])
    return _Input(collected.devices, collected.problems, max(version.minor, OLDEST_MINOR), verdict)


async def _server_verdict(client: Any, expression: str) -> str | None:
    """Return what the API server says to a DeviceClass with this expression, without storing one."""
    from gpupolicy.adapters import kube

    body = {
        "metadata": {"generateName": "gpupolicy-select-"},
        "spec": {"selectors": [{"cel": {"expression": expression}}]},
    }
    try:
        await client.create(kube.DEVICE_CLASSES, body, dry_run=True)
    except kube.Invalid as error:
        return "; ".join(cause.message for cause in error.causes if cause.message) or error.message
    except kube.Forbidden:
        # The verdict is a favour; reading slices was the task.
        return None
    return "accepted"


def _table(report: _Report) -> str:
    lines = [] if report.source.devices else ["no devices to select from"]
    if report.problem:
        # What does not compile says the same of every device: once is enough.
        lines.append(f"{_DOES_NOT_COMPILE}: {report.problem}")
    elif report.source.devices:
        rows = [("DEVICE", "NODE", "DRIVER", "VERDICT", "REASON")]
        rows += [
            (
                device.name,
                device.node or "-",
                device.driver,
                verdict.outcome.value,
                verdict.reason.split("\n")[0],
            )
            for device, verdict in zip(report.source.devices, report.preview.verdicts, strict=True)
        ]
        lines += [*columns(rows), "", report.preview.message]
    lines += [f"{finding.reason}: {finding.message}" for finding in report.findings]
    lines += [f"not read: {problem}" for problem in report.source.problems]
    lines += _admission_lines(report)
    return "\n".join(lines)


def _admission_lines(report: _Report) -> list[str]:
    if report.admission is None:
        return []
    admission = report.admission
    line = f"as a new expression: {admission.answer}"
    if admission.estimated_cost is not None:
        line += f", estimated cost {admission.estimated_cost}"
    lines = [line]
    if admission.reason and admission.reason != report.problem:
        lines.append(admission.reason)
    if report.source.server_verdict is not None:
        lines.append(f"the API server says: {report.source.server_verdict}")
    return lines


def _document(report: _Report) -> dict[str, Any]:
    document: dict[str, Any] = {
        "expression": report.expression,
        "devices": [
            {
                "name": device.name,
                "node": device.node,
                "pool": device.pool,
                "driver": device.driver,
                "verdict": verdict.outcome.value,
                "reason": verdict.reason,
            }
            for device, verdict in zip(report.source.devices, report.preview.verdicts, strict=True)
        ],
        "summary": {
            "devices": len(report.source.devices),
            **{outcome.value: report.preview.count(outcome) for outcome in Outcome},
            "nodes": dict(report.preview.nodes),
            "drops": [{"clause": drop.clause, "devices": drop.devices} for drop in report.preview.drops],
            "message": report.preview.message,
        },
        "findings": [
            {"reason": finding.reason.value, "message": finding.message} for finding in report.findings
        ],
        "problems": list(report.source.problems),
    }
    if report.admission is not None:
        document["new"] = {
            "answer": report.admission.answer.value,
            "reason": report.admission.reason,
            "line": report.admission.line,
            "column": report.admission.column,
            "estimatedCost": report.admission.estimated_cost,
            "apiServer": report.source.server_verdict,
        }
    return document


def _json(report: _Report) -> str:
    return json.dumps(_document(report), indent=2, ensure_ascii=False)


def _yaml(report: _Report) -> str:
    import yaml

    return yaml.safe_dump(_document(report), sort_keys=False, allow_unicode=True).rstrip()


_RENDERERS = {"table": _table, "json": _json, "yaml": _yaml}
