"""Named formats, as the API server's Go libraries read them. Overload id -> function."""

import datetime as dt
import re
from collections.abc import Callable

from gpupolicy.adapters.cel.functions_standard import Implementation
from gpupolicy.adapters.cel.functions_urls import is_url
from gpupolicy.adapters.cel.values import NamedFormat, Optional, Unknown

__all__ = ["IMPLEMENTATIONS", "NAMED_FORMATS"]

_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = rf"{_LABEL}(\.{_LABEL})*"
_NAME_PART = r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
_LABEL_LENGTH = 63
_SUBDOMAIN_LENGTH = 253


def _failures(text: str, pattern: str, length: int) -> int:
    too_long = len(text.encode()) > length
    return too_long + (re.fullmatch(pattern, text, re.ASCII) is None)


def _prefix(text: str) -> str:
    # A trailing dash is hidden together with the character before it, as upstream does.
    return text[:-2] + "a" if len(text) > 1 and text.endswith("-") else text


def _qualified_name(text: str) -> int:
    parts = text.split("/")
    if len(parts) > 2:
        return 1
    failures = 0
    if len(parts) == 2:
        failures += 1 if not parts[0] else _failures(parts[0], _SUBDOMAIN, _SUBDOMAIN_LENGTH)
    if not parts[-1]:
        return failures + 2
    return failures + _failures(parts[-1], _NAME_PART, _LABEL_LENGTH)


def _date(text: str) -> int:
    if not re.fullmatch(r"\d{4}-\d\d-\d\d", text, re.ASCII):
        return 1
    year, month, day = (int(part) for part in text.split("-"))
    try:
        # Year 0 is a leap year to Go and does not exist here.
        dt.date(year or 4, month, day)
    except ValueError:
        return 1
    return 0


_TIME = re.compile(r"(\d\d):(\d\d):(\d\d)(.[0-9]+)?(z|([+-]\d\d:\d\d))", re.ASCII)


def _datetime(text: str) -> int:
    parts = text.lower().split("t")
    if len(parts) < 2 or _date(parts[0]):
        return 1
    match = _TIME.fullmatch(parts[1])
    return int(match is None or match[1] > "23" or match[2] > "59" or match[3] > "59")


_BASE64 = r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=|[A-Za-z0-9+/]{4})"
_UUID = r"(?i)[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}"

NAMED_FORMATS: dict[str, Callable[[str], int]] = {
    "dns1123Label": lambda text: _failures(text, _LABEL, _LABEL_LENGTH),
    "dns1123Subdomain": lambda text: _failures(text, _SUBDOMAIN, _SUBDOMAIN_LENGTH),
    "dns1035Label": lambda text: _failures(text, r"[a-z]([-a-z0-9]*[a-z0-9])?", _LABEL_LENGTH),
    "qualifiedName": _qualified_name,
    "dns1123LabelPrefix": lambda text: NAMED_FORMATS["dns1123Label"](_prefix(text)),
    "dns1123SubdomainPrefix": lambda text: NAMED_FORMATS["dns1123Subdomain"](_prefix(text)),
    "dns1035LabelPrefix": lambda text: NAMED_FORMATS["dns1035Label"](_prefix(text)),
    "labelValue": lambda text: _failures(text, rf"({_NAME_PART})?", _LABEL_LENGTH),
    "uri": lambda text: int(not is_url(text)),
    "uuid": lambda text: int(not re.fullmatch(_UUID, text, re.ASCII)),
    "byte": lambda text: int(not re.fullmatch(_BASE64, text, re.ASCII)),
    "date": _date,
    "datetime": _datetime,
}
"""Name -> number of complaints about a text; their wording is not modelled."""


def _validate(named: NamedFormat, text: str) -> Optional:
    failures = NAMED_FORMATS[named.name](text)
    return Optional([Unknown()] * failures) if failures else Optional()


def _named(name: str) -> Optional:
    return Optional(NamedFormat(name)) if name in NAMED_FORMATS else Optional()


IMPLEMENTATIONS: dict[str, Implementation] = {
    "format-validate": _validate,
    "format-named": _named,
    **{f"format.{name}": (lambda name=name: NamedFormat(name)) for name in NAMED_FORMATS},
}
