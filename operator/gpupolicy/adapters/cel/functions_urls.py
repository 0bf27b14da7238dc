"""URLs, as the API server's Go library reads them. Overload id -> function.

Upstream parses twice: once as the target of a request, which needs a scheme or an absolute path and knows no fragment, and
then as a reference, which has a fragment and finds a host in `//host` too. `isURL` does only the first.
"""

import ipaddress
import re
import urllib.parse
from typing import Any

from gpupolicy.adapters.cel.functions_standard import Implementation
from gpupolicy.adapters.cel.syntax import UncertainError
from gpupolicy.adapters.cel.values import CelError, MapValue, Url

__all__ = ["IMPLEMENTATIONS", "is_url"]

_SCHEME = re.compile(r"(?P<scheme>[a-zA-Z][a-zA-Z0-9+.-]*):(?P<rest>.*)", re.DOTALL)
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_PERCENT = re.compile(r"%(?![0-9a-fA-F]{2})")
_HOST_ASCII = r"A-Za-z0-9\-_.~!$&'()*+,;=:\[\]<>\""
_HOST = re.compile(rf"(?:[{_HOST_ASCII}]|[^\x00-\x7f]|%[89a-fA-F][0-9a-fA-F]|%25)*")
_ZONE = re.compile(rf"(?:[{_HOST_ASCII}]|[^\x00-\x7f]|%(?P<code>[0-9a-fA-F]{{2}}))*")
_ZONE_ESCAPED = re.compile(rf"[{_HOST_ASCII} %]")
_USER_CHARACTERS = re.compile(r"[A-Za-z0-9\-._:~!$&'()*+,;=%@]*")
_PATH_AS_WRITTEN = re.compile(r"(?:[A-Za-z0-9\-_.~!$&'()*+,;=:@\[\]/]|%[0-9a-fA-F]{2})*")
_PATH_SAFE = "$&+,/:;=@-_.~"


def _parse(text: str) -> Url:
    _check(text)
    body, _, fragment = text.partition("#")
    if _PERCENT.search(fragment):
        raise _error("invalid URL escape")
    scheme, host, path, query = _parts(body, is_request=False)
    return Url(text, scheme, host, path, query)


def _error(reason: str) -> CelError:
    return CelError(f"URL parse error during conversion from string: {reason}")


def _check(text: str) -> None:
    if not text:
        raise _error("empty url")
    if _CONTROL.search(text):
        raise _error("invalid control character in URL")
    _parts(text, is_request=True)


def is_url(text: str) -> bool:
    """Return whether the text is an absolute URL or an absolute path."""
    try:
        _check(text)
    except CelError:
        return False
    return True


def _parts(text: str, *, is_request: bool) -> tuple[str, str, str, str]:
    """Return scheme, host, path as written, and query."""
    if text == "*":
        return "", "", "*", ""
    scheme, rest = "", text
    match = _SCHEME.fullmatch(text)
    if match is not None:
        scheme, rest = match["scheme"].lower(), match["rest"]
    elif text.startswith(":"):
        raise _error("missing protocol scheme")
    rest, _, query = rest.partition("?")
    if not rest.startswith("/"):
        if scheme:
            # An opaque URL, such as mailto:..., has neither host nor path.
            return scheme, "", "", query
        if is_request:
            raise _error("invalid URI for request")
    host = ""
    has_host = bool(scheme) or (not is_request and not rest.startswith("///"))
    if has_host and rest.startswith("//"):
        authority, slash, path = rest[2:].partition("/")
        host, rest = _authority(scheme, authority), slash + path
    if _PERCENT.search(rest):
        raise _error("invalid URL escape")
    return scheme, host, rest, query


def _authority(scheme: str, authority: str) -> str:
    user, at, host = authority.rpartition("@")
    found = _bracketed(host) if "[" in host else _named(scheme, host)
    if at and (not _USER_CHARACTERS.fullmatch(user) or _PERCENT.search(user)):
        raise _error("net/url: invalid userinfo")
    return found


def _named(scheme: str, host: str) -> str:
    # Some databases list several hosts with their ports; for the web's own schemes there is one colon.
    colon = host.find(":") if scheme in ("http", "https") else host.rfind(":")
    if colon >= 0:
        _check_port(host[colon:])
    if not _HOST.fullmatch(host):
        raise _error("invalid character in host name")
    return _unescaped(host)


def _bracketed(host: str) -> str:
    opening, closing = host.rfind("["), host.rfind("]")
    if opening > 0:
        raise _error("invalid IP-literal")
    if closing < 0:
        raise _error("missing ']' in host")
    name, port = host[1:closing], host[closing + 1 :]
    _check_port(port)
    address, percent, zone = name.partition("%25")
    codes = re.findall("%([0-9a-fA-F]{2})", zone)
    allowed = all(_ZONE_ESCAPED.fullmatch(chr(int(code, 16))) for code in codes)
    if not _HOST.fullmatch(address) or not _ZONE.fullmatch(zone) or not allowed:
        raise _error("invalid character in host name")
    found = _unescaped(address + percent + zone)
    numbers, percent, zone = found.partition("%")
    try:
        ipaddress.IPv6Address(numbers)
    except ValueError as error:
        raise _error("invalid host") from error
    if percent and not zone:
        raise _error("invalid host: zone must be a non-empty string")
    return f"[{found}]{port}"


def _check_port(port: str) -> None:
    if port and not re.fullmatch(r":[0-9]*", port, re.ASCII):
        raise _error("invalid port after host")


def _unescaped(text: str, *, plus: bool = False) -> str:
    decoded = urllib.parse.unquote_to_bytes(text.replace("+", " ") if plus else text)
    try:
        return decoded.decode()
    except UnicodeDecodeError as error:
        raise UncertainError("text that is not UTF-8") from error


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
    return urllib.parse.quote(urllib.parse.unquote_to_bytes(url.path), safe=_PATH_SAFE)


def _query(url: Url) -> MapValue:
    values: dict[str, list[Any]] = {}
    for pair in url.query.split("&"):
        if not pair or ";" in pair or _PERCENT.search(pair):
            continue
        key, _, value = pair.partition("=")
        values.setdefault(_unescaped(key, plus=True), []).append(_unescaped(value, plus=True))
    return MapValue(tuple(values.items()))


IMPLEMENTATIONS: dict[str, Implementation] = {
    "string_to_url": _parse,
    "is_url_string": is_url,
    "url_get_scheme": lambda url: url.scheme,
    "url_get_host": lambda url: url.host,
    "url_get_hostname": lambda url: _split_host(url.host)[0],
    "url_get_port": lambda url: _split_host(url.host)[1],
    "url_get_escaped_path": _escaped_path,
    "url_get_query": _query,
}
