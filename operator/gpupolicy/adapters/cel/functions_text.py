"""URLs and named formats, as the API server's Go libraries read them. Overload id -> function."""

import datetime as dt
import re
import urllib.parse
from collections.abc import Callable
from typing import Any

from gpupolicy.adapters.cel.functions_standard import Implementation
from gpupolicy.adapters.cel.values import CelError, MapValue, NamedFormat, Optional, Unknown, Url

__all__ = ["IMPLEMENTATIONS", "NAMED_FORMATS"]

_SCHEME = re.compile(r"(?P<scheme>[a-zA-Z][a-zA-Z0-9+.-]*):(?P<rest>.*)", re.DOTALL)
_PERCENT = re.compile(r"%(?![0-9a-fA-F]{2})")
_HOST_CHARACTERS = re.compile(r"[A-Za-z0-9\-_.~!$&'()*+,;=:\[\]<>\"]|[^\x00-\x7f]|%[89a-fA-F][0-9a-fA-F]")
_USER_CHARACTERS = re.compile(r"[A-Za-z0-9\-._:~!$&'()*+,;=%@]*")
_PATH_AS_WRITTEN = re.compile(r"(?:[A-Za-z0-9\-_.~!$&'()*+,;=:@\[\]/]|%[0-9a-fA-F]{2})*")
_PATH_SAFE = "$&+,/:;=@-_.~"


def _parse_url(text: str) -> Url:
    """Return the parts of an absolute URL or an absolute path."""
    if not text:
        raise _url_error("empty url")
    if re.search(r"[\x00-\x1f\x7f]", text):
        raise _url_error("invalid control character in URL")
    if text == "*":
        return Url(text, "", "", "*", "")
    _checked_parts(text, fragment="")
    body, _, fragment = text.partition("#")
    if _PERCENT.search(fragment):
        raise _url_error("invalid URL escape")
    scheme, host, path, query = _checked_parts(body, fragment=fragment)
    return Url(text, scheme, host, path, query)


def _url_error(reason: str) -> CelError:
    return CelError(f"URL parse error during conversion from string: {reason}")


def _checked_parts(text: str, *, fragment: str) -> tuple[str, str, str, str]:
    scheme = ""
    match = _SCHEME.fullmatch(text)
    if match is not None:
        scheme, text = match["scheme"].lower(), match["rest"]
    elif text.startswith(":"):
        raise _url_error("missing protocol scheme")
    text, _, query = text.partition("?")
    if not text.startswith("/"):
        if not scheme:
            raise _url_error("invalid URI for request")
        # An opaque URL, such as mailto:..., has neither host nor path.
        return scheme, "", "", query
    host = ""
    if scheme and text.startswith("//"):
        authority, slash, rest = text[2:].partition("/")
        host = _host(authority)
        text = slash + rest
    elif text.startswith("//") and fragment:
        # Read as a path when it is checked, as a host afterwards.
        authority, slash, rest = text[2:].partition("/")
        host, text = _host(authority), slash + rest
    if _PERCENT.search(text):
        raise _url_error("invalid URL escape")
    return scheme, host, text, query


def _host(authority: str) -> str:
    user, at, host = authority.rpartition("@")
    if at and (not _USER_CHARACTERS.fullmatch(user) or _PERCENT.search(user)):
        raise _url_error("net/url: invalid userinfo")
    if host.startswith("["):
        closing = host.rfind("]")
        if closing < 0:
            raise _url_error("missing ']' in host")
        port = host[closing + 1 :]
    else:
        colon = host.rfind(":")
        port = host[colon:] if colon >= 0 else ""
    if port and not re.fullmatch(r":[0-9]*", port, re.ASCII):
        raise _url_error("invalid port after host")
    if "".join(_HOST_CHARACTERS.findall(host)) != host:
        raise _url_error("invalid character in host name")
    return urllib.parse.unquote(host)


def _split_host(host: str) -> tuple[str, str]:
    name, port = host, ""
    colon = host.rfind(":")
    if colon >= 0 and re.fullmatch(r"[0-9]*", host[colon + 1 :], re.ASCII):
        name, port = host[:colon], host[colon + 1 :]
    if name.startswith("[") and name.endswith("]"):
        name = name[1:-1]
    return name, port


def _escaped_path(url: Url) -> str:
    if url.path == "*" or _PATH_AS_WRITTEN.fullmatch(url.path):
        return url.path
    raw = urllib.parse.unquote_to_bytes(url.path)
    return urllib.parse.quote(raw, safe=_PATH_SAFE)


def _query(url: Url) -> MapValue:
    values: dict[str, list[Any]] = {}
    for pair in url.query.split("&"):
        if not pair or ";" in pair or _PERCENT.search(pair):
            continue
        key, _, value = pair.partition("=")
        values.setdefault(urllib.parse.unquote_plus(key), []).append(urllib.parse.unquote_plus(value))
    return MapValue(tuple(values.items()))


def _is_url(text: str) -> bool:
    try:
        if not text or re.search(r"[\x00-\x1f\x7f]", text):
            return False
        if text != "*":
            _checked_parts(text, fragment="")
    except CelError:
        return False
    return True


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
    "uri": lambda text: int(not _is_url(text)),
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
    "string_to_url": _parse_url,
    "is_url_string": _is_url,
    "url_get_scheme": lambda url: url.scheme,
    "url_get_host": lambda url: url.host,
    "url_get_hostname": lambda url: _split_host(url.host)[0],
    "url_get_port": lambda url: _split_host(url.host)[1],
    "url_get_escaped_path": _escaped_path,
    "url_get_query": _query,
    "format-validate": _validate,
    "format-named": _named,
    **{f"format.{name}": (lambda name=name: NamedFormat(name)) for name in NAMED_FORMATS},
}
