"""Read what a user gives as a file or on standard input: JSON or YAML, one document or many."""

import json
import sys
from pathlib import Path
from typing import Any

from gpupolicy.cli.main import CommandError

__all__ = ["read_documents"]


def read_documents(path: str) -> list[Any]:
    """Return the documents of a file, `-` for standard input.

    Raises:
        CommandError: when it cannot be read, or is neither JSON nor YAML.
    """
    try:
        text = sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8")
        # Standard input may pass foreign bytes through as surrogates, which no parser takes.
        text.encode("utf-8")
    except OSError as error:
        raise CommandError(f"{path}: {error.strerror or error}") from error
    except UnicodeError as error:
        raise CommandError(f"{path}: it is not text in UTF-8") from error
    name = "standard input" if path == "-" else path
    if text.lstrip()[:1] in ("{", "["):
        # JSON is YAML, but read a hundred times faster as what it is.
        try:
            return [json.loads(text)]
        except RecursionError as error:
            raise CommandError(f"{name}: it is nested too deeply") from error
        except ValueError:
            pass
    return _yaml(text, name)


def _yaml(text: str, name: str) -> list[Any]:
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        return list(yaml.load_all(text, Loader=loader))
    except yaml.YAMLError as error:
        raise CommandError(f"{name}: neither JSON nor YAML: {error}") from error
    except RecursionError as error:
        raise CommandError(f"{name}: it is nested too deeply") from error
