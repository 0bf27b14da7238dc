"""Writes every generated file of the repository, or with --check says which are out of date.

The CRDs come from the pydantic models; the chart carries copies that Helm keeps at uninstall.
"""

import argparse
import sys
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "operator"))

from gpupolicy.api import schema  # noqa: E402 -- the path comes first

HEADER = "# Generated from operator/gpupolicy/api by `make generate`. Do not edit.\n"


def rendered(document: dict[str, object]) -> str:
    """Return one YAML document with long lines left alone, so that a change is a small diff."""
    return HEADER + yaml.safe_dump(document, sort_keys=False, width=120, allow_unicode=True)


def generated_files() -> dict[Path, str]:
    """Return path and content of every generated file."""
    files: dict[Path, str] = {}
    for name, definition in schema.all_definitions().items():
        files[ROOT / "crds" / name] = rendered(definition)
        kept = {**definition, "metadata": {**definition["metadata"]}}
        kept["metadata"]["annotations"] = {"helm.sh/resource-policy": "keep"}
        body = "{{- if .Values.crds.install }}\n" + rendered(kept) + "{{- end }}\n"
        files[ROOT / "charts/gpupolicy/templates/crds" / name] = body
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
