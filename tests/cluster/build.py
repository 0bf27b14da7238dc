"""Build the programs of the test cluster, once per machine, and print the directory that holds them.

Every folder below ``tools/`` is a Go module of its own that pins one upstream program (their
dependencies disagree too much to share a module). A build is kept outside the checkout, in
``${GPUPOLICY_CACHE:-~/.cache/gpupolicy}``::

    tools/<tool>-<hash>/     what one module builds; the hash covers its go.mod, go.sum, *.go and flags
    bin/<hash>/              one link per program; the hash covers all tools: the directory printed

so a clone, a branch switch or a change of one pin rebuilds only what differs. ``KUBE_BIN=DIR`` names
ready-made binaries instead and nothing is built. This program needs only the standard library: it is
the first thing that runs on a fresh machine (``make kube``).
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import fcntl
import hashlib
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

TOOLS_DIRECTORY = Path(__file__).resolve().parent / "tools"
MINIMUM_GO = (1, 26, 6)
PROGRESS_SECONDS = 20.0
CNI_DIRECTORY = Path("/usr/lib/cni")


class BuildError(Exception):
    """The programs cannot be had; the message names every reason and its remedy."""


@dataclasses.dataclass(frozen=True, slots=True)
class Tool:
    """One Go module below ``tools/`` and the programs it yields.

    ``programs`` maps the name of a binary to the Go package it is built from. ``links`` are further
    names of the first binary (a multi-call program), ``tags`` Go build tags. In ``ldflags``, ``{version}``, ``{major}`` and
    ``{minor}`` stand for the version of ``module`` that go.mod pins.
    """

    name: str
    module: str
    programs: Mapping[str, str]
    links: tuple[str, ...] = ()
    ldflags: str = ""
    cgo: bool = False
    tags: str = ""

    @property
    def directory(self) -> Path:
        return TOOLS_DIRECTORY / self.name

    @property
    def names(self) -> tuple[str, ...]:
        """Every name the tool adds to the bin directory."""
        return (*self.programs, *self.links)

    @property
    def version(self) -> str:
        """The pinned version of the tool's main module, such as ``v1.37.2``."""
        go_mod = (self.directory / "go.mod").read_text(encoding="utf-8")
        pinned = re.search(rf"^\s*(?:require )?{re.escape(self.module)} (v\S+)", go_mod, re.MULTILINE)
        if pinned is None:
            raise BuildError(f"{self.directory / 'go.mod'} does not require {self.module}")
        return pinned.group(1)

    @property
    def key(self) -> str:
        """Hash of everything in the checkout that decides what the build yields."""
        digest = hashlib.sha256()
        fixed = (self.name, sorted(self.programs.items()), self.links, self.ldflags, self.cgo, self.tags)
        digest.update(repr((fixed, platform.system(), platform.machine())).encode())
        for path in sorted(self.directory.iterdir()):
            if path.name in {"go.mod", "go.sum"} or path.suffix == ".go":
                digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
        return digest.hexdigest()[:16]


PROMTOOL = "promtool"
"""Judges alerts and metrics for the tests; no cluster needs it."""
KUEUE = "kueue"
"""Queues Jobs for the classes of policies in the tests; no cluster needs it."""
JUDGES = frozenset({PROMTOOL, KUEUE})
"""What only tests need."""

_KUBERNETES_VERSION = "k8s.io/component-base/version"
_CONTAINERD = "github.com/containerd/containerd/v2"
_TOOLKIT = "github.com/NVIDIA/nvidia-container-toolkit"

TOOLS: tuple[Tool, ...] = (
    Tool(
        name="etcd",
        module="go.etcd.io/etcd/server/v3",
        programs={"etcd": "go.etcd.io/etcd/server/v3"},
    ),
    Tool(
        name="kubernetes",
        module="k8s.io/kubernetes",
        programs={"kube": "."},
        links=("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kubectl"),
        # Without a version of its own the API server calls itself v0.0.0 and refuses to emulate older ones.
        ldflags=(
            f"-X {_KUBERNETES_VERSION}.gitVersion={{version}}"
            f" -X {_KUBERNETES_VERSION}.gitMajor={{major}} -X {_KUBERNETES_VERSION}.gitMinor={{minor}}"
        ),
        cgo=True,
    ),
    Tool(
        name="runc",
        module="github.com/opencontainers/runc",
        programs={"runc": "github.com/opencontainers/runc"},
        cgo=True,
        tags="seccomp",  # pods that follow the restricted standard ask for the default profile
    ),
    Tool(
        name="containerd",
        module=_CONTAINERD,
        programs={
            name: f"{_CONTAINERD}/cmd/{name}" for name in ("containerd", "containerd-shim-runc-v2", "ctr")
        },
    ),
    Tool(name="helm", module="helm.sh/helm/v4", programs={"helm": "helm.sh/helm/v4/cmd/helm"}),
    Tool(
        name="nvidia-container-toolkit",
        module=_TOOLKIT,
        programs={name: f"{_TOOLKIT}/cmd/{name}" for name in ("nvidia-ctk", "nvidia-cdi-hook")},
        cgo=True,
    ),
    Tool(
        name=PROMTOOL,
        module="github.com/prometheus/prometheus",
        programs={"promtool": "github.com/prometheus/prometheus/cmd/promtool"},
        # Rules and metrics need no service discovery, whose clients of every cloud are most of the build.
        tags="remove_all_sd",
    ),
    Tool(
        name=KUEUE,
        module="sigs.k8s.io/kueue",
        programs={"kueue": "sigs.k8s.io/kueue/cmd/kueue"},
        ldflags="-X sigs.k8s.io/kueue/pkg/version.GitVersion={version}",
    ),
)


def cache_directory() -> Path:
    """Where builds are kept: ``$GPUPOLICY_CACHE`` or ``~/.cache/gpupolicy``."""
    return Path(os.environ.get("GPUPOLICY_CACHE") or Path.home() / ".cache" / "gpupolicy").expanduser()


def bin_directory(tools: Iterable[Tool] = TOOLS) -> Path:
    """Return the directory with all programs of ``tools``, building what is missing.

    Raises:
        BuildError: with the missing compiler, package or program and what to do about it.
    """
    tools = tuple(tools)
    if given := os.environ.get("KUBE_BIN"):
        return _given_directory(Path(given).expanduser().absolute(), tools)
    cache = cache_directory()
    combined = hashlib.sha256(" ".join(f"{tool.name}-{tool.key}" for tool in TOOLS).encode()).hexdigest()[:16]
    directory = cache / "bin" / combined
    if all((directory / name).exists() for tool in tools for name in tool.names):
        return directory
    directory.mkdir(parents=True, exist_ok=True)
    with _lock(cache / "build.lock"):
        missing = [tool for tool in tools if not _artifact(cache, tool).is_dir()]
        if missing:
            check_go()
            if any(tool.cgo for tool in missing):
                ensure_build_packages()
        for number, tool in enumerate(missing, start=1):
            _build(tool, cache, f"[{number}/{len(missing)}]")
        for tool in tools:
            _link(_artifact(cache, tool), directory)
    return directory


def check_go() -> None:
    """Raise `BuildError` when there is no Go compiler that is new enough."""
    minimum = ".".join(map(str, MINIMUM_GO))
    remedy = f"install Go {minimum} or newer from https://go.dev/dl/, or set KUBE_BIN to ready-made programs"
    go = shutil.which("go")
    if go is None:
        raise BuildError(f"Go is not on PATH: {remedy}")
    answer = subprocess.run([go, "env", "GOVERSION"], capture_output=True, text=True, check=False).stdout
    if tuple(int(part) for part in re.findall(r"\d+", answer)[:3]) < MINIMUM_GO:
        raise BuildError(f"{go} is {answer.strip() or 'broken'}: {remedy}")


# What must be there -> the Debian package that brings it. A name is looked up on PATH.
_BUILD_PACKAGES = {
    "gcc": "gcc",
    "/usr/include/stdio.h": "libc6-dev",
    "/usr/include/seccomp.h": "libseccomp-dev",
    "pkg-config": "pkg-config",
}
_NODE_PACKAGES = {
    "ip": "iproute2",
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "mount": "mount",
    **{f"{CNI_DIRECTORY}/{plugin}": "containernetworking-plugins" for plugin in ("bridge", "host-local")},
}


def ensure_build_packages() -> None:
    """Install what the cgo builds need (as root with apt-get), or raise `BuildError` naming the packages."""
    _ensure_packages(lambda: _missing_packages(_BUILD_PACKAGES), "the build needs")


def ensure_node_packages() -> None:
    """Install what a node needs beside our programs, or raise `BuildError` naming the packages."""

    def missing() -> set[str]:
        busybox = shutil.which("busybox")
        static = busybox is not None and is_static(Path(busybox))
        return _missing_packages(_NODE_PACKAGES) | (set() if static else {"busybox-static"})

    _ensure_packages(missing, "nodes need")


def _missing_packages(probes: Mapping[str, str]) -> set[str]:
    return {
        package
        for probe, package in probes.items()
        if not (Path(probe).exists() if probe.startswith("/") else shutil.which(probe))
    }


def _ensure_packages(find_missing: Callable[[], set[str]], who: str) -> None:
    missing = sorted(find_missing())
    if missing and os.geteuid() == 0 and shutil.which("apt-get"):
        _say(f"installing {' '.join(missing)}")
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        install = ["apt-get", "-o", "DPkg::Lock::Timeout=300", "install", "-y", "--no-install-recommends"]
        # Package lists age: when the first attempt fails they are fetched and it is made again.
        for command in ([*install, *missing], ["apt-get", "update"], [*install, *missing]):
            if find_missing():
                subprocess.run(command, env=environment, capture_output=True, check=False)
        missing = sorted(find_missing())
    if missing:
        packages = " ".join(missing)
        raise BuildError(f"{who} these Debian packages: {packages}; run as root: apt-get install {packages}")


def is_static(path: Path) -> bool:
    """Tell whether an x86-64 or arm64 ELF program needs no loader (has no PT_INTERP header)."""
    data = path.read_bytes()
    if data[:5] != b"\x7fELF\x02":
        return False
    offset = int.from_bytes(data[32:40], "little")
    size, count = int.from_bytes(data[54:56], "little"), int.from_bytes(data[56:58], "little")
    program_header_interpreter = 3
    kinds = (int.from_bytes(data[at : at + 4], "little") for at in range(offset, offset + size * count, size))
    return program_header_interpreter not in kinds


def _given_directory(directory: Path, tools: Iterable[Tool]) -> Path:
    missing = [
        name for tool in tools for name in (tool.links or tool.names) if not (directory / name).is_file()
    ]
    if missing:
        raise BuildError(f"KUBE_BIN={directory} lacks: {', '.join(missing)}; add them or unset KUBE_BIN")
    return directory


def _artifact(cache: Path, tool: Tool) -> Path:
    return cache / "tools" / f"{tool.name}-{tool.key}"


def _build(tool: Tool, cache: Path, counter: str) -> None:
    major, minor = re.findall(r"\d+", tool.version)[:2]
    ldflags = f"-s -w {tool.ldflags.format(version=tool.version, major=major, minor=minor)}".strip()
    environment = {**os.environ, "CGO_ENABLED": "1" if tool.cgo else "0", "GOFLAGS": "-buildvcs=false"}
    artifact = _artifact(cache, tool)
    artifact.parent.mkdir(parents=True, exist_ok=True)
    for leftover in artifact.parent.glob(f".{tool.name}-*"):
        shutil.rmtree(leftover)  # of a build that was killed; the lock is ours
    # Built beside its final place and renamed whole: a killed build never looks like a finished one.
    with tempfile.TemporaryDirectory(dir=artifact.parent, prefix=f".{tool.name}-") as scratch:
        output = Path(scratch) / "out"
        output.mkdir()
        for program, package in tool.programs.items():
            command = [
                "go",
                "build",
                "-trimpath",
                "-tags",
                tool.tags,
                "-ldflags",
                ldflags,
                "-o",
                str(output / program),
                package,
            ]
            _run_with_progress(f"{counter} {tool.name} {tool.version}: {program}", command, tool, environment)
        for link in tool.links:
            (output / link).symlink_to(next(iter(tool.programs)))
        output.rename(artifact)


def _run_with_progress(title: str, command: list[str], tool: Tool, environment: Mapping[str, str]) -> None:
    started = time.monotonic()
    _say(f"{title} ...")
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            command, cwd=tool.directory, env=environment, stdout=log, stderr=subprocess.STDOUT
        )
        try:
            while True:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(PROGRESS_SECONDS)
                    break
                _say(f"{title} ... {time.monotonic() - started:.0f} s")
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
        if process.returncode:
            log.seek(0)
            tail = "\n".join(log.read().decode(errors="replace").splitlines()[-30:])
            raise BuildError(f"{' '.join(command)} failed in {tool.directory}:\n{tail}")
    _say(f"{title} done in {time.monotonic() - started:.0f} s")


def _link(artifact: Path, directory: Path) -> None:
    for program in artifact.iterdir():
        link = directory / program.name
        scratch = directory / f".{program.name}.new"
        scratch.unlink(missing_ok=True)
        scratch.symlink_to(program)
        scratch.replace(link)


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _say("another build is running, waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


def main(arguments: list[str] | None = None) -> int:
    """Build, then print the bin directory on standard output."""
    parser = argparse.ArgumentParser(prog="build.py", description="Build the programs of the test cluster.")
    names = [tool.name for tool in TOOLS]
    parser.add_argument("tools", nargs="*", metavar="TOOL", help=f"only these (of {', '.join(names)})")
    chosen = parser.parse_args(arguments).tools
    if unknown := sorted(set(chosen) - set(names)):
        parser.error(f"unknown tools {', '.join(unknown)}; there are {', '.join(names)}")
    # An ordinary end on SIGTERM, so that the compiler is stopped and no scratch folder stays.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        directory = bin_directory([tool for tool in TOOLS if not chosen or tool.name in chosen])
        if not chosen or {"containerd", "runc"} & set(chosen):
            ensure_node_packages()
    except BuildError as error:
        _say(f"error: {error}")
        return 1
    print(directory)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
