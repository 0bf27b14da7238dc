"""Errors of the API server as one tree of exceptions, so that callers catch what they can act on.

    KubeError
    ├── ConfigurationError      no usable kubeconfig or service account; the message names file and remedy
    └── ApiError                an answer of the API server that is not a success, or no answer
        ├── Unauthorized        401, also after the credentials were read again
        ├── Forbidden           403
        ├── NotFound            404
        ├── Conflict            HTTPStatus.CONFLICT: the object changed meanwhile, or another field manager owns a field
        │   └── AlreadyExists   409 of a create
        ├── Gone                HTTPStatus.GONE: the resource version or the continue token is too old
        ├── Invalid             422, or an unknown field under strict validation; `causes` name fields
        ├── TooManyRequests     429; `retry_after_seconds`
        └── Unavailable         5xx, no connection, no answer in time, an answer cut short

A server's message is capped and never holds what we sent: neither token nor body.
"""

# ruff: noqa: N818 - the API's own words, read as `except kube.NotFound`.

import json
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

MESSAGE_LIMIT: Final = 1024
"""Characters that an error message may have: it ends up in conditions, events and log lines."""


class KubeError(Exception):
    """Anything that this package raises on purpose."""


class ConfigurationError(KubeError):
    """There is no usable way to an API server: the message names the file or variable and the remedy."""


@dataclass(frozen=True, slots=True)
class Cause:
    """One entry of `details.causes` of a Status: which field, why."""

    reason: str
    field: str
    message: str


class ApiError(KubeError):
    """An API request that did not succeed.

    Attributes:
        status: HTTP status code; 0 when there was no answer at all.
        reason: the Status reason (CamelCase), such as `NotFound`; ours when the server sent none.
        message: what went wrong, at most `MESSAGE_LIMIT` characters.
        details: the `details` object of the Status as it came; empty when there was none.
        causes: the entries of `details.causes`.
    """

    def __init__(
        self, status: int, reason: str, message: str, details: Mapping[str, Any] | None = None
    ) -> None:
        self.status = status
        self.reason = reason
        self.message = capped(message)
        self.details: Mapping[str, Any] = details or {}
        self.causes = _causes(self.details)
        super().__init__(f"{reason}: {self.message}")


class Unauthorized(ApiError):
    """The API server does not accept our credentials, not even freshly read ones."""


class Forbidden(ApiError):
    """The API server knows us and refuses: a missing RBAC rule or an admission policy."""


class NotFound(ApiError):
    """The object, or the whole resource, does not exist."""


class Conflict(ApiError):
    """The object is not what we took it for: a newer version, another UID, another field manager."""


class AlreadyExists(Conflict):
    """A create met an object of that name."""


class Gone(ApiError):
    """The history that was asked for is compacted: list again."""


class Invalid(ApiError):
    """The API server refuses the content; `causes` name fields and reasons."""


class TooManyRequests(ApiError):
    """The server asks to come back later, or an eviction would break a disruption budget."""

    retry_after_seconds: float

    def __init__(
        self,
        status: int,
        reason: str,
        message: str,
        details: Mapping[str, Any] | None = None,
        *,
        retry_after_seconds: float = 1.0,
    ) -> None:
        super().__init__(status, reason, message, details)
        self.retry_after_seconds = retry_after_seconds


class Unavailable(ApiError):
    """The API server could not be reached, did not answer in time, or failed itself."""


_BY_STATUS: Final[Mapping[int, type[ApiError]]] = {
    HTTPStatus.UNAUTHORIZED: Unauthorized,
    HTTPStatus.FORBIDDEN: Forbidden,
    HTTPStatus.NOT_FOUND: NotFound,
    HTTPStatus.CONFLICT: Conflict,
    HTTPStatus.GONE: Gone,
    HTTPStatus.UNPROCESSABLE_ENTITY: Invalid,
}
_BY_REASON: Final[Mapping[str, type[ApiError]]] = {
    "AlreadyExists": AlreadyExists,
    "Expired": Gone,
    "Gone": Gone,
}
_CONTENT_SIGNS: Final = ("strict decoding error", "failed to create typed patch object")
"""Texts of answers that blame the content without a 422: an unknown field is a 400, and in an apply even a 500."""

_IDENTITY: Final = "metadata.uid"

_RETRY_AFTER_LIMIT_SECONDS: Final = 300.0


def capped(message: str) -> str:
    """Return the message on at most `MESSAGE_LIMIT` characters, its end cut and marked."""
    return message if len(message) <= MESSAGE_LIMIT else message[: MESSAGE_LIMIT - 1] + "…"


def from_status(code: int, status: Mapping[str, Any], *, retry_after: str | None = None) -> ApiError:
    """Return the error that a `Status` object of the API server stands for.

    Args:
        code: HTTP status code; that of the object is used when this is a success (a watch carries errors so).
        status: the decoded object; anything that is missing or of a wrong type is replaced.
        retry_after: the Retry-After header, if any: seconds; dates are not used by API servers.
    """
    if code < HTTPStatus.BAD_REQUEST:
        code = _integer(status.get("code")) or int(HTTPStatus.INTERNAL_SERVER_ERROR)
    details = status.get("details")
    details = details if isinstance(details, Mapping) else {}
    reason = str(status.get("reason") or "")
    message = str(status.get("message") or f"the API server answered {code}")
    if code == HTTPStatus.TOO_MANY_REQUESTS:
        seconds = _seconds(retry_after) or _seconds(details.get("retryAfterSeconds")) or 1.0
        return TooManyRequests(
            code, reason or "TooManyRequests", message, details, retry_after_seconds=seconds
        )
    kind = _BY_REASON.get(reason) or _BY_STATUS.get(code)
    if kind is Invalid and any(cause.field == _IDENTITY for cause in _causes(details)):
        # Some kinds call it a change of a field that cannot change; it is another object that has the name.
        kind = Conflict
    if kind is None and any(sign in message for sign in _CONTENT_SIGNS):
        kind = Invalid
    if kind is None and code >= HTTPStatus.INTERNAL_SERVER_ERROR:
        kind = Unavailable
    if kind is None:
        return ApiError(code, reason or f"HTTP{code}", message, details)
    return kind(code, reason or kind.__name__, message, details)


def from_body(code: int, body: bytes, *, retry_after: str | None = None) -> ApiError:
    """Return the error of a response; the body may be a Status, or the page of a proxy on the way."""
    try:
        decoded = json.loads(body)
    except ValueError:
        text = body[: 4 * MESSAGE_LIMIT].decode("utf-8", "replace").strip()
        decoded = {"message": f"HTTP {code}: {text}" if text else f"HTTP {code} without a body"}
    return from_status(code, decoded if isinstance(decoded, dict) else {}, retry_after=retry_after)


def _causes(details: Mapping[str, Any]) -> tuple[Cause, ...]:
    causes = details.get("causes")
    if not isinstance(causes, list):
        return ()
    return tuple(
        Cause(str(c.get("reason", "")), str(c.get("field", "")), capped(str(c.get("message", ""))))
        for c in causes
        if isinstance(c, dict)
    )


def _integer(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _seconds(value: Any) -> float | None:
    """Return a positive number of seconds, at most five minutes: a server must not be able to put us to sleep."""
    try:
        seconds = float(value)
    except (TypeError, ValueError):
        return None
    return min(seconds, _RETRY_AFTER_LIMIT_SECONDS) if seconds > 0 else None
