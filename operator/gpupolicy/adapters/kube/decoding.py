"""Decodes JSON that tenants have a hand in.

A ResourceClaim may carry 10 KiB of any JSON, so also five thousand brackets inside each other, and the API server hands
it out with every list and watch of claims. Python's decoder gives up far earlier, with an error that is no ValueError;
one such claim, of whatever driver, would blind everybody who looks at claims.
"""

import json
import json.decoder
import json.scanner
import sys
from typing import Any, Final

DEPTH: Final = 12_000
"""Brackets inside each other that are decoded: what the API server itself allows (10,000), and what it wraps around."""

_FRAMES: Final = 2
"""Frames of Python that a bracket takes."""


def loads(text: bytes | str) -> Any:
    """Return the value of a JSON text.

    Raises:
        ValueError: it is no JSON, or deeper than any API server would store.
    """
    try:
        return json.loads(text)
    except RecursionError:
        return _deeply(text)


def _deeply(text: bytes | str) -> Any:
    if isinstance(text, bytes):
        text = text.decode(json.detect_encoding(text), "surrogatepass")
    before = sys.getrecursionlimit()
    # Only while this decoder runs, and it calls nobody.
    sys.setrecursionlimit(before + _FRAMES * DEPTH)
    try:
        return _PurePython().decode(text)
    except RecursionError as error:
        raise ValueError(f"the JSON is deeper than {DEPTH} brackets") from error
    finally:
        sys.setrecursionlimit(before)


class _PurePython(json.JSONDecoder):
    """The standard decoder without its C half, which from Python 3.12 on has a limit of its own that nobody can move."""

    def __init__(self) -> None:
        super().__init__()
        # Public in the source, and missing in the type stubs.
        decoder: Any = json.decoder
        scanner: Any = json.scanner
        self.parse_object = decoder.JSONObject
        self.parse_array = decoder.JSONArray
        self.parse_string = decoder.py_scanstring
        self.scan_once = scanner.py_make_scanner(self)
