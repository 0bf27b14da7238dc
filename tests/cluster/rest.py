"""A small REST client for the API server, on the standard library: the test driver's own hands.

It takes a kubeconfig that `ControlPlane` wrote (JSON) and sees exactly what the server answers, status
code included; product code is tested with its own client, not with this one.
"""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode, urlsplit

_TIMEOUT_SECONDS = 60.0
_ATTEMPTS = 30
"""How often a request is made again that the server is too busy for."""


class Answer(NamedTuple):
    """Status code and decoded body: a dict for JSON, else the text."""

    status: int
    body: Any


class ApiError(Exception):
    """An answer of 400 or more; carries the ``status`` code and the ``body``."""

    def __init__(self, request: str, answer: Answer) -> None:
        body = answer.body
        message = body.get("message", body) if isinstance(body, dict) else body
        super().__init__(f"{request}: {answer.status}: {message}")
        self.status = answer.status
        self.body = answer.body


class RestClient:
    """Requests to one API server as one identity, each on a connection of its own: any thread may make one."""

    def __init__(self, kubeconfig: Path) -> None:
        config = json.loads(kubeconfig.read_text(encoding="utf-8"))
        cluster = config["clusters"][0]["cluster"]
        self._user = config["users"][0]["user"]
        address = urlsplit(cluster["server"])
        assert address.hostname is not None
        self._host, self._port = address.hostname, address.port or 443
        authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
        self._context = ssl.create_default_context(cadata=authority)
        if "client-certificate-data" in self._user:
            with tempfile.NamedTemporaryFile() as both:
                both.write(base64.b64decode(self._user["client-certificate-data"]))
                both.write(base64.b64decode(self._user["client-key-data"]))
                both.flush()
                self._context.load_cert_chain(both.name)

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        query: Mapping[str, str] | None = None,
        content_type: str = "application/json",
    ) -> Answer:
        """One request; every status is an answer.

        Raises:
            OSError: when the server cannot be reached or does not answer in time.
        """
        headers = {"Accept": "application/json", "Content-Type": content_type}
        if token_file := self._user.get("tokenFile"):
            headers["Authorization"] = f"Bearer {Path(token_file).read_text(encoding='ascii')}"
        connection = http.client.HTTPSConnection(
            self._host, self._port, context=self._context, timeout=_TIMEOUT_SECONDS
        )
        target = f"{path}?{urlencode(query)}" if query else path
        data = None if body is None else json.dumps(body)
        try:
            connection.request(method, target, data, headers)
            response = connection.getresponse()
            text = response.read().decode()
            is_json = response.headers.get_content_type() == "application/json"
            return Answer(response.status, json.loads(text) if is_json else text)
        except http.client.HTTPException as error:
            raise ConnectionError(f"{method} {path}: {error!r}") from error
        finally:
            connection.close()

    def _checked(self, method: str, path: str, body: Any = None, **options: Any) -> Any:
        answer = self.call(method, path, body, **options)
        # A server whose copies are not there yet, or behind, refuses lists for a moment; every client asks again.
        for _ in range(_ATTEMPTS):
            if answer.status != http.HTTPStatus.TOO_MANY_REQUESTS:
                break
            time.sleep(1.0)
            answer = self.call(method, path, body, **options)
        if answer.status >= http.client.BAD_REQUEST:
            raise ApiError(f"{method} {path}", answer)
        return answer.body

    def get(self, path: str, **query: str) -> Any:
        """GET, as a decoded body; raises `ApiError` for a refusal."""
        return self._checked("GET", path, query=query)

    def create(self, path: str, body: Any, **query: str) -> Any:
        """POST `body` to a collection and return the created object."""
        return self._checked("POST", path, body, query=query)

    def replace(self, path: str, body: Any, **query: str) -> Any:
        """PUT."""
        return self._checked("PUT", path, body, query=query)

    def patch(self, path: str, body: Any, kind: str = "merge", **query: str) -> Any:
        """PATCH with a ``merge``, ``strategic-merge`` or ``json`` patch."""
        prefix = "json-patch" if kind == "json" else f"{kind}-patch"
        return self._checked("PATCH", path, body, query=query, content_type=f"application/{prefix}+json")

    def apply(self, path: str, body: Any, field_manager: str, *, force: bool = False) -> Any:
        """Server-side apply."""
        query = {"fieldManager": field_manager, "force": str(force).lower()}
        return self._checked("PATCH", path, body, query=query, content_type="application/apply-patch+yaml")

    def delete(self, path: str, **query: str) -> Any:
        """DELETE."""
        return self._checked("DELETE", path, query=query)
