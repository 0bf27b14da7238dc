"""The agent's process: composes the parts, starts them in the order that keeps promises, and ends in an orderly way.

    probes ─> lock of the node ─> Node's UID ─> ledger ─> first look at the cards ─> claims of before are taken up
                                                     ─> kubelet plugin serves ─> loop, slices, GpuNode, node watch
    SIGTERM ─> loop ends, changes under way are finished ─> sockets removed, calls finished ─> connections close
                                                                                             ─> the lock is free

Before it has the lock of the node an agent touches no card, no slice, no socket and no ledger: the one that has it may be
in the middle of a change.

Slices, classes and pods stay as they are when the agent goes: a restart must not withdraw devices, and pods go on.
"""

import argparse
import asyncio
import contextlib
import gc
import logging
import os
import signal
import sys
import time
from collections.abc import Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

from gpupolicy import __version__
from gpupolicy.adapters import cdi, devicefiles, files, kube, listening, logs
from gpupolicy.adapters.kubeletplugin.server import KubeletPlugin, PluginStatus
from gpupolicy.adapters.ledger import Contents, Damage, Ledger
from gpupolicy.adapters.nodelock import NodeLock
from gpupolicy.adapters.nvml import library
from gpupolicy.adapters.nvml.errors import NvmlError
from gpupolicy.adapters.nvml.session import Nvml
from gpupolicy.agent import endpoints, footprint, metrics
from gpupolicy.agent.claimlist import ClaimList
from gpupolicy.agent.claims import ClaimHandler
from gpupolicy.agent.gpunode import GpuNodeObject
from gpupolicy.agent.health import StateHealth
from gpupolicy.agent.nodewatch import NodeWatch
from gpupolicy.agent.ports import Surroundings, Timing
from gpupolicy.agent.publication import Publication
from gpupolicy.agent.reconcile import Reconciler
from gpupolicy.agent.state import GPU_KIND, LEDGER_KINDS, VOLATILE_KINDS, NodeState
from gpupolicy.api import names
from gpupolicy.api.conditions import Reason
from gpupolicy.core import ownership, records
from gpupolicy.core.records import PreparedDevice
from gpupolicy.core.refusals import Refusal

# Not __name__, which is __main__ when the module is run as a program.
_log = logging.getLogger("gpupolicy.agent.app")

_T = TypeVar("_T")

_TIMING: Final = Timing()
SWEEP_SECONDS: Final = 600.0
"""How often claims that nobody will unprepare are looked for."""
DRAIN_SECONDS: Final = 20.0
"""How long the end of the process waits for changes of cards that are under way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the process is started with.

    Attributes:
        node: name of the node.
        kubeconfig: path of a kubeconfig file; None as in `kube.Kube.connect`.
        service_account: directory of a service account, in place of a kubeconfig.
        kubelet_root: the kubelet's directory.
        cdi_directory: where the container runtime looks for CDI specs.
        state_directory: where the ledger lives.
        roots: where the driver's files stand.
        sysfs: root of sysfs.
        nvml_library: the library to load; None: below the driver root, or as the loader finds it.
        nvidia_ctk: path of `nvidia-ctk`; None: device nodes only.
        cdi_hook: path of `nvidia-cdi-hook` on the host.
        mounts: mounts that every container with a device gets on top.
        health_port: port of the health endpoints; None: none.
        instance_id: UID of the pod, where two agents may overlap during an update.
        timing: how long things take.
        nvml_seconds: deadline of one NVML call.
    """

    node: str
    kubeconfig: str | None = None
    service_account: Path | None = None
    kubelet_root: Path = Path("/var/lib/kubelet")
    cdi_directory: Path = Path("/var/run/cdi")
    state_directory: Path
    roots: devicefiles.Roots = field(default_factory=devicefiles.Roots)
    sysfs: Path = Path("/sys")
    nvml_library: Path | None = None
    nvidia_ctk: Path | None = None
    cdi_hook: Path | None = None
    mounts: tuple[cdi.Mount, ...] = ()
    health_port: int | None = None
    instance_id: str | None = None
    timing: Timing = field(default_factory=Timing)
    nvml_seconds: float = 30.0

    @property
    def plugin_directory(self) -> Path:
        """The driver's own directory below the kubelet's."""
        return self.kubelet_root / "plugins" / names.DRIVER

    @property
    def lock_path(self) -> Path:
        """What the one agent of this node holds; see `nodelock`."""
        return self.plugin_directory / "agent.lock"

    @property
    def boot_id_path(self) -> Path:
        """Where the kernel says which boot this is; below the proc root where that has it."""
        below = self.roots.proc / "sys/kernel/random/boot_id"
        return below if below.exists() else Path("/proc/sys/kernel/random/boot_id")


class Agent:
    """All parts of one process.

    Args:
        client: the API server.
        options: what the process is started with.
        node_uid: UID of the Node.
        ledger: opened, not loaded.
        watch: what the Node says.
        nvml: the cards; made from the options unless given.
    """

    def __init__(
        self,
        client: kube.Kube,
        options: Options,
        *,
        node_uid: str,
        ledger: Ledger,
        watch: NodeWatch,
        nvml: Nvml | None = None,
    ) -> None:
        self._options = options
        self._ledger = ledger
        self._watch = watch
        self.state = NodeState(options.node, ledger)
        self.metrics = metrics.for_node(self.state)
        wake = self.state.reconcile.set
        self.nvml = nvml or Nvml(
            options.nvml_library or library.find(options.roots.driver),
            sysfs=options.sysfs,
            call_seconds=options.nvml_seconds,
        )
        self.nvml.heard = wake
        self.publication = Publication(client, options.node, node_uid, on_change=wake)
        self.gpunode = GpuNodeObject(client, options.node, node_uid, on_spec=wake)
        self._files = devicefiles.DeviceFiles(
            roots=options.roots,
            nvidia_ctk=options.nvidia_ctk,
            cdi_hook=options.cdi_hook,
            extra=cdi.ContainerEdits(mounts=options.mounts),
        )
        self.claims = ClaimHandler(
            self.state,
            client,
            self._files,
            options.cdi_directory,
            store=ledger,
            busy=self._is_busy,
        )
        self.plugin = KubeletPlugin(
            names.DRIVER,
            options.plugin_directory,
            options.kubelet_root / "plugins_registry",
            metrics.MeasuredClaims(self.claims, self.metrics),
            health=StateHealth(self.state),
            instance_id=options.instance_id,
            on_status=self._plugin_changed,
        )
        self.reconciler = Reconciler(
            self.state,
            metrics.MeasuredCards(self.nvml, self.metrics),
            self.publication,
            self.gpunode,
            ClaimList(client, self.state.pool),
            surroundings=self._surroundings,
            on_change=self._files.refresh,
            boot_id=ledger.boot_id,
            agent_version=__version__,
            timing=options.timing,
            journal=metrics.MeasuredLoop(self.metrics),
        )
        self._damaged: dict[str, str] = {}
        self._recovery_problem = ""
        self._registered = False

    async def run(self, stop: asyncio.Event) -> None:
        """Run until `stop` is set.

        Raises:
            files.FileError: the ledger cannot be read.
            sockets.SocketError: the kubelet's directories cannot be served.
        """
        contents = await self._ledger.load()
        self._take_up(contents)
        # What stands has to be known before claims of before are taken up, and they before anything is planned.
        await self.reconciler.look()
        await self._recover(contents)
        # What start-up left behind is not garbage, and need not be looked at again.
        gc.collect()
        gc.freeze()
        footprint.trim()
        await self.plugin.start()
        self._watch.on_replaced = stop.set
        loop = asyncio.create_task(self._work())
        stopping = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait([loop, stopping], return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
            loop.cancel()
            results = await asyncio.gather(loop, return_exceptions=True)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(DRAIN_SECONDS):
                    await self.reconciler.drain()
            await self.plugin.stop()
            await self.nvml.close()
        if isinstance(results[0], Exception):
            raise results[0]

    async def _work(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self.gpunode.run())
            group.create_task(self.publication.run())
            group.create_task(self._watch.run())
            group.create_task(self.reconciler.run())
            group.create_task(self._sweep())
            group.create_task(self._tell_health())

    def _take_up(self, contents: Contents) -> None:
        """Remember what earlier processes did to the cards, as far as a reboot has left it true."""
        for record in contents.records:
            if record.kind != GPU_KIND:
                continue
            try:
                known = records.decode_gpu(record.data)
            except ValueError as error:
                self._damaged[record.key] = (
                    f"the ledger's record of the card has no shape that is known: {error}"
                )
                continue
            same_boot = record.boot_id == self._ledger.boot_id
            known = known if same_boot else ownership.after_boot(known)
            self.state.gpus[record.key] = known
            if known.xid is not None:
                self.nvml.remember(known.gpu_uuid, known.xid)
        for file in contents.damaged:
            if file.kind == GPU_KIND and file.damage is not Damage.SET_ASIDE:
                _log.error(
                    "%s is kept, and its card is left alone: %s (%s)", file.path, file.damage, file.detail
                )
                self._damaged[file.key] = (
                    f"{file.path} is damaged ({file.damage}: {file.detail}), so nothing proves which instances are "
                    "ours. Move the file away and restart the agent; instances that stand then count as foreign"
                )

    async def _recover(self, contents: Contents) -> None:
        try:
            await self.claims.recover(contents, self.state.devices)
        except (files.FileError, cdi.SpecError) as error:
            _log.error("claims of before cannot be taken up in full: %s", error)
            self._recovery_problem = str(error)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            if await self.claims.sweep():
                self._recovery_problem = ""
            footprint.trim()

    async def _tell_health(self) -> None:
        """Send the health of devices to the kubelet when it changed, not only every few seconds."""
        told = dict(self.state.health)
        while True:
            async with self.state.changed:
                await self.state.changed.wait()
            if self.state.health != told:
                told = dict(self.state.health)
                self.plugin.health_changed()

    async def _is_busy(self, held: PreparedDevice) -> bool:
        """Return whether a process runs on a device; also where that cannot be told."""
        try:
            gpu = await self.nvml.read(held.device.gpu_uuid)
        except NvmlError:
            return True
        if held.device.placement is None:
            return bool(gpu.processes)
        key = (held.device.profile_id, held.device.placement)
        return any(i.processes for i in gpu.instances if (i.profile_id, i.placement) == key)

    def _plugin_changed(self, status: PluginStatus) -> None:
        if status.registered and not self._registered:
            _log.info("the kubelet has registered the driver: claims can be prepared")
            # The kubelet wipes the slices of its node when it starts, at this very moment.
            self.publication.wake()
        self._registered = status.registered
        self.state.reconcile.set()

    def _surroundings(self) -> Surroundings:
        troubles = []
        status = self.plugin.status
        if not status.registered:
            text = status.problem or "the kubelet has not accepted the driver's registration yet"
            troubles.append(Refusal(Reason.PLUGIN_NOT_REGISTERED, text))
        disk = self._recovery_problem or self.claims.disk_problem
        if disk:
            troubles.append(Refusal(Reason.CDI_UNAVAILABLE, disk))
        for uid, file in sorted(self.claims.damaged.items()):
            text = f"the record of claim {uid} is damaged ({file.path}: {file.detail}); it is kept, and its devices too"
            troubles.append(Refusal(Reason.LEDGER_CORRUPT, text))
        troubles += [Refusal(Reason.LEDGER_CORRUPT, text) for text in self._damaged.values()]
        if self.publication.dropped:
            text = f"the API server drops {', '.join(self.publication.dropped)}: its release or a feature gate is too old"
            troubles.append(Refusal(Reason.FIELDS_DROPPED, text))
        if self.gpunode.problem:
            troubles.append(Refusal(Reason.WAITING_FOR_AGENT, self.gpunode.problem))
        return Surroundings(
            troubles=tuple(troubles), device_plugin=self._watch.device_plugin, damaged=self._damaged
        )

    def unready(self) -> str:
        """Return why claims cannot be prepared now; empty when they can."""
        if not self.state.loaded.is_set():
            return "the cards have not been seen yet"
        status = self.plugin.status
        return "" if status.registered else status.problem or "the kubelet has not registered the driver yet"


async def serve(options: Options) -> None:
    """Run an agent until SIGTERM or SIGINT."""
    # CDI files are written there, which takes microseconds; each thread costs the memory of its stack for ever.
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(2, thread_name_prefix="files"))
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with contextlib.AsyncExitStack() as stack:
        doors = await stack.enter_async_context(endpoints.Endpoints(options.health_port))
        lock = NodeLock(options.lock_path, _holder(options))
        client = await stack.enter_async_context(
            kube.Kube.connect(
                options.kubeconfig, service_account=options.service_account, user_agent="gpupolicy-agent"
            )
        )
        if not await _unless_stopped(_alone(lock, doors), stop):
            return
        watch = NodeWatch(client, options.node)
        uid = await _unless_stopped(watch.uid(), stop)
        if not uid:
            return
        options.state_directory.parent.mkdir(parents=True, exist_ok=True)
        options.cdi_directory.mkdir(parents=True, exist_ok=True)
        ledger = Ledger(
            options.state_directory,
            kinds=LEDGER_KINDS,
            volatile=VOLATILE_KINDS,
            boot_id_path=options.boot_id_path,
        )
        async with ledger:
            agent = Agent(client, options, node_uid=uid, ledger=ledger, watch=watch)
            watch.on_change = agent.state.reconcile.set
            doors.unready, doors.measured = agent.unready, agent.metrics
            client.observe(agent.metrics.request)
            await agent.run(stop)


async def _alone(lock: NodeLock, doors: endpoints.Endpoints) -> bool:
    """Wait until no other agent runs on this node; say meanwhile who does. Always returns True."""
    if not lock.take():
        text = (
            f"another agent runs on this node ({lock.other}); this one waits for its end and touches nothing"
        )
        _log.warning("%s", text)
        doors.unready = lambda: text
        await lock.wait()
        _log.info("the other agent has ended; this one takes over")
        doors.unready = lambda: "the agent is taking over from another one"
    return True


async def _unless_stopped(work: Coroutine[Any, Any, _T], stop: asyncio.Event) -> _T | None:
    """Return what work returns; None where `stop` is set first, and then the work is cancelled."""
    task = asyncio.ensure_future(work)
    stopped = asyncio.ensure_future(stop.wait())
    await asyncio.wait([task, stopped], return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if not task.done():
        task.cancel()
        return None
    return task.result()


def _holder(options: Options) -> str:
    """Return who we are, for an agent that has to wait for us. A pid means nothing outside of its pod."""
    pod = f"pod {options.instance_id}, " if options.instance_id else ""
    return f"{pod}process {os.getpid()}, since {time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())}"


def parse(arguments: Sequence[str] | None = None) -> tuple[Options, str]:
    """Return the options and the log level; ends the process with a usage message where they make no sense."""
    parser = argparse.ArgumentParser(prog="gpupolicy-agent", description="GpuPolicy's agent of one node.")
    add = parser.add_argument
    add("--node-name", default=os.environ.get("NODE_NAME"), help="name of this node (NODE_NAME)")
    add("--kubeconfig", help="kubeconfig file; default: KUBECONFIG, then the pod's service account")
    add(
        "--service-account",
        type=Path,
        help="directory with token and ca.crt, in place of a kubeconfig; default: the pod's, where there is none",
    )
    add("--kubelet-root", type=Path, default=Path("/var/lib/kubelet"), help="the kubelet's directory")
    add("--cdi-dir", type=Path, default=Path("/var/run/cdi"), help="where the runtime looks for CDI specs")
    add("--state-dir", type=Path, help="the ledger; default: below the driver's plugin directory")
    add("--driver-root", type=Path, default=Path("/"), help="root of the driver's files")
    add(
        "--driver-root-on-host",
        type=Path,
        help="where the driver root stands on the host; default: in the same place",
    )
    add("--dev-root", type=Path, default=Path("/"), help="what /dev is relative to")
    add("--proc-root", type=Path, default=Path("/proc"), help="root of procfs")
    add("--sys-root", type=Path, default=Path("/sys"), help="root of sysfs")
    add("--nvml-library", type=Path, help="NVML; default: below the driver root, or as the loader finds it")
    add("--nvidia-ctk", type=Path, help="nvidia-ctk; without it containers get device nodes only")
    add("--nvidia-cdi-hook", type=Path, help="nvidia-cdi-hook on the host, for what nvidia-ctk writes")
    add(
        "--cdi-mount",
        type=_mount,
        action="append",
        default=[],
        metavar="HOST:CONTAINER[:ro]",
        help="a mount for every container with a device; may be repeated",
    )
    add("--poll-seconds", type=_seconds, default=_TIMING.poll, help="how often the cards are looked at")
    add("--settle-seconds", type=_seconds, default=_TIMING.settle, help="pause between withdrawal and change")
    add("--nvml-seconds", type=_seconds, default=30.0, help="deadline of one NVML call")
    add("--health-port", type=listening.port, help="port of /healthz, /readyz and /metrics; default: none")
    add(
        "--pod-uid",
        default=os.environ.get("POD_UID"),
        help="UID of this pod, for updates that overlap (POD_UID)",
    )
    add("--log-level", choices=["debug", "info", "warning", "error"], default="info")
    parsed = parser.parse_args(arguments)
    if not parsed.node_name:
        parser.error("--node-name is needed (or NODE_NAME, from the pod's spec.nodeName)")
    plugin_directory = parsed.kubelet_root / "plugins" / names.DRIVER
    options = Options(
        node=parsed.node_name,
        kubeconfig=parsed.kubeconfig,
        service_account=parsed.service_account,
        kubelet_root=parsed.kubelet_root,
        cdi_directory=parsed.cdi_dir,
        state_directory=parsed.state_dir or plugin_directory / "ledger",
        roots=devicefiles.Roots(
            driver=parsed.driver_root,
            driver_on_host=parsed.driver_root_on_host,
            dev=parsed.dev_root,
            proc=parsed.proc_root,
        ),
        sysfs=parsed.sys_root,
        nvml_library=parsed.nvml_library,
        nvidia_ctk=parsed.nvidia_ctk,
        cdi_hook=parsed.nvidia_cdi_hook,
        mounts=tuple(parsed.cdi_mount),
        health_port=parsed.health_port,
        instance_id=parsed.pod_uid,
        timing=Timing(poll=parsed.poll_seconds, settle=parsed.settle_seconds),
        nvml_seconds=parsed.nvml_seconds,
    )
    return options, parsed.log_level


def _mount(text: str) -> cdi.Mount:
    host, _, rest = text.partition(":")
    container, _, mode = rest.partition(":")
    if not host.startswith("/") or not container.startswith("/") or mode not in ("", "ro"):
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST:CONTAINER[:ro] with absolute paths")
    return cdi.Mount(
        host_path=host, container_path=container, options=("bind", "ro") if mode else ("bind", "rw")
    )


def _seconds(text: str) -> float:
    seconds = float(text)
    if not seconds > 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return seconds


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the agent; the console script."""
    options, level = parse(arguments)
    logs.configure(level)
    try:
        asyncio.run(serve(options))
    except (kube.ConfigurationError, files.FileError, OSError) as error:
        _log.error("%s", error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
