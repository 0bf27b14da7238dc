"""Where the API server is and who we are there: kubeconfig files, exec plugins, service accounts.

The parsing of kubeconfigs is kubernetes_asyncio's; this module decides which source is used and when it is read again,
because a token is good for minutes and a process runs for months. Nothing here shows a token: not in a repr, not in an error.
"""

import asyncio
import hashlib
import ipaddress
import logging
import os
import ssl
import time
import urllib.request
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

from gpupolicy.adapters.kube import errors, lazyimport

logger = logging.getLogger(__name__)

SERVICE_ACCOUNT_DIRECTORY: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
REREAD_SECONDS: Final = 60.0
"""How long a token from a file is used before the file is read again; the kubelet replaces it well before expiry."""

_SERVICE: Final = ("KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT")
"""The variables by which the kubelet tells every container where the API server is."""

_EXPIRY_MARGIN_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class Credentials:
    """How to reach one API server, and as whom.

    Attributes:
        server: base URL.
        authorization: value of the Authorization header; None with client certificates or none at all.
        ca_file: file with the certificate authorities of the server; None means those of the system.
        certificate_file: file of the client certificate, if any.
        key_file: file of its key.
        verify: whether the server's certificate is checked.
        server_name: name that the server's certificate must have, if it is not the host of the URL.
        proxy: URL of the proxy from the kubeconfig, if any.
        namespace: namespace that the context of the kubeconfig names, if any.
    """

    server: str
    authorization: str | None = field(default=None, repr=False)
    ca_file: str | None = None
    certificate_file: str | None = None
    key_file: str | None = None
    verify: bool = True
    server_name: str | None = None
    proxy: str | None = field(default=None, repr=False)
    namespace: str | None = None

    @property
    def token(self) -> str | None:
        """The bearer token, if that is how we are known."""
        scheme, _, token = (self.authorization or "").partition(" ")
        return token if scheme == "Bearer" else None

    def transport(self) -> tuple[Any, ...]:
        """Return everything that a connection is made with; a change of it needs new connections.

        Files count by content: the kubelet rewrites the authorities whenever it rotates the token beside them.
        """
        files = (self.ca_file, self.certificate_file, self.key_file)
        return (self.server, self.verify, self.server_name, self.proxy, *map(_digest, files))

    def ssl_context(self) -> ssl.SSLContext:
        """Return the TLS settings.

        Raises:
            ConfigurationError: a file cannot be read or holds no certificate or key.
        """
        try:
            context = ssl.create_default_context(cafile=self.ca_file)
            if self.certificate_file:
                context.load_cert_chain(self.certificate_file, self.key_file)
        except (OSError, ValueError) as error:
            raise errors.ConfigurationError(f"TLS files of {self.server}: {error}") from error
        # Python 3.13 demands certificate extensions that many clusters' authorities lack and Go never asked for.
        context.verify_flags &= ~getattr(ssl, "VERIFY_X509_STRICT", 0)
        if not self.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context

    def proxy_url(self) -> str | None:
        """Return the proxy to use: that of the kubeconfig, else that of the environment unless NO_PROXY excepts us."""
        if self.proxy:
            return self.proxy
        parts = urlsplit(self.server)
        if _excepted(parts.hostname or ""):
            return None
        return urllib.request.getproxies_environment().get(parts.scheme)


class Source(Protocol):
    """Something that credentials can be read from, again and again."""

    async def read(self) -> Credentials:
        """Return the credentials as they are now.

        Raises:
            ConfigurationError: they cannot be had.
        """
        ...

    def stale_after_seconds(self) -> float | None:
        """Return for how long the last answer of `read` is good; None until the API server refuses it."""
        ...


class ServiceAccount:
    """The service account of the pod that we run in."""

    def __init__(self, directory: Path = SERVICE_ACCOUNT_DIRECTORY) -> None:
        self._directory = directory

    async def read(self) -> Credentials:
        """Return the credentials in the mounted files, see `Source`."""
        # Two variables and two files, which are a contract of Kubernetes. The library's loader of them would keep 1 MiB
        # of modules in every agent that it does not need for it.
        host, port = (os.environ.get(name, "") for name in _SERVICE)
        ca_file = self._directory / "ca.crt"
        try:
            # What ends up in a header has to be checked before: a token is one line of ASCII.
            token = (self._directory / "token").read_text(encoding="ascii").strip()
            authorities = ca_file.stat().st_size
        except (OSError, ValueError) as error:
            raise errors.ConfigurationError(f"service account in {self._directory}: {error}") from error
        for found, problem in (
            (host and port, f"{' and '.join(_SERVICE)} have to say where the API server is"),
            (token, "its file token is empty"),
            (authorities, "its file ca.crt is empty"),
        ):
            if not found:
                raise errors.ConfigurationError(f"service account in {self._directory}: {problem}")
        return Credentials(
            server=f"https://{f'[{host}]' if ':' in host else host}:{port}",
            authorization=f"Bearer {token}",
            ca_file=str(ca_file),
        )

    def stale_after_seconds(self) -> float | None:
        """Return the re-read period, see `Source`."""
        return REREAD_SECONDS


class Kubeconfig:
    """One context of a kubeconfig file, or of several merged as `KUBECONFIG` allows."""

    def __init__(self, path: str, context: str | None = None) -> None:
        self._path = path
        self._context = context
        self._stale_after_seconds: float | None = None

    async def read(self) -> Credentials:
        """Return the credentials of the context; runs its exec plugin, reads its token file. See `Source`."""
        lazyimport.install()
        from kubernetes_asyncio.config.kube_config import load_kube_config

        # KUBECONFIG may name several files, of which some may be missing.
        contents = [path for path in map(Path, self._path.split(os.pathsep)) if path.is_file()]
        if not any(path.stat().st_size for path in contents):
            what = "is empty" if contents else "does not exist"
            raise errors.ConfigurationError(
                f"kubeconfig {self._path} {what}: name another file or set KUBECONFIG"
            )
        settings = _Settings()
        try:
            loader = await load_kube_config(
                config_file=self._path,
                context=self._context,
                client_configuration=settings,
                persist_config=False,
            )
        # The library answers a malformed file with whatever exception it stumbles over, assertions included.
        except Exception as error:
            what = f"{type(error).__name__}: {error}"
            raise errors.ConfigurationError(errors.capped(f"kubeconfig {self._path}: {what}")) from error
        # After a load without complaint there is a context; every part of it but the cluster may be missing.
        context = (loader.current_context or {}).get("context") or {}
        credentials = replace(settings.credentials(), namespace=context.get("namespace") or None)
        if not credentials.server:
            raise errors.ConfigurationError(f"kubeconfig {self._path}: the context names no server")
        self._stale_after_seconds = _lifetime_seconds(loader)
        return credentials

    def stale_after_seconds(self) -> float | None:
        """Return the re-read period of a token file, or what is left of an exec plugin's answer. See `Source`."""
        return self._stale_after_seconds


def find(
    kubeconfig: str | None = None, context: str | None = None, *, service_account: Path | None = None
) -> Source:
    """Return the source that applies: what is given, KUBECONFIG, ~/.kube/config, the pod's service account.

    Raises:
        ConfigurationError: there is none; the message says what was looked at.
    """
    if service_account is not None:
        return ServiceAccount(service_account)
    path = kubeconfig or os.environ.get("KUBECONFIG")
    if path:
        return Kubeconfig(path, context)
    home = Path("~/.kube/config").expanduser()
    if home.is_file():
        return Kubeconfig(str(home), context)
    if os.environ.get("KUBERNETES_SERVICE_HOST") and context is None:
        return ServiceAccount()
    raise errors.ConfigurationError(
        f"no cluster: no kubeconfig was given, KUBECONFIG is not set, {home} does not exist"
        + (f", and context {context!r} needs one" if context else " and this is no pod")
    )


class Keeper:
    """Holds the credentials of one source and reads them again when they age or are refused."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._current: Credentials | None = None
        self._read_at = 0.0
        self._reading = asyncio.Lock()

    async def current(self) -> Credentials:
        """Return good credentials, read again if they aged.

        A source that fails to answer again is logged and its last answer kept: the old token may well be good.

        Raises:
            ConfigurationError: the first reading failed.
        """
        limit = self._source.stale_after_seconds()
        if self._current is not None and (limit is None or time.monotonic() - self._read_at < limit):
            return self._current
        try:
            return await self.renew()
        except errors.ConfigurationError as error:
            if self._current is None:
                raise
            logger.warning("The credentials could not be read again, the old ones stay in use: %s", error)
            self._read_at = time.monotonic()
            return self._current

    async def renew(self) -> Credentials:
        """Read the credentials now, whatever their age; callers at the same time share one reading.

        Raises:
            ConfigurationError: the source does not yield them.
        """
        known = self._current
        async with self._reading:
            if self._current is None or self._current is known:
                self._current = await self._source.read()
                self._read_at = time.monotonic()
            return self._current


@dataclass(slots=True)
class _Settings:
    """The attributes that kubernetes_asyncio's loaders set; its own Configuration has forty more and loggers."""

    api_key: dict[str, str] = field(default_factory=dict)
    host: str = ""
    ssl_ca_cert: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    verify_ssl: bool = True
    tls_server_name: str | None = None
    proxy: str | None = None

    def credentials(self) -> Credentials:
        # A token file may end in a line break, which is no part of the token and illegal in a header.
        authorization = self.api_key.get("BearerToken", "").strip()
        return Credentials(
            server=self.host.rstrip("/"),
            authorization=authorization or None,
            ca_file=self.ssl_ca_cert,
            certificate_file=self.cert_file,
            key_file=self.key_file,
            verify=self.verify_ssl,
            server_name=self.tls_server_name,
            proxy=self.proxy,
        )


def _lifetime_seconds(loader: Any) -> float | None:
    expiry = getattr(loader, "exec_plugin_expiry", None)
    if expiry is not None:
        left: float = expiry.timestamp() - time.time() - _EXPIRY_MARGIN_SECONDS
        return max(left, _EXPIRY_MARGIN_SECONDS / 2)
    # Only the parsed user entry tells a token file from a token.
    user = getattr(loader, "_user", None)
    return REREAD_SECONDS if user is not None and "tokenFile" in user else None


def _digest(path: str | None) -> bytes | None:
    try:
        return None if path is None else hashlib.sha256(Path(path).read_bytes()).digest()
    except OSError:
        return None


def _excepted(host: str) -> bool:
    """Return whether NO_PROXY excepts a host, also by CIDR: service networks are written so."""
    if urllib.request.proxy_bypass(host):
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    for entry in (os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or "").split(","):
        try:
            if "/" in entry and address in ipaddress.ip_network(entry.strip(), strict=False):
                return True
        except ValueError:
            continue
    return False
