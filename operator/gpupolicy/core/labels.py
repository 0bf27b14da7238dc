"""Label selectors as every Kubernetes API has them, evaluated on a set of labels."""

from collections.abc import Mapping
from dataclasses import dataclass

from gpupolicy.api import wire


@dataclass(frozen=True, slots=True)
class LabelRequirement:
    """One requirement: how the label `key` relates to `values`."""

    key: str
    operator: str
    """In, NotIn, Exists or DoesNotExist."""
    values: tuple[str, ...] = ()

    def holds(self, labels: Mapping[str, str]) -> bool:
        """Whether the labels meet it. As everywhere, NotIn also holds where the label is absent."""
        match self.operator:
            case "In":
                return labels.get(self.key) in self.values
            case "NotIn":
                return labels.get(self.key) not in self.values
            case "Exists":
                return self.key in labels
            case "DoesNotExist":
                return self.key not in labels
        return False

    @property
    def problem(self) -> str | None:
        """What no schema refuses: values that are missing or too many, or an operator that nobody knows."""
        if self.operator in {"In", "NotIn"}:
            return None if self.values else f"{self.operator} on {self.key} needs values"
        if self.operator in {"Exists", "DoesNotExist"}:
            return f"{self.operator} on {self.key} takes no values" if self.values else None
        return f'operator "{self.operator}" on {self.key} is none of In, NotIn, Exists, DoesNotExist'


@dataclass(frozen=True, slots=True)
class LabelSelector:
    """Requirements that must all hold; none selects everything."""

    requirements: tuple[LabelRequirement, ...] = ()

    @classmethod
    def of(cls, selector: wire.LabelSelector) -> "LabelSelector":
        """Read the wire form; a label of `matchLabels` is a requirement with one value."""
        labels = [
            LabelRequirement(key, "In", (value,)) for key, value in sorted(selector.match_labels.items())
        ]
        expressions = [
            LabelRequirement(e.key, e.operator, tuple(e.values)) for e in selector.match_expressions
        ]
        return cls((*labels, *expressions))

    def selects(self, labels: Mapping[str, str]) -> bool:
        """Whether the labels meet all requirements."""
        return all(requirement.holds(labels) for requirement in self.requirements)

    @property
    def problem(self) -> str | None:
        """Why the selector is malformed, or None. A malformed requirement never selects more than it says."""
        return next((r.problem for r in self.requirements if r.problem), None)
