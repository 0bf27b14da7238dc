"""On which nodes a pod may run, as far as its own wishes and the taints of the nodes say.

Not judged: CPU, memory, ports, spreading, affinity to pods. What cannot be judged here excludes no node.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from gpupolicy.core import taints
from gpupolicy.core.labels import LabelRequirement

__all__ = ["exclusions"]

_UNSCHEDULABLE: Final = "node.kubernetes.io/unschedulable"
_KNOWN_OPERATORS: Final = frozenset({"In", "NotIn", "Exists", "DoesNotExist"})


def exclusions(pod: Mapping[str, Any], nodes: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the nodes on which the pod cannot run, each with the first reason in words."""
    found = {}
    for node in nodes:
        reason = _reason(pod.get("spec") or {}, node)
        if reason:
            found[str(node["metadata"]["name"])] = reason
    return found


def _reason(spec: Mapping[str, Any], node: Mapping[str, Any]) -> str:
    labels = node["metadata"].get("labels") or {}
    for key, value in sorted((spec.get("nodeSelector") or {}).items()):
        if labels.get(key) != value:
            return f"nodeSelector {key}={value}"
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    terms = (affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}).get("nodeSelectorTerms")
    if terms and not any(_term_holds(term, labels, node["metadata"]["name"]) for term in terms):
        return "nodeAffinity"
    there = (node.get("spec") or {}).get("taints") or ()
    if (node.get("spec") or {}).get("unschedulable"):
        there = (*there, {"key": _UNSCHEDULABLE, "effect": "NoSchedule"})
    keys = taints.keeping_off(there, spec.get("tolerations") or ())
    return f"taint {keys[0]}" if keys else ""


def _term_holds(term: Mapping[str, Any], labels: Mapping[str, str], name: str) -> bool:
    """Whether one of the alternatives holds; an empty one never does."""
    expressions = [(e, labels) for e in term.get("matchExpressions") or ()]
    expressions += [(e, {"metadata.name": name}) for e in term.get("matchFields") or ()]
    return bool(expressions) and all(
        expression.get("operator") not in _KNOWN_OPERATORS
        or LabelRequirement(
            expression["key"], expression["operator"], tuple(expression.get("values") or ())
        ).holds(where)
        for expression, where in expressions
    )
