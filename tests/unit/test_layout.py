"""The shape of the repository: what must not exist, and how large a module may grow."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted(p for p in (ROOT / "operator").rglob("*.py") if not p.name.endswith("_pb2.py"))


@pytest.mark.parametrize("name", ["__init__.py", "conftest.py"])
def test_the_source_root_is_not_a_package(name: str) -> None:
    """`operator/__init__.py` would replace the standard library's operator for every program started here."""
    assert not (ROOT / "operator" / name).exists()


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT / "operator")))
def test_modules_stay_small(path: Path) -> None:
    """A module of more than 600 lines is two modules."""
    assert len(path.read_text().splitlines()) <= 600


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT / "operator")))
def test_modules_say_what_they_are(path: Path) -> None:
    """The module docstring is where a newcomer starts."""
    assert ast.get_docstring(ast.parse(path.read_text()))


def test_no_module_has_a_name_that_says_nothing() -> None:
    """A noun that any code could live under is where code gets lost."""
    vague = {"utils", "util", "helpers", "helper", "manager", "base", "common", "misc"}
    assert [p for p in SOURCES if p.stem in vague] == []
