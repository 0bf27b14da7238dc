"""A real control plane on loopback: etcd, API server, controller manager and scheduler.

Every component has a certificate of its own and the API server runs the Node and RBAC authorizers with
NodeRestriction and the default admission plugins, so what a test is allowed, a real cluster allows. Only
the test driver itself holds a certificate of system:masters.

An older API server is emulated by ``emulated_version="1.34"``: all three components then behave as that
release does, including the fields they drop.
"""

from __future__ import annotations

import base64
import dataclasses
import http
import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.cluster import pki
from tests.cluster.process import Daemon
from tests.cluster.rest import RestClient
from tests.cluster.run import Run

READY_TIMEOUT_SECONDS = 150.0
_LOOPBACK = "127.0.0.1"
_KUBELET_CLIENT = "kube-apiserver-kubelet-client"


class KubectlError(Exception):
    """kubectl ended with an error: ``returncode``, ``stdout`` and ``stderr`` say which."""

    def __init__(self, command: Sequence[str], done: subprocess.CompletedProcess[str]) -> None:
        super().__init__(f"{' '.join(command)}: exit status {done.returncode}\n{done.stderr}{done.stdout}")
        self.returncode = done.returncode
        self.stdout = done.stdout
        self.stderr = done.stderr


@dataclasses.dataclass(frozen=True, slots=True)
class ControlPlaneOptions:
    """How the control plane differs from a default one.

    Attributes:
        emulated_version: behave as this release (``"1.34"``), all components alike.
        feature_gates: gates for all components; a gate unknown to one is refused by it.
        runtime_config: served API versions, such as ``{"resource.k8s.io/v1alpha3": "true"}``.
        api_server_flags: further flags of the API server; also of the controller manager below.
        scheduler_profiles: ``profiles`` of the scheduler's configuration.
        node_monitor_grace_seconds: after how long without a heartbeat a node is marked unreachable.
            The default is so long that nodes without a kubelet, made by a test, stay as they are.
    """

    emulated_version: str | None = None
    feature_gates: Mapping[str, bool] = dataclasses.field(default_factory=dict)
    runtime_config: Mapping[str, str] = dataclasses.field(default_factory=dict)
    api_server_flags: Sequence[str] = ()
    controller_manager_flags: Sequence[str] = ()
    scheduler_profiles: Sequence[Mapping[str, Any]] = ()
    node_monitor_grace_seconds: int = 24 * 3600


@dataclasses.dataclass(frozen=True, slots=True)
class ServiceAccountAccess:
    """A service account's way in, laid out like the volume that a pod gets.

    ``directory`` holds ``token``, ``ca.crt`` and ``namespace``; ``kubeconfig`` reads the token from
    ``token_file``, so a `rotate` reaches clients that read the file again.
    """

    kubeconfig: Path
    directory: Path
    _control_plane: ControlPlane
    _path: str
    _request: Mapping[str, Any]

    @property
    def token_file(self) -> Path:
        return self.directory / "token"

    def rotate(self) -> str:
        """Ask for a new token with the same binding, replace the file atomically, return the token."""
        token: str = self._control_plane.admin.create(self._path, self._request)["status"]["token"]
        scratch = self.directory / ".token.new"
        scratch.touch(mode=0o600)
        scratch.write_text(token, encoding="ascii")
        scratch.replace(self.token_file)
        return token


class ControlPlane:
    """The control plane of one run: `start` makes it, `load` takes a running one up again."""

    def __init__(self, run: Run, programs: Path) -> None:
        self.run = run
        self.programs = programs
        self._authority = pki.CertificateAuthority(run.directory / "pki")
        self._admin: RestClient | None = None

    @classmethod
    def start(cls, run: Run, programs: Path, options: ControlPlaneOptions | None = None) -> ControlPlane:
        """Start all components from the directory `programs` and wait until pods can be created."""
        control_plane = cls(run, programs)
        control_plane._record_components(options or ControlPlaneOptions())
        control_plane.etcd.start()
        control_plane.api_server.start()
        control_plane.wait_ready()
        control_plane.controller_manager.start()
        control_plane.scheduler.start()
        control_plane._allow_kubelet_calls()
        control_plane._wait_for_controllers()
        return control_plane

    @classmethod
    def load(cls, run: Run) -> ControlPlane:
        """Take up the control plane that another program started in this run.

        Raises:
            LookupError: when the run has none.
        """
        part = run.part("control_plane")
        if part is None:
            raise LookupError(f"{run.directory} has no control plane")
        return cls(run, Path(part["programs"]))

    @property
    def etcd(self) -> Daemon:
        return Daemon(self.run, "etcd")

    @property
    def api_server(self) -> Daemon:
        """The API server's process: `pause`, `resume`, `kill` and `start` it to take it away for a while.

        It comes back on the same port with the same data; follow a `start` with `wait_ready`.
        """
        return Daemon(self.run, "kube-apiserver")

    @property
    def controller_manager(self) -> Daemon:
        return Daemon(self.run, "kube-controller-manager")

    @property
    def scheduler(self) -> Daemon:
        return Daemon(self.run, "kube-scheduler")

    @property
    def url(self) -> str:
        """``https://127.0.0.1:PORT`` of the API server."""
        return f"https://{_LOOPBACK}:{self._settings['port']}"

    @property
    def service_address(self) -> str:
        """The cluster IP of the service ``kubernetes``: where pods look for the API server."""
        address: str = self._settings["service_address"]
        return address

    @property
    def ca_file(self) -> Path:
        return self._authority.files.certificate

    @property
    def authority(self) -> pki.CertificateAuthority:
        """The authority that API server and kubelets trust."""
        return self._authority

    @property
    def admin(self) -> RestClient:
        """REST as the test driver (system:masters)."""
        if self._admin is None:
            self._admin = RestClient(self.admin_kubeconfig)
        return self._admin

    @property
    def admin_kubeconfig(self) -> Path:
        """The kubeconfig of the test driver; no component uses it."""
        return self.kubeconfig("admin", groups=("system:masters",))

    def rest(self, kubeconfig: Path) -> RestClient:
        """A REST client for any identity's kubeconfig."""
        return RestClient(kubeconfig)

    def kubeconfig(self, user: str, groups: Sequence[str] = ()) -> Path:
        """A kubeconfig with a client certificate for any user and groups; the same file for the same two.

        Examples of users: ``alice``, ``system:node:n1`` (group ``system:nodes``).
        """
        name = _file_name("-".join([user, *groups]))
        path = self.run.directory / "kubeconfigs" / f"{name}.yaml"
        if not path.exists():
            pair = self._authority.issue(f"client-{name}", user, groups)
            self._write_kubeconfig(
                path,
                user,
                {"client-certificate-data": _base64(pair.certificate), "client-key-data": _base64(pair.key)},
            )
        return path

    def service_account_kubeconfig(
        self,
        namespace: str,
        name: str,
        *,
        node: str | None = None,
        pod: str | None = None,
        expiration_seconds: int = 3600,
        audiences: Sequence[str] = (),
    ) -> ServiceAccountAccess:
        """Ask for a token of an existing service account, bound to a node or pod when one is named.

        A bound token carries ``authentication.kubernetes.io/node-name`` of its node, or of its pod's.
        """
        bound: dict[str, Any] = {}
        if node is not None and pod is not None:
            raise ValueError("a token is bound to a node or to a pod, not to both")
        if node is not None:
            uid = self.admin.get(f"/api/v1/nodes/{node}")["metadata"]["uid"]
            bound = {"boundObjectRef": {"apiVersion": "v1", "kind": "Node", "name": node, "uid": uid}}
        if pod is not None:
            uid = self.admin.get(f"/api/v1/namespaces/{namespace}/pods/{pod}")["metadata"]["uid"]
            bound = {"boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": pod, "uid": uid}}
        request = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": expiration_seconds, "audiences": list(audiences), **bound},
        }
        slug = _file_name("-".join(filter(None, ["sa", namespace, name, node, pod])))
        directory = self.run.directory / "service-accounts" / slug
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        shutil.copyfile(self.ca_file, directory / "ca.crt")
        (directory / "namespace").write_text(namespace, encoding="ascii")
        kubeconfig = directory / "kubeconfig.yaml"
        self._write_kubeconfig(
            kubeconfig, f"{namespace}/{name}", {"tokenFile": str(directory / "token")}, namespace
        )
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
        access = ServiceAccountAccess(kubeconfig, directory, self, path, request)
        access.rotate()
        return access

    def environment(self, kubeconfig: Path | None = None) -> dict[str, str]:
        """The environment for kubectl, helm and other clients: PATH, KUBECONFIG, caches in the run."""
        return {
            **os.environ,
            "PATH": f"{self.programs}:{os.environ.get('PATH', '/usr/bin:/bin')}",
            "KUBECONFIG": str(kubeconfig or self.admin_kubeconfig),
            "KUBECACHEDIR": str(self.run.directory / "kubectl-cache"),
            "HOME": str(self.run.directory),
        }

    def kubectl(
        self,
        *arguments: str,
        stdin: str | None = None,
        kubeconfig: Path | None = None,
        timeout_seconds: float = 180.0,
    ) -> str:
        """Run kubectl, as the test driver unless another kubeconfig is given, and return what it printed.

        Raises:
            KubectlError: when it fails.
        """
        command = [str(self.programs / "kubectl"), *arguments]
        done = subprocess.run(
            command,
            input=stdin,
            env=self.environment(kubeconfig),
            capture_output=True,
            text=True,
            timeout=timeout_seconds,
            check=False,
        )
        if done.returncode:
            raise KubectlError(["kubectl", *arguments], done)
        return done.stdout

    def audit_position(self) -> int:
        """The end of the audit log now, for `writes`."""
        path = self._audit_log
        return path.stat().st_size if path.exists() else 0

    def writes(self, *, user: str | None = None, after: int = 0) -> list[dict[str, Any]]:
        """The requests that wanted to change something, refused and dry-run ones included, oldest first.

        Each is an audit event (``verb``, ``user``, ``objectRef``, ``requestObject``, ``responseStatus``, ...).
        Heartbeats (leases) and reviews of tokens and access are not among them.

        Args:
            user: only those of this user, such as ``system:serviceaccount:ns:name``.
            after: only those after this `audit_position`.
        """
        if not self._audit_log.exists():
            return []
        with self._audit_log.open(encoding="utf-8") as file:
            file.seek(after)
            events = [json.loads(line) for line in file if line.endswith("\n")]
        return [event for event in events if user is None or event["user"]["username"] == user]

    def wait_ready(self, timeout_seconds: float = READY_TIMEOUT_SECONDS) -> None:
        """Wait until the API server answers /readyz (after a start, restart or resume)."""

        def ready() -> bool:
            self.etcd.require_alive()
            try:
                return self.admin.call("GET", "/readyz").status == http.HTTPStatus.OK
            except OSError:
                return False

        self.api_server.wait_until(ready, f"{self.url}/readyz", timeout_seconds=timeout_seconds)

    def restart_api_server(self) -> None:
        """Kill the API server, start it on the same port and data, and wait until it is ready.

        An orderly end would wait a minute for open watches.
        """
        self.api_server.kill()
        self.api_server.start()
        self.wait_ready()

    @property
    def _audit_log(self) -> Path:
        return self.run.directory / "logs" / "audit.log"

    @property
    def _settings(self) -> Mapping[str, Any]:
        settings = self.run.part("control_plane")
        assert settings is not None
        return settings

    def _wait_for_controllers(self) -> None:
        def made() -> bool:
            self.scheduler.require_alive()
            account = "/api/v1/namespaces/default/serviceaccounts/default"
            return self.admin.call("GET", account).status == http.HTTPStatus.OK

        self.controller_manager.wait_until(
            made, "the default service account", timeout_seconds=READY_TIMEOUT_SECONDS
        )

    def _allow_kubelet_calls(self) -> None:
        """Let the API server's own identity reach kubelets (logs, exec), as installers do."""
        name = "gpupolicy-test:kubelet-api-admin"
        group = "rbac.authorization.k8s.io"
        binding = {
            "apiVersion": f"{group}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": name},
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "system:kubelet-api-admin"},
            "subjects": [{"apiGroup": group, "kind": "User", "name": _KUBELET_CLIENT}],
        }
        self.admin.create(f"/apis/{group}/v1/clusterrolebindings", binding)

    def _record_components(self, options: ControlPlaneOptions) -> None:
        client_port, peer_port, secure_port = self.run.reserve_ports(3)
        service_network = self.run.reserve_network()
        service_address = str(service_network[1])
        self.run.store_part(
            "control_plane",
            {"programs": str(self.programs), "port": secure_port, "service_address": service_address},
        )
        (self.run.directory / "logs").mkdir(exist_ok=True)
        (self.run.directory / "kubeconfigs").mkdir(mode=0o700, exist_ok=True)
        etcd_url, peer_url = f"http://{_LOOPBACK}:{client_port}", f"http://{_LOOPBACK}:{peer_port}"
        self.run.daemon(
            "etcd",
            [
                self.programs / "etcd",
                f"--data-dir={self.run.data_directory / 'etcd'}",
                f"--listen-client-urls={etcd_url}",
                f"--advertise-client-urls={etcd_url}",
                f"--listen-peer-urls={peer_url}",
                f"--initial-advertise-peer-urls={peer_url}",
                f"--initial-cluster=default={peer_url}",
                # Nobody needs these data after a power cut.
                "--unsafe-no-fsync",
                "--log-level=warn",
            ],
        )
        signing = pki.write_signing_key(self._authority.directory)
        common = _common_flags(options)
        self.run.daemon(
            "kube-apiserver",
            [
                self.programs / "kube-apiserver",
                f"--etcd-servers={etcd_url}",
                f"--bind-address={_LOOPBACK}",
                f"--secure-port={secure_port}",
                *self._api_server_identity(service_address),
                "--service-account-issuer=https://kubernetes.default.svc",
                f"--service-account-key-file={signing.certificate}",
                f"--service-account-signing-key-file={signing.key}",
                f"--service-cluster-ip-range={service_network}",
                "--authorization-mode=Node,RBAC",
                "--enable-admission-plugins=NodeRestriction",
                "--allow-privileged=true",
                "--kubelet-preferred-address-types=InternalIP",
                f"--audit-policy-file={self._write_audit_policy()}",
                f"--audit-log-path={self._audit_log}",
                *common,
                *_map_flag("runtime-config", options.runtime_config),
                *options.api_server_flags,
            ],
        )
        controller_kubeconfig = self.kubeconfig("system:kube-controller-manager")
        self.run.daemon(
            "kube-controller-manager",
            [
                self.programs / "kube-controller-manager",
                f"--kubeconfig={controller_kubeconfig}",
                "--use-service-account-credentials=true",
                f"--service-account-private-key-file={signing.key}",
                f"--root-ca-file={self.ca_file}",
                "--leader-elect=false",
                "--secure-port=0",
                "--controllers=*,-node-ipam-controller",
                f"--node-monitor-grace-period={options.node_monitor_grace_seconds}s",
                "--kube-api-qps=200",
                "--kube-api-burst=400",
                *common,
                *options.controller_manager_flags,
            ],
        )
        configuration = self.run.directory / "scheduler.yaml"
        configuration.write_text(json.dumps(self._scheduler_configuration(options)), encoding="utf-8")
        self.run.daemon(
            "kube-scheduler",
            [self.programs / "kube-scheduler", f"--config={configuration}", "--secure-port=0", *common],
        )

    def _api_server_identity(self, service_address: str) -> list[str]:
        serving = self._authority.issue(
            "apiserver",
            "kube-apiserver",
            dns_names=("localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"),
            addresses=(_LOOPBACK, service_address),
        )
        # The identity with which the API server calls kubelets (logs, exec).
        calling = self._authority.issue("apiserver-kubelet-client", _KUBELET_CLIENT)
        return [
            # Announced as the endpoint of the service: loopback is not allowed there.
            f"--advertise-address={service_address}",
            f"--tls-cert-file={serving.certificate}",
            f"--tls-private-key-file={serving.key}",
            f"--client-ca-file={self.ca_file}",
            f"--kubelet-client-certificate={calling.certificate}",
            f"--kubelet-client-key={calling.key}",
            f"--kubelet-certificate-authority={self.ca_file}",
        ]

    def _write_audit_policy(self) -> Path:
        reviews = [
            {"group": group, "resources": ["*"]}
            for group in ("authentication.k8s.io", "authorization.k8s.io")
        ]
        leases = {"group": "coordination.k8s.io", "resources": ["leases"]}
        secrets = {"group": "", "resources": ["secrets", "serviceaccounts/token"]}
        policy = {
            "apiVersion": "audit.k8s.io/v1",
            "kind": "Policy",
            "omitStages": ["RequestReceived"],
            "rules": [
                {"level": "None", "verbs": ["get", "list", "watch"]},
                {"level": "None", "resources": [leases, *reviews]},
                {"level": "Metadata", "resources": [secrets]},
                {"level": "Request"},
            ],
        }
        path = self.run.directory / "audit-policy.yaml"
        path.write_text(json.dumps(policy, indent=1), encoding="utf-8")
        return path

    def _scheduler_configuration(self, options: ControlPlaneOptions) -> dict[str, Any]:
        configuration: dict[str, Any] = {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "leaderElection": {"leaderElect": False},
            "clientConnection": {
                "kubeconfig": str(self.kubeconfig("system:kube-scheduler")),
                "qps": 200,
                "burst": 400,
            },
        }
        if options.scheduler_profiles:
            configuration["profiles"] = [dict(profile) for profile in options.scheduler_profiles]
        return configuration

    def _write_kubeconfig(
        self, path: Path, user: str, credentials: Mapping[str, str], namespace: str = "default"
    ) -> None:
        cluster = {"server": self.url, "certificate-authority-data": _base64(self.ca_file)}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": user, "user": dict(credentials)}],
            "contexts": [
                {"name": "test", "context": {"cluster": "test", "user": user, "namespace": namespace}}
            ],
            "current-context": "test",
        }
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        scratch = path.with_suffix(".new")
        scratch.touch(mode=0o600)
        # JSON is YAML, and the standard library writes it.
        scratch.write_text(json.dumps(config, indent=1), encoding="utf-8")
        scratch.replace(path)


def _common_flags(options: ControlPlaneOptions) -> list[str]:
    flags = _map_flag("feature-gates", {k: str(v).lower() for k, v in options.feature_gates.items()})
    if options.emulated_version is not None:
        flags.append(f"--emulated-version={options.emulated_version}")
    return flags


def _map_flag(name: str, values: Mapping[str, str]) -> list[str]:
    return [f"--{name}=" + ",".join(f"{key}={value}" for key, value in values.items())] if values else []


def _file_name(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9.-]+", "_", text)


def _base64(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode("ascii")
