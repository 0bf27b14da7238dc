"""Simulated GPU nodes for tests: builds the simulator once and drives one node through its control program.

A `Simulator` owns one node directory. The programs under test get the node through the environment that
`Simulator.environment` returns, or by loading `Simulator.library_path` before `pynvml.nvmlInit()`.
Everything is refused by a `SimulatorError` that carries the control program's message.
"""

import fcntl
import functools
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

SOURCES = Path(__file__).resolve().parent.parent / "simulator"
PROGRAMS = ("libnvidia-ml.so.1", "libcuda.so.1", "gpusim", "nvidia-smi", "nvidia-cuda-mps-control")


class SimulatorError(RuntimeError):
    """The control program refused a command; the message says why."""


def sources_digest() -> str:
    """Return a digest of everything that a build reads."""
    digest = hashlib.sha256()
    for path in sorted(SOURCES.rglob("*")):
        if path.is_file() and path.suffix in {".c", ".h", ".py", ".sh", ".map", ".json", ".txt"}:
            digest.update(str(path.relative_to(SOURCES)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


@functools.cache
def build() -> Path:
    """Build the simulator unless it is in the cache, and return the folder with its programs.

    The cache is `$GPUPOLICY_CACHE` (default `~/.cache/gpupolicy`); parallel test processes build once.
    """
    cache = Path(os.environ.get("GPUPOLICY_CACHE") or Path.home() / ".cache" / "gpupolicy") / "simulator"
    cache.mkdir(parents=True, exist_ok=True)
    target = cache / sources_digest()
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if all((target / program).exists() for program in PROGRAMS):
            return target
        scratch = Path(tempfile.mkdtemp(dir=cache))
        done = subprocess.run(
            [SOURCES / "build.sh", scratch],
            env={**os.environ, "PYTHON": sys.executable},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            shutil.rmtree(scratch)
            raise SimulatorError(f"the simulator does not build:\n{done.stderr}")
        scratch.chmod(0o755)
        # What an interrupted build of the same sources may have left is not worth keeping.
        shutil.rmtree(target, ignore_errors=True)
        scratch.rename(target)
    return target


class Simulator:
    """One simulated node in `directory`.

    `programs` is where the built programs lie. Commands act on the node at once and are seen by every process that
    uses it. GPUs are named by their number (their place in PCI order) or their UUID.
    """

    def __init__(self, directory: Path | str, *, programs: Path | None = None) -> None:
        self.directory = Path(directory)
        self.programs = programs or build()

    @property
    def library_path(self) -> Path:
        """The management library, as it lies in the node's driver root where there is one."""
        inside = self.root / "usr/lib64/libnvidia-ml.so.1"
        return inside if inside.exists() else self.programs / "libnvidia-ml.so.1"

    @property
    def root(self) -> Path:
        """The node's driver root: usr/lib64, usr/bin, dev, proc and sys lie below it."""
        return self.directory / "root"

    @property
    def nvidia_smi_path(self) -> Path:
        """The fake `nvidia-smi`."""
        return self.root / "usr/bin/nvidia-smi"

    @property
    def mps_control_path(self) -> Path:
        """The fake `nvidia-cuda-mps-control`."""
        return self.root / "usr/bin/nvidia-cuda-mps-control"

    @property
    def gpusim_path(self) -> Path:
        """The control program, a static executable."""
        return self.programs / "gpusim"

    def environment(self, base: Mapping[str, str] | None = None) -> dict[str, str]:
        """Return an environment in which a program uses this node."""
        environment = dict(os.environ if base is None else base)
        paths = [str(self.library_path.parent), *filter(None, [environment.get("LD_LIBRARY_PATH")])]
        environment["GPUSIM_DIR"] = str(self.directory)
        environment["LD_LIBRARY_PATH"] = ":".join(paths)
        return environment

    def command(self, *words: object) -> str:
        """Run one command of the control program and return what it printed."""
        name, *rest = [str(word) for word in words]
        done = subprocess.run(
            [self.gpusim_path, name, "--dir", self.directory, *rest],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise SimulatorError(done.stderr.strip() or f"gpusim {name} failed")
        return done.stdout

    def execute(
        self, command: Sequence[object], *, options: Sequence[str] = (), **arguments: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run a program that finds the node's files at their absolute places below /proc and /sys.

        It runs in a mount namespace of its own, with the node's library and tools first on its paths. `options` go
        to `gpusim exec`, `arguments` to `subprocess.run`.
        """
        words = [self.gpusim_path, "exec", "--dir", self.directory, *options, "--", *command]
        arguments = {"capture_output": True, "text": True, **arguments}
        return subprocess.run([str(word) for word in words], check=False, **arguments)

    def create(
        self,
        *,
        gpus: int = 1,
        model: str = "h100-80gb",
        seed: str = "node",
        driver_version: str | None = None,
        cuda: str | None = None,
        per_gpu: Mapping[int, Mapping[str, object]] | None = None,
        properties: Mapping[str, object] | None = None,
        options: Sequence[str] = (),
    ) -> "Simulator":
        """Create the node; UUIDs and serial numbers follow from `seed` alone. Returns self.

        `per_gpu` gives properties of single GPUs (also `model`), `properties` those of the node, `options` further
        words such as `--force`, `--state-only` or `--no-devices`.
        """
        words: list[object] = ["init", "--gpus", gpus, "--model", model, "--node-seed", seed, *options]
        if driver_version:
            words += ["--driver-version", driver_version]
        if cuda:
            words += ["--cuda", cuda]
        words += [f"{name}={value}" for name, value in (properties or {}).items()]
        for gpu, values in (per_gpu or {}).items():
            words += ["--gpu", gpu, *(f"{name}={value}" for name, value in values.items())]
        self.command(*words)
        return self

    def dump(self) -> dict[str, Any]:
        """Return the whole state: properties, `gpus`, `clients`, `faults`, `calls`, `writes`, `journal`."""
        state: dict[str, Any] = json.loads(self.command("dump"))
        return state

    def gpu(self, number: int) -> dict[str, Any]:
        """Return the state of one GPU."""
        found: dict[str, Any] = self.dump()["gpus"][number]
        return found

    def layout(self, number: int) -> list[tuple[str, int]]:
        """Return (profile name, start) of every GPU instance of a GPU, by start."""
        return sorted(
            ((i["profile"], i["start"]) for i in self.gpu(number)["gpu_instances"]),
            key=lambda entry: entry[1],
        )

    def calls(self) -> dict[str, int]:
        """Return how often each function of the library was called."""
        counts: dict[str, int] = self.dump()["calls"]
        return counts

    def writes(self) -> int:
        """Return how many calls were made that may change the hardware, refused ones included."""
        count: int = self.dump()["writes"]
        return count

    def journal(self) -> list[dict[str, Any]]:
        """Return the last 512 writes in order: symbol, gpu, what it was about, result."""
        entries: list[dict[str, Any]] = self.dump()["journal"]
        return entries

    def reset_counters(self) -> None:
        """Forget call counts and the journal."""
        self.command("counters", "reset")

    def set(self, gpu: int | str | None = None, **properties: object) -> None:
        """Change properties of the node, of one GPU, or of `"all"`."""
        target = [] if gpu is None else ["--gpu", gpu]
        self.command("set", *target, *(f"{name}={value}" for name, value in properties.items()))

    def add_fault(
        self,
        symbol: str = "*",
        *,
        code: int = 999,
        gpu: int | str | None = None,
        skip: int = 0,
        count: int = 1,
        mode: str = "before",
        hang_ms: int = 0,
    ) -> int:
        """Make calls of `symbol` fail and return the fault's id.

        `symbol` is a function name (a bare name means all its versions), `"*"` or `"writes"`. The first `skip` calls
        pass, the next `count` (-1 = all) are hit. `mode`: `before` = no effect, `after` = the effect takes place and
        the call still fails, `activation` = nvmlDeviceSetMigMode succeeds but reports `code`, `hang` = delay only.
        """
        words: list[object] = [
            "fault",
            "add",
            "--symbol",
            symbol,
            "--code",
            code,
            "--skip",
            skip,
            "--count",
            count,
        ]
        words += ["--mode", mode, "--hang-ms", hang_ms]
        if gpu is not None:
            words += ["--gpu", gpu]
        return int(self.command(*words))

    def clear_faults(self, fault: int | None = None) -> None:
        """Remove one fault, or all."""
        self.command("fault", "clear", *([] if fault is None else [fault]))

    def set_latency(self, microseconds: int, *, symbol: str = "*", gpu: int | str | None = None) -> None:
        """Delay calls; rules for different symbols and GPUs add up. Use `clear_latency` to end it."""
        target = [] if gpu is None else ["--gpu", gpu]
        self.command("latency", "--symbol", symbol, *target, microseconds)

    def clear_latency(self) -> None:
        """Remove every delay."""
        self.command("latency", "--clear")

    def add_client(
        self,
        gpu: int | str,
        pid: int,
        *,
        gi: int | None = None,
        ci: int | None = None,
        kind: str = "compute",
        memory_mib: int = 0,
        name: str = "workload",
        while_alive: bool = False,
    ) -> None:
        """Register a process as a user of a GPU or an instance; `kind`: compute, graphics, mps, monitor."""
        words: list[object] = ["client", "add", "--gpu", gpu, "--pid", pid, "--kind", kind]
        words += ["--memory-mib", memory_mib, "--name", name]
        words += [] if gi is None else ["--gi", gi]
        words += [] if ci is None else ["--ci", ci]
        self.command(*words, *(["--while-alive"] if while_alive else []))

    def remove_client(self, pid: int | None = None, *, gpu: int | str | None = None) -> None:
        """Remove the clients of a process, of a GPU, or all."""
        words: list[object] = [] if pid is None else ["--pid", pid]
        words += [] if gpu is None else ["--gpu", gpu]
        self.command("client", "remove", *(words or ["--all"]))

    def xid(self, gpu: int | str, code: int, *, gi: int | None = None, ci: int | None = None) -> None:
        """Report an XID of a GPU, or of one of its instances, to every event set of every process."""
        words: list[object] = [] if gi is None else ["--gi", gi]
        words += [] if ci is None else ["--ci", ci]
        self.command("xid", gpu, code, *words)

    def lose(self, gpu: int | str, *, quiet: bool = False) -> None:
        """Let a GPU fall off the bus: every call about it fails; XID 79 is reported unless `quiet`."""
        self.command("lose", gpu, *(["--quiet"] if quiet else []))

    def recover(self, gpu: int | str) -> None:
        """Bring a lost GPU back."""
        self.command("recover", gpu)

    def detach(self, gpu: int | str) -> None:
        """Remove a GPU from the enumeration: the indices of those behind it shift."""
        self.command("detach", gpu)

    def attach(self, gpu: int | str) -> None:
        """Undo `detach`."""
        self.command("attach", gpu)

    def swap(self, gpu: int | str) -> None:
        """Put another card of the same model into the slot: new UUID and serial number, same address."""
        self.command("swap", gpu)

    def reset(self, gpu: int | str, *, force: bool = False) -> None:
        """Reset a GPU: pending modes apply, instances vanish, handles become stale. Refused while in use."""
        self.command("reset", gpu, *(["--force"] if force else []))

    def reboot(self) -> None:
        """Reboot the node: as `reload`, with a new boot id."""
        self.command("reboot")

    def reload(self) -> None:
        """Reload the driver: instances, clients, and what the driver only remembers are gone."""
        self.command("reload")

    @contextmanager
    def nvml(self) -> Iterator[Any]:
        """Use `pynvml` on this node within this process: initialise it, yield the module, shut it down.

        Faults are cleared at the end.
        """
        import pynvml

        previous = os.environ.get("GPUSIM_DIR")
        os.environ["GPUSIM_DIR"] = str(self.directory)
        load_library(self.programs / "libnvidia-ml.so.1")
        try:
            pynvml.nvmlInit()
            yield pynvml
        finally:
            # A fault that still stands must not keep the library from ending: the next node needs it.
            with suppress(SimulatorError):
                self.clear_faults()
            with suppress(pynvml.NVMLError_Uninitialized):
                pynvml.nvmlShutdown()
            if previous is None:
                del os.environ["GPUSIM_DIR"]
            else:
                os.environ["GPUSIM_DIR"] = previous


@functools.cache
def load_library(path: Path) -> None:
    """Load the simulated library so that pynvml's own load of the bare name finds it."""
    import ctypes

    ctypes.CDLL(str(path))
