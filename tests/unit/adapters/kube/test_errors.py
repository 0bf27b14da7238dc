"""What becomes of an answer that is no success: the kind, the words, the waiting time, and the limits on all of it."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpupolicy.adapters import kube
from gpupolicy.adapters.kube import errors

KINDS = [
    pytest.param(401, "Unauthorized", kube.Unauthorized, id="401"),
    pytest.param(403, "Forbidden", kube.Forbidden, id="403"),
    pytest.param(404, "NotFound", kube.NotFound, id="404"),
    pytest.param(409, "Conflict", kube.Conflict, id="409-conflict"),
    pytest.param(409, "AlreadyExists", kube.AlreadyExists, id="409-already-exists"),
    pytest.param(410, "Expired", kube.Gone, id="410-expired"),
    pytest.param(410, "Gone", kube.Gone, id="410-gone"),
    pytest.param(422, "Invalid", kube.Invalid, id="422"),
    pytest.param(429, "TooManyRequests", kube.TooManyRequests, id="429"),
    pytest.param(500, "InternalError", kube.Unavailable, id="500"),
    pytest.param(503, "ServiceUnavailable", kube.Unavailable, id="503"),
    pytest.param(504, "Timeout", kube.Unavailable, id="504"),
    pytest.param(405, "MethodNotAllowed", kube.ApiError, id="405"),
    pytest.param(400, "BadRequest", kube.ApiError, id="400"),
]


@pytest.mark.parametrize(("code", "reason", "kind"), KINDS)
def test_the_kind_follows_from_code_and_reason(code, reason, kind):
    error = errors.from_status(code, {"code": code, "reason": reason, "message": "m"})
    assert (type(error), error.status, error.reason, error.message) == (kind, code, reason, "m")
    assert str(error) == f"{reason}: m"


@pytest.mark.parametrize(("code", "reason", "kind"), KINDS)
def test_a_watch_carries_the_same_errors_in_a_success(code, reason, kind):
    assert type(errors.from_status(200, {"code": code, "reason": reason})) is kind


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (401, "Unauthorized"),
        (404, "NotFound"),
        (409, "Conflict"),
        (429, "TooManyRequests"),
        (502, "Unavailable"),
        (418, "HTTP418"),
    ],
)
def test_a_page_of_a_proxy_becomes_an_error_with_a_reason_of_ours(code, reason):
    error = errors.from_body(code, b"<html>go away</html>")
    assert (error.status, error.reason) == (code, reason)
    assert "<html>go away</html>" in error.message


@pytest.mark.parametrize("body", [b"", b"  \n", b"[]", b"3", b'"text"', b"null", b"\xff\xfe", b'{"reason":'])
def test_any_body_makes_an_error(body):
    assert type(errors.from_body(404, body)) is kube.NotFound


@pytest.mark.parametrize(
    ("code", "message"),
    [
        pytest.param(
            400,
            'GpuPolicy in version "v1alpha1" cannot be handled: strict decoding error: unknown field "spec.x"',
            id="create",
        ),
        pytest.param(
            500,
            "failed to create typed patch object (/x; v1, Kind=A): .spec.foo: field not declared",
            id="apply",
        ),
    ],
)
def test_an_unknown_field_is_invalid_whatever_the_code_says(code, message):
    assert type(errors.from_status(code, {"message": message})) is kube.Invalid


@pytest.mark.parametrize(
    ("field", "kind"), [("metadata.uid", kube.Conflict), ("metadata.name", kube.Invalid)]
)
def test_a_write_that_met_another_object_of_the_name_is_a_conflict(field, kind):
    """As 1.37.2 answers an apply with the UID of a DeviceClass that was made anew."""
    cause = {"reason": "FieldValueInvalid", "field": field, "message": "field is immutable"}
    assert type(errors.from_status(422, {"reason": "Invalid", "details": {"causes": [cause]}})) is kind


@pytest.mark.parametrize(
    ("header", "details", "seconds"),
    [
        pytest.param("7", {}, 7.0, id="header"),
        pytest.param("7", {"retryAfterSeconds": 3}, 7.0, id="header-before-body"),
        pytest.param(None, {"retryAfterSeconds": 3}, 3.0, id="body"),
        pytest.param(None, {}, 1.0, id="neither"),
        pytest.param("0", {}, 1.0, id="zero"),
        pytest.param("-5", {}, 1.0, id="negative"),
        pytest.param("nan", {}, 1.0, id="nan"),
        pytest.param("soon", {}, 1.0, id="words"),
        pytest.param("86400", {}, 300.0, id="a-day-is-cut"),
        pytest.param("inf", {}, 300.0, id="forever-is-cut"),
    ],
)
def test_the_waiting_time_is_asked_for_and_bounded(header, details, seconds):
    error = errors.from_status(429, {"details": details}, retry_after=header)
    assert isinstance(error, kube.TooManyRequests)
    assert error.retry_after_seconds == seconds


def test_causes_name_fields():
    details = {"causes": [{"reason": "FieldValueInvalid", "field": "spec.x", "message": "no"}]}
    error = errors.from_status(422, {"reason": "Invalid", "message": "m", "details": details})
    assert error.causes == (kube.Cause("FieldValueInvalid", "spec.x", "no"),)
    assert error.details == details


@pytest.mark.parametrize("details", [None, [], "x", {"causes": None}, {"causes": "x"}, {"causes": [None, 3]}])
def test_details_of_a_wrong_shape_are_no_details(details):
    assert errors.from_status(422, {"details": details}).causes == ()


@given(st.integers(400, 599), st.text(max_size=5000))
def test_a_message_is_capped(code, message):
    error = errors.from_body(code, json.dumps({"message": message}).encode())
    assert len(error.message) <= errors.MESSAGE_LIMIT
    assert error.message.startswith(message[: errors.MESSAGE_LIMIT - 1])


def test_every_error_is_a_kube_error():
    kinds = {kind.values[2] for kind in KINDS} | {kube.ConfigurationError}
    assert all(issubclass(kind, kube.KubeError) for kind in kinds)
    assert issubclass(kube.AlreadyExists, kube.Conflict)
