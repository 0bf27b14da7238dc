"""Explain why a pod waits for its devices, or say which it has.

For every request of the pod, whether it asks by claim, claim template or extended resource name: how many devices its
class has, how many of them are allocated and free, what the request's own selectors drop clause by clause, and what
the other classes of the same policy have free. The counts are those of `kubectl get gpupolicies`.

Not judged, and said where it matters: constraints between devices, device taints of DeviceTaintRules, CPU, memory and
whatever else a scheduler weighs. The scheduler's own words stand at the end.

exit codes:
  0  the pod is explained
  2  there is no such pod, the arguments cannot be used, or the cluster cannot be read

Examples:
  kubectl gpupolicy explain pod train-0 -n team-a
  kubectl gpupolicy explain pod/train-0 -o json
"""

import argparse
import asyncio
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from gpupolicy.adapters.cel import engine
from gpupolicy.adapters.cel.declarations import OLDEST_MINOR, Environment
from gpupolicy.cli.main import CommandError
from gpupolicy.cli.table import columns
from gpupolicy.core import explanation
from gpupolicy.core.explanation import Explanation, Objects
from gpupolicy.core.sieve import Row
from gpupolicy.core.stock import Stock

if TYPE_CHECKING:
    from gpupolicy.adapters import kube

__all__ = ["add_arguments", "run"]

_KINDS: Final = ("pod", "pods", "po")
_RIGHTS: Final = (
    "it takes the rights to get the pod, and to list resourceclaimtemplates of its namespace, resourceslices, "
    "deviceclasses, and resourceclaims of all namespaces"
)


@dataclass(frozen=True, slots=True)
class _Input:
    """What was read."""

    pod: dict[str, Any]
    objects: Objects
    minor: int
    unread: tuple[str, ...]
    """What may not be read, each with what is not judged for that."""


@dataclass(frozen=True, slots=True)
class _Report:
    """Everything there is to show."""

    name: str
    namespace: str
    found: Explanation
    unread: tuple[str, ...]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    parser.add_argument("words", nargs="+", metavar="pod NAME", help="what to explain: pod NAME, or pod/NAME")
    parser.add_argument(
        "-n", "--namespace", metavar="NAMESPACE", help="namespace of the pod (default: that of the context)"
    )
    parser.add_argument(
        "-o", "--output", choices=("table", "json", "yaml"), default="table", help="default: table"
    )
    parser.add_argument(
        "--list-attributes", action="store_true", help="the feature gate DRAListTypeAttributes is on"
    )
    parser.add_argument("--kubeconfig", metavar="FILE", help="kubeconfig of the cluster")
    parser.add_argument("--context", metavar="NAME", help="context of the kubeconfig")


def run(arguments: argparse.Namespace) -> int:
    """Run the command; return the exit code."""
    name = _pod_name(arguments.words)
    source = asyncio.run(_from_cluster(arguments, name))
    evaluator = engine.Engine(Environment(minor=source.minor, list_attributes=arguments.list_attributes))
    found = explanation.explain(source.pod, source.objects, evaluator)
    print(
        _RENDERERS[arguments.output](_Report(name, source.pod["metadata"]["namespace"], found, source.unread))
    )
    return 0


def _pod_name(words: list[str]) -> str:
    kind, slash, name = words[0].partition("/")
    rest = [name, *words[1:]] if slash else words[1:]
    if kind not in _KINDS or len(rest) != 1 or not rest[0] or "/" in rest[0]:
        raise CommandError(f'"{" ".join(words)}" is no pod: write `explain pod NAME`')
    return rest[0]


async def _from_cluster(arguments: argparse.Namespace, name: str) -> _Input:
    from gpupolicy.adapters import kube

    try:
        async with kube.Kube.connect(arguments.kubeconfig, arguments.context) as client:
            namespace = arguments.namespace or (await client.credentials()).namespace or "default"
            try:
                pod = await client.get(kube.PODS, name, namespace)
            except kube.NotFound as error:
                raise CommandError(
                    f"there is no pod {name} in namespace {namespace}; name another namespace with -n"
                ) from error
            except ValueError as error:
                raise CommandError(str(error)) from error
            return await _read(client, pod, namespace)
    except kube.Forbidden as error:
        raise CommandError(f"the cluster cannot be read: {error}; {_RIGHTS}") from error
    except kube.KubeError as error:
        raise CommandError(f"the cluster cannot be read: {error}") from error


async def _read(client: "kube.Kube", pod: dict[str, Any], namespace: str) -> _Input:
    from gpupolicy.adapters import kube

    unread: list[str] = []

    async def favour(resource: "kube.Resource", lost: str) -> list[dict[str, Any]]:
        """Read what an explanation is good without, if less good."""
        try:
            return list((await client.list(resource)).items)
        except (kube.Forbidden, kube.NotFound) as error:
            unread.append(f"{resource}: {error.message}; {lost}")
            return []

    # The claims last: what they hold was published before.
    slices = await client.list(kube.RESOURCE_SLICES)
    objects = Objects(
        slices=slices.items,
        classes=(await client.list(kube.DEVICE_CLASSES)).items,
        policies=await favour(kube.GPUPOLICIES, "nothing is told of the policies"),
        nodes=await favour(kube.NODES, "on which nodes the pod may run is not judged"),
        namespace_labels=await _namespace_labels(client, namespace),
        templates=(await client.list(kube.RESOURCE_CLAIM_TEMPLATES, namespace)).items,
        claims=(await client.list(kube.RESOURCE_CLAIMS)).items,
    )
    version = await client.version()
    return _Input(pod, objects, max(version.minor, OLDEST_MINOR), tuple(unread))


async def _namespace_labels(client: "kube.Kube", namespace: str) -> dict[str, str] | None:
    from gpupolicy.adapters import kube

    try:
        body = await client.get(kube.NAMESPACES, namespace)
    except (kube.Forbidden, kube.NotFound):
        return None
    return dict(body["metadata"].get("labels") or {})


def _table(report: _Report) -> str:
    found = report.found
    lines = [f"pod {report.namespace}/{report.name} is {found.summary}"]
    if found.held:
        rows = [("REQUEST", "DEVICE", "NODE", "DRIVER")]
        rows += [(held.request, held.device, node or "-", held.driver) for held, node in found.held]
        lines += ["", *columns(rows)]
    if found.rows:
        head = (
            "REQUEST",
            "CLASS",
            "POLICY",
            "ASKED",
            "DEVICES",
            "ALLOCATED",
            "FREE",
            "MATCH",
            "MOST",
            "CAUSE",
        )
        lines += ["", *columns([head, *map(_cells, found.rows)])]
        for row in found.rows:
            lines += ["", *_row_lines(row)]
    remarks = [*found.problems, *found.notes, *(f"not read: {problem}" for problem in report.unread)]
    return "\n".join([*lines, *([""] if remarks else []), *remarks])


def _cells(row: Row) -> tuple[str, ...]:
    asked = row.alternative.count
    node, most = row.matching.most
    return (
        row.alternative.name,
        row.alternative.class_name,
        row.policy or "-",
        "all" if asked is None else str(asked),
        str(row.of_class.devices),
        str(row.of_class.allocated),
        str(row.of_class.free),
        str(row.matching.devices),
        f"{most} on {node}" if node else "-",
        row.cause.value,
    )


def _row_lines(row: Row) -> list[str]:
    lines = [f"{row.alternative.name} ({row.origin}): {row.message}"]
    lines += [f"  `{drop.clause}` drops {drop.devices}" for drop in row.drops]
    if row.nodes and any(row.nodes):
        lines.append(f"  it fits on {_few(row.nodes)}")
    if row.others:
        others = "; ".join(f"{name} {_told(stock)}" for name, stock in row.others)
        lines.append(f"  other classes of {row.policy}: {others}")
    return lines


_FEW: Final = 4


def _few(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - _FEW} more nodes" if len(names) > _FEW else ""
    return ", ".join(names[:_FEW]) + more


def _told(stock: Stock) -> str:
    return f"{stock.free} free" if stock.free else f"{stock.allocated}/{stock.devices} allocated"


def _document(report: _Report) -> dict[str, Any]:
    found = report.found
    return {
        "pod": report.name,
        "namespace": report.namespace,
        "summary": found.summary,
        "held": [
            {
                "request": held.request,
                "driver": held.driver,
                "pool": held.pool,
                "device": held.device,
                "node": node,
            }
            for held, node in found.held
        ],
        "requests": [
            {
                "name": row.alternative.name,
                "origin": row.origin,
                "class": row.alternative.class_name,
                "policy": row.policy,
                "asked": "all" if row.alternative.count is None else row.alternative.count,
                "cause": row.cause.value,
                "message": row.message,
                "ofClass": _stock(row.of_class),
                "matching": _stock(row.matching),
                "drops": [{"clause": drop.clause, "devices": drop.devices} for drop in row.drops],
                "nodes": list(row.nodes),
                "otherClasses": {name: _stock(stock) for name, stock in row.others},
            }
            for row in found.rows
        ],
        "problems": list(found.problems),
        "notes": list(found.notes),
        "notRead": list(report.unread),
    }


def _stock(stock: Stock) -> dict[str, Any]:
    return {
        "devices": stock.devices,
        "allocated": stock.allocated,
        "free": stock.free,
        "tainted": dict(stock.tainted),
        "incomplete": stock.incomplete,
        "freeByNode": dict(stock.nodes),
    }


def _json(report: _Report) -> str:
    return json.dumps(_document(report), indent=2, ensure_ascii=False)


def _yaml(report: _Report) -> str:
    import yaml

    return yaml.safe_dump(_document(report), sort_keys=False, allow_unicode=True).rstrip()


_RENDERERS: Final = {"table": _table, "json": _json, "yaml": _yaml}
