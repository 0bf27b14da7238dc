"""The client through which controller, agent and CLI speak to the API server.

Objects are plain dicts as the API server sends them: what this project does not know survives a read and a write.
Every call has a deadline (`timeout_seconds`, retries included) and raises `errors.ApiError` or one of its kinds.
"""

import builtins
import contextlib
import datetime as dt
import logging
import secrets
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Any, Final, Literal, Self

from gpupolicy.adapters.kube import credentials, errors, resources, transport, wire
from gpupolicy.adapters.kube.credentials import Credentials

logger = logging.getLogger(__name__)

PAGE_SIZE: Final = 500
TIMEOUT_SECONDS: Final = 30.0
LIST_TIMEOUT_SECONDS: Final = 120.0
_NOTE_LIMIT_BYTES: Final = 1024


class Kube:
    """A client of one API server.

    Use it as `async with Kube.connect() as kube`, or call `close` when done.
    """

    def __init__(self, sender: transport.Transport) -> None:
        self._transport = sender

    @classmethod
    def connect(
        cls,
        kubeconfig: str | None = None,
        context: str | None = None,
        *,
        service_account: Path | None = None,
        user_agent: str = "gpupolicy",
        observer: transport.Observer | None = None,
    ) -> Self:
        """Return a client; the first request opens the connection.

        Args:
            kubeconfig: path of a kubeconfig file. Without it `KUBECONFIG`, `~/.kube/config` and the service account
                of the pod are tried in this order.
            context: context of the kubeconfig; the current one by default.
            service_account: directory with `token` and `ca.crt`, in place of any kubeconfig.
            user_agent: how we call ourselves in the server's audit log.
            observer: called after every attempt with method, status and seconds, for metrics.

        Raises:
            ConfigurationError: there is no source of credentials.
        """
        return cls(
            transport.Transport(
                credentials.find(kubeconfig, context, service_account=service_account),
                user_agent=user_agent,
                observer=observer,
            )
        )

    async def __aenter__(self) -> Self:
        """Read credentials and TLS files, so that a bad kubeconfig is told at once."""
        await self._transport.open()
        return self

    async def __aexit__(self, *_exception: object) -> None:
        """Close all connections."""
        await self.close()

    async def close(self) -> None:
        """Close all connections."""
        await self._transport.close()

    def observe(self, observer: transport.Observer) -> None:
        """Have every further attempt told, in place of whom it was told before."""
        self._transport.observe(observer)

    async def credentials(self) -> Credentials:
        """Return server, token and TLS files as they are now, for another client such as kopf.

        Raises:
            ConfigurationError: they cannot be read.
        """
        return await self._transport.credentials()

    async def raw(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = "application/json",
        timeout_seconds: float = TIMEOUT_SECONDS,
        attempts: int = transport.ATTEMPTS,
    ) -> Any:
        """Send a request to a path; return the decoded JSON, or the text if the answer is not JSON."""
        request = transport.Request(method, path, query or {}, body, content_type)
        response = await self._transport.send(request, timeout_seconds=timeout_seconds, attempts=attempts)
        if response.content_type.endswith("json"):
            return response.decoded()
        return response.body.decode("utf-8", "replace")

    async def get(
        self,
        resource: resources.Resource,
        name: str,
        namespace: str | None = None,
        *,
        subresource: str | None = None,
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> wire.Object:
        """Return one object as it is now (not from a cache)."""
        path = resource.object_path(name, namespace, subresource)
        return wire.object(await self.raw("GET", path, timeout_seconds=timeout_seconds))

    async def list(
        self,
        resource: resources.Resource,
        namespace: str | None = None,
        *,
        label_selector: str | None = None,
        field_selector: str | None = None,
        transform: wire.Transform | None = None,
        page_size: int = PAGE_SIZE,
        first_page_only: bool = False,
        timeout_seconds: float = LIST_TIMEOUT_SECONDS,
        attempts: int = transport.ATTEMPTS,
    ) -> wire.ObjectList:
        """Return all objects that match, read in pages of one consistent snapshot.

        A snapshot that expires between two pages is begun again once, then read without pages.

        Args:
            resource: what to list.
            namespace: of one namespace; None lists all.
            label_selector: a Kubernetes label selector.
            field_selector: a Kubernetes field selector.
            transform: applied to each object as it arrives, so that a large list is never held whole.
            page_size: objects per request.
            first_page_only: stop after one page, for a look whether there is anything, or at the version.
            timeout_seconds: for each page.
            attempts: attempts for each page.
        """
        query = wire.selectors(label_selector, field_selector)
        path = resource.collection_path(namespace)
        for limit in (page_size, page_size, 0):
            items: builtins.list[wire.Object] = []
            page_query = {**query, "limit": str(limit)} if limit else dict(query)
            try:
                while True:
                    page = wire.object(
                        await self.raw(
                            "GET", path, query=page_query, timeout_seconds=timeout_seconds, attempts=attempts
                        )
                    )
                    items.extend(wire.items(page, resource, transform))
                    metadata = page.get("metadata", {})
                    if first_page_only or not metadata.get("continue"):
                        return wire.ObjectList(items, str(metadata.get("resourceVersion", "")))
                    page_query["continue"] = metadata["continue"]
            except errors.Gone:
                if limit == 0:
                    raise
        raise AssertionError("unreachable: the last round returns or raises")

    async def watch(
        self,
        resource: resources.Resource,
        namespace: str | None = None,
        *,
        resource_version: str,
        label_selector: str | None = None,
        field_selector: str | None = None,
        timeout_seconds: int = 300,
        inactivity_seconds: float = 70.0,
    ) -> AsyncGenerator[wire.WatchEvent]:
        """Yield what happens after a version, until the server ends the watch after about `timeout_seconds`.

        Raises:
            Gone: the version is too old.
            Unavailable: the stream broke, or was silent for `inactivity_seconds`.
        """
        query = wire.selectors(label_selector, field_selector) | {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": resource_version,
            "timeoutSeconds": str(timeout_seconds),
        }
        request = transport.Request("GET", resource.collection_path(namespace), query)
        lines = self._transport.lines(request, inactivity_seconds=inactivity_seconds)
        async with contextlib.aclosing(lines):
            async for line in lines:
                yield wire.watch_event(line)

    async def create(
        self,
        resource: resources.Resource,
        body: wire.Object,
        namespace: str | None = None,
        *,
        field_manager: str | None = None,
        dry_run: bool = False,
        strict: bool = True,
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> wire.Object:
        """Create an object; return it as stored.

        Raises:
            AlreadyExists: there is one of that name.
            Unavailable: among others when the answer got lost; then it may or may not exist.
        """
        path = resource.collection_path(namespace or wire.namespace(resource, body))
        query = wire.write_query(field_manager=field_manager, dry_run=dry_run, strict=strict)
        body = wire.typed(resource, body)
        return wire.object(
            await self.raw("POST", path, query=query, body=body, timeout_seconds=timeout_seconds)
        )

    async def replace(
        self,
        resource: resources.Resource,
        body: wire.Object,
        *,
        subresource: str | None = None,
        field_manager: str | None = None,
        dry_run: bool = False,
        strict: bool = True,
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> wire.Object:
        """Replace an object; with `metadata.resourceVersion` only that version of it.

        Raises:
            Conflict: it is another version by now.
        """
        path = resource.object_path(wire.name(body), wire.namespace(resource, body), subresource)
        query = wire.write_query(field_manager=field_manager, dry_run=dry_run, strict=strict)
        body = wire.typed(resource, body)
        return wire.object(
            await self.raw("PUT", path, query=query, body=body, timeout_seconds=timeout_seconds)
        )

    async def patch(
        self,
        resource: resources.Resource,
        name: str,
        patch: wire.Object,
        namespace: str | None = None,
        *,
        subresource: str | None = None,
        field_manager: str | None = None,
        dry_run: bool = False,
        strict: bool = True,
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> wire.Object:
        """Merge a patch into an object (RFC 7386: None removes a key, a list replaces a list).

        With `metadata.resourceVersion` in the patch only that version is patched.
        """
        return wire.object(
            await self.raw(
                "PATCH",
                resource.object_path(name, namespace, subresource),
                query=wire.write_query(field_manager=field_manager, dry_run=dry_run, strict=strict),
                body=patch,
                content_type=wire.MERGE_PATCH,
                timeout_seconds=timeout_seconds,
            )
        )

    async def apply(
        self,
        resource: resources.Resource,
        body: wire.Object,
        *,
        field_manager: str,
        force: bool = False,
        subresource: str | None = None,
        dry_run: bool = False,
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> wire.Object:
        """Apply an object on the server's side; return it as stored.

        The object is created if need be. Fields that this manager applied before and that are missing now are
        removed. Unknown fields are refused; fields behind a closed feature gate are silently dropped by the server:
        compare with `compare.dropped_fields`.

        Args:
            resource: of what kind.
            body: the fields that this manager wants, with `metadata.name`; `managedFields` must not be in it.
            field_manager: in whose name.
            force: take fields that another manager holds with a different value.
            subresource: apply to `status` instead.
            dry_run: validate and return what would be stored, store nothing.
            timeout_seconds: for all attempts.

        Raises:
            Conflict: another manager holds a field, and `force` is not given; `causes` name the fields.
            Invalid: the object is refused.
        """
        query = wire.write_query(field_manager=field_manager, dry_run=dry_run, strict=True)
        query["force"] = "true" if force else "false"
        return wire.object(
            await self.raw(
                "PATCH",
                resource.object_path(wire.name(body), wire.namespace(resource, body), subresource),
                query=query,
                body=wire.typed(resource, body),
                content_type=wire.APPLY_PATCH,
                timeout_seconds=timeout_seconds,
            )
        )

    async def delete(
        self,
        resource: resources.Resource,
        name: str,
        namespace: str | None = None,
        *,
        uid: str | None = None,
        resource_version: str | None = None,
        propagation: Literal["Background", "Foreground", "Orphan"] | None = None,
        grace_seconds: int | None = None,
        dry_run: bool = False,
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> None:
        """Delete an object; with finalizers it only begins to go.

        Args:
            resource: of what kind.
            name: of the object.
            namespace: of the object, if it has one.
            uid: delete only this very object, not one that took its name since.
            resource_version: delete only this version.
            propagation: what becomes of dependents; the server's default otherwise.
            grace_seconds: for pods.
            dry_run: check, delete nothing.
            timeout_seconds: for all attempts.

        Raises:
            NotFound: it is gone; after an attempt whose answer got lost this may be our own doing.
            Conflict: it is another object or version.
        """
        body = wire.delete_options(propagation, dry_run=dry_run)
        preconditions = {"uid": uid, "resourceVersion": resource_version}
        if any(preconditions.values()):
            body["preconditions"] = {key: value for key, value in preconditions.items() if value}
        if grace_seconds is not None:
            body["gracePeriodSeconds"] = grace_seconds
        path = resource.object_path(name, namespace)
        await self.raw("DELETE", path, body=body, timeout_seconds=timeout_seconds)

    async def delete_collection(
        self,
        resource: resources.Resource,
        namespace: str | None = None,
        *,
        label_selector: str | None = None,
        field_selector: str | None = None,
        propagation: Literal["Background", "Foreground", "Orphan"] | None = None,
        dry_run: bool = False,
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> None:
        """Delete all objects that match the selectors.

        Raises:
            ValueError: neither selector is given; everything of a kind is never ours to delete.
        """
        query = wire.selectors(label_selector, field_selector)
        if not query:
            raise ValueError(f"deleting {resource} needs a label or a field selector")
        path = resource.collection_path(namespace)
        body = wire.delete_options(propagation, dry_run=dry_run)
        await self.raw("DELETE", path, query=query, body=body, timeout_seconds=timeout_seconds)

    async def evict(
        self,
        name: str,
        namespace: str,
        *,
        uid: str | None = None,
        dry_run: bool = False,
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> None:
        """Ask for the eviction of a pod, which respects disruption budgets.

        With the UID of another pod the server takes ten seconds to say so: it tries conflicts again by itself.

        Raises:
            TooManyRequests: a budget forbids it for now; it is not tried again here.
            NotFound: the pod is gone.
            Conflict: another pod has the name by now.
        """
        body: wire.Object = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": namespace},
            "deleteOptions": wire.delete_options(None, dry_run=dry_run),
        }
        if uid is not None:
            body["deleteOptions"]["preconditions"] = {"uid": uid}
        path = resources.PODS.object_path(name, namespace, "eviction")
        await self.raw("POST", path, body=body, timeout_seconds=timeout_seconds, attempts=1)

    async def create_event(
        self,
        regarding: wire.Object,
        *,
        type_: Literal["Normal", "Warning"],
        reason: str,
        note: str,
        action: str,
        controller: str,
        instance: str,
        now: dt.datetime,
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> bool:
        """Post an event about an object; return whether that worked.

        Events are a courtesy: a failure is logged and never raised, for it must not stop what the event tells about.

        Args:
            regarding: the object (`apiVersion`, `kind`, `metadata`).
            type_: Normal or Warning.
            reason: why, a CamelCase word.
            note: what happened; cut at the 1024 bytes that the API allows.
            action: what was being done, a CamelCase word.
            controller: name of the component.
            instance: which of its instances.
            now: an aware time.
            timeout_seconds: for all attempts.
        """
        metadata = regarding.get("metadata", {})
        # Events on cluster-scoped objects live in the default namespace, as kubectl expects.
        namespace = metadata.get("namespace") or "default"
        reference = {
            "apiVersion": regarding.get("apiVersion"),
            "kind": regarding.get("kind"),
            "name": metadata.get("name"),
            "namespace": metadata.get("namespace"),
            "uid": metadata.get("uid"),
            "resourceVersion": metadata.get("resourceVersion"),
        }
        body = {
            "metadata": {
                # Cut, a name may end in what no part of a name may end in.
                "name": f"{metadata.get('name', 'unknown')[:230].rstrip('.-')}.{secrets.token_hex(8)}",
                "namespace": namespace,
            },
            "eventTime": wire.micro_time(now),
            "type": type_,
            "reason": reason[:128],
            "note": note.encode()[:_NOTE_LIMIT_BYTES].decode("utf-8", "ignore"),
            "action": action[:128],
            "regarding": {key: value for key, value in reference.items() if value},
            "reportingController": controller,
            "reportingInstance": instance[:128],
        }
        try:
            await self.create(resources.EVENTS, body, namespace, timeout_seconds=timeout_seconds)
        except errors.ApiError as error:
            logger.warning("The event %s about %s was not posted: %s", reason, metadata.get("name"), error)
            return False
        return True

    async def version(self) -> wire.ServerVersion:
        """Return the version of the API server, the emulated one if it emulates."""
        answer = wire.object(await self.raw("GET", "/version"))
        major = answer.get("emulationMajor") or answer.get("major")
        minor = answer.get("emulationMinor") or answer.get("minor")
        return wire.ServerVersion(
            str(answer.get("gitVersion", "")), wire.leading_integer(major), wire.leading_integer(minor)
        )

    async def serves(self, resource: resources.Resource) -> bool:
        """Return whether the API server serves a resource in its version."""
        try:
            answer = wire.object(await self.raw("GET", resource.group_path))
        except errors.NotFound:
            return False
        return any(served.get("name") == resource.plural for served in answer.get("resources", ()))
