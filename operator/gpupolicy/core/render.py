"""Texts of small things: moments, and objects as YAML for people to read."""

import datetime as dt
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

_PLAIN: Final = re.compile(r"[A-Za-z][A-Za-z0-9_./-]*")
_WORDS: Final = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})
"""What YAML 1.1 reads as a boolean or null."""


def timestamp(moment: dt.datetime) -> str:
    """Return an aware moment as Kubernetes writes times: RFC 3339, UTC, whole seconds. Text order is time order."""
    return moment.astimezone(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_timestamp(text: str) -> dt.datetime | None:
    """Read an RFC 3339 time; None where it is none, or names no zone."""
    try:
        moment = dt.datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment if moment.tzinfo is not None else None


def yaml(body: Mapping[str, Any]) -> str:
    """Return a JSON object in block style. Strings are quoted as in JSON, which YAML reads as they are."""
    return "".join(f"{line}\n" for line in _mapping(body))


def word(text: str) -> str:
    """Return a text as YAML reads it back: as it is, unless that could be read as something else than text."""
    return (
        text
        if _PLAIN.fullmatch(text) and text.lower() not in _WORDS
        else json.dumps(text, ensure_ascii=False)
    )


def _mapping(body: Mapping[str, Any]) -> Iterator[str]:
    for key, value in body.items():
        if isinstance(value, Mapping) and value:
            yield f"{word(key)}:"
            yield from (f"  {line}" for line in _mapping(value))
        elif isinstance(value, list) and value:
            yield f"{word(key)}:"
            yield from (f"  {line}" for item in value for line in _item(item))
        else:
            yield f"{word(key)}: {json.dumps(value, ensure_ascii=False)}"


def _item(item: Any) -> Iterator[str]:
    lines = (
        list(_mapping(item)) if isinstance(item, Mapping) and item else [json.dumps(item, ensure_ascii=False)]
    )
    yield f"- {lines[0]}"
    yield from (f"  {line}" for line in lines[1:])
