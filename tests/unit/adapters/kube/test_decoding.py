"""JSON of a tenant: as deep as an API server stores it, and nobody who looks at claims goes blind of it."""

import json
import sys

import pytest

from gpupolicy.adapters.kube import decoding, errors, transport, wire
from gpupolicy.core import claims, tally

BRACKETS = 5_100
"""As many as fit into the 10 KiB of a claim's configuration."""


def hostile(brackets: int) -> bytes:
    nested = "[" * brackets + "]" * brackets
    return (
        '{"metadata": {"name": "c", "uid": "u", "resourceVersion": "7"}, "status": {"allocation": {"devices": {'
        '"results": [{"driver": "gpu.gpupolicy.dev", "pool": "n/gpupolicy", "device": "gpu-0", "request": "r"}], '
        '"config": [{"opaque": {"driver": "gpu.gpupolicy.dev", "parameters": {"x": ' + nested + "}}}]}}}}"
    ).encode()


def test_python_alone_would_give_up() -> None:
    with pytest.raises(RecursionError):
        json.loads(hostile(BRACKETS))


def test_a_deep_claim_is_read_like_any_other() -> None:
    before = sys.getrecursionlimit()
    found = decoding.loads(hostile(BRACKETS))
    assert sys.getrecursionlimit() == before
    assert [h.device for h in tally.holdings(found)] == ["gpu-0"]
    refusal = claims.resolve(found, "u", "n/gpupolicy", {})
    assert isinstance(refusal, claims.ClaimRefusal)
    assert len(refusal.message) < 1000


def test_lists_and_watches_read_it() -> None:
    answer = transport.Response(200, "application/json", b'{"items": [' + hostile(BRACKETS) + b"]}")
    assert answer.decoded()["items"][0]["metadata"]["uid"] == "u"
    event = wire.watch_event(b'{"type": "ADDED", "object": ' + hostile(BRACKETS) + b"}")
    assert event.object["metadata"]["name"] == "c"


def test_what_no_api_server_would_store_is_an_error_of_the_answer() -> None:
    with pytest.raises(ValueError, match="deeper than"):
        decoding.loads(hostile(2 * decoding.DEPTH))
    with pytest.raises(errors.Unavailable):
        transport.Response(200, "application/json", hostile(2 * decoding.DEPTH)).decoded()
