"""Writes every generated file of the repository, or with --check says which are out of date.

The CRDs come from the pydantic models; the chart carries copies that Helm keeps at uninstall. The page of condition
reasons comes from the docstrings of the enumeration, so that no reason is ever without an explanation.
"""

import argparse
import ast
import sys
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "operator"))

from gpupolicy.adapters import metrics  # noqa: E402 -- the path comes first
from gpupolicy.api import schema  # noqa: E402

KEEP = "helm.sh/resource-policy"
HEADER = "# Generated from operator/gpupolicy/api by `make generate`. Do not edit.\n"


def rendered(document: dict[str, object]) -> str:
    """Return one YAML document with long lines left alone, so that a change is a small diff."""
    return HEADER + yaml.safe_dump(document, sort_keys=False, width=120, allow_unicode=True)


def documented_members(path: Path, enumeration: str) -> list[tuple[str, str]]:
    """Return (value, docstring) of every member of an enumeration, in order of the source.

    Raises:
        ValueError: a member without a docstring, named.
    """
    tree = ast.parse(path.read_text())
    body = next(n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == enumeration).body
    members = []
    for statement, following in zip(body, [*body[1:], None], strict=True):
        if not isinstance(statement, ast.Assign) or not isinstance(statement.value, ast.Constant):
            continue
        documented = isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
        if not documented:
            raise ValueError(f"{path.name}: {statement.value.value} has no docstring")
        members.append((str(statement.value.value), " ".join(str(following.value.value).split())))
    return members


def reasons_page() -> str:
    """Return the page that explains every condition type and reason."""
    source = ROOT / "operator/gpupolicy/api/conditions.py"
    lines = [
        "<!-- Generated from operator/gpupolicy/api/conditions.py by `make generate`. -->",
        "# Conditions and reasons",
        "",
    ]
    for title, enumeration in (("Condition", "ConditionType"), ("Reason", "Reason")):
        meaning = "Meaning, and what to do" if enumeration == "Reason" else "Meaning"
        lines += [f"| {title} | {meaning} |", "|---|---|"]
        lines += [f"| `{value}` | {text} |" for value, text in documented_members(source, enumeration)]
        lines.append("")
    return "\n".join(lines)


def metrics_page() -> str:
    """Return the page that lists every metric."""
    lines = [
        "<!-- Generated from operator/gpupolicy/adapters/metrics.py by `make generate`. -->",
        "# Metrics",
        "",
        "Both processes serve `/metrics` on their health port. `monitoring.enabled=true` in the chart adds a",
        "PodMonitor, alerts and a dashboard.",
    ]
    for title, table in (("Controller", metrics.CONTROLLER), ("Agent", metrics.AGENT)):
        lines += ["", f"## {title}", "", "| Metric | Type | Labels | Meaning |", "|---|---|---|---|"]
        for entry in table:
            kind = "gauge" if entry.kind is metrics.Kind.OBSERVED else entry.kind
            labels = ", ".join(
                f"`{name}`" + (f" ({', '.join(values)})" if values else "")
                for name, values in entry.labels.items()
            )
            lines.append(f"| `{entry.name}` | {kind} | {labels} | {entry.text} |")
    return "\n".join(lines) + "\n"


def generated_files() -> dict[Path, str]:
    """Return path and content of every generated file."""
    files: dict[Path, str] = {}
    for name, definition in schema.all_definitions().items():
        files[ROOT / "crds" / name] = rendered(definition)
        kept = {**definition, "metadata": {**definition["metadata"]}}
        kept["metadata"]["annotations"] = {KEEP: "keep"}
        lines = f"  annotations:\n    {KEEP}: keep\n"
        conditional = "  {{- if .Values.crds.keep }}\n" + lines + "  {{- end }}\n"
        text = rendered(kept).replace(lines, conditional, 1)
        body = "{{- if .Values.crds.install }}\n" + text + "{{- end }}\n"
        files[ROOT / "charts/gpupolicy/templates/crds" / name] = body
    files[ROOT / "docs/reasons.md"] = reasons_page()
    files[ROOT / "docs/metrics.md"] = metrics_page()
    return files


def main() -> int:
    """Write or check; return 1 when a check found an outdated file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, fail if a file is out of date")
    check = parser.parse_args().check
    outdated = [
        path for path, text in generated_files().items() if not path.exists() or path.read_text() != text
    ]
    for path in outdated:
        if not check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(generated_files()[path])
        print(("out of date: " if check else "wrote ") + str(path.relative_to(ROOT)))
    if check and outdated:
        print("run `make generate` and commit the result")
    return 1 if check and outdated else 0


if __name__ == "__main__":
    sys.exit(main())
