"""Makes the images of `operator/Dockerfile` without a registry: from the running Python and its installed packages.

    python tools/image.py OUT.tar [controller|agent|simulator ...] [--version TAG]

The archive is an OCI layout that `ctr images import`, `podman load` and `skopeo` read. Base layer: the interpreter, its
standard library without what a service never imports, and the shared libraries that `ldd` names. Next layer: what the
extra of the component requires, transitively, as installed here. Last layer: the package itself, so that a change of it is
a small layer. No shell, no package manager.
"""

import argparse
import hashlib
import importlib.metadata
import importlib.util
import json
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests import simulator  # noqa: E402 -- the path comes first
from tests.cluster.image import Image, Layer, Link, write_archive  # noqa: E402

STRIP_BYTES = 300_000
REGISTRY = "localhost/gpupolicy"
COMPONENTS = ("controller", "agent", "simulator")

STANDARD_LIBRARY_WITHOUT = frozenset(
    {
        "__phello__", "ensurepip", "idlelib", "lib2to3", "pydoc_data", "test", "tests", "tkinter", "turtle.py",
        "turtledemo", "unittest", "venv", "distutils", "site-packages", "pdb.py", "doctest.py", "sqlite3", "dbm",
        "curses", "msilib", "xmlrpc", "cgi.py", "mailbox.py", "msvcrt", "antigravity.py", "config-3.11-x86_64-linux-gnu",
    }
)  # fmt: skip
"""Folders and files that no service imports, by name."""

EXTENSIONS_WITHOUT = re.compile(
    r"^(_test|_tkinter|_xx|xx|_curses|_dbm|_gdbm|_sqlite|readline|nis|audioop|ossaudiodev|_crypt)"
)

AGENT_KUBERNETES_FILES = re.compile(
    r"^kubernetes_asyncio/(__init__\.py|config/.*|client/(__init__|api_client|configuration|exceptions|rest)\.py"
    r"|client/(models|api)/__init__\.py|client/models/v1_(object_meta|owner_reference)\.py|client/api/resource_v1_api\.py)$"
)
"""The agent sends plain objects; of 1,200 generated modules it needs none but those that the lazy import checks for."""


@dataclass(frozen=True, slots=True)
class Package:
    """An installed distribution and its files below site-packages."""

    name: str
    folder: Path
    files: tuple[str, ...]


def requirements(extra: str) -> list[Requirement]:
    """Return what the package and one of its extras require, from pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [*project["dependencies"], *project["optional-dependencies"].get(extra, [])]
    return [Requirement(line) for line in lines]


def closure(wanted: Iterable[Requirement]) -> list[Package]:
    """Return every distribution that these need, as installed, in alphabetical order.

    Raises:
        importlib.metadata.PackageNotFoundError: one is not installed.
    """
    found: dict[str, Package] = {}
    waiting = list(wanted)
    while waiting:
        requirement = waiting.pop()
        key = re.sub(r"[-_.]+", "-", requirement.name).lower()
        extras = requirement.extras or {""}
        if requirement.marker is not None and not any(
            requirement.marker.evaluate({"extra": extra}) for extra in extras
        ):
            continue
        if key in found:
            continue
        distribution = importlib.metadata.distribution(requirement.name)
        files = tuple(str(f) for f in distribution.files or () if _is_wanted(str(f)))
        found[key] = Package(key, Path(str(distribution.locate_file(""))), files)
        waiting += [Requirement(line) for line in distribution.requires or ()]
    return [found[key] for key in sorted(found)]


def _is_wanted(name: str) -> bool:
    """Leave out scripts, bytecode (made anew), tests, type stubs and sources of extensions."""
    if name.startswith(("..", "/")) or "__pycache__" in name or "/tests/" in name or "/testing/" in name:
        return False
    if ".dist-info/" in name:
        return (
            name.endswith(("/METADATA", "/RECORD", "/WHEEL", "/entry_points.txt")) or "licen" in name.lower()
        )
    return not name.endswith((".pyi", ".pyx", ".pxd", ".pxi", ".c", ".h", ".so.dSYM", ".typed", ".md"))


def linked_libraries(binaries: Iterable[Path]) -> dict[str, Path]:
    """Return path in the image -> file for every shared library that the binaries are linked with, loader included.

    Raises:
        RuntimeError: a library is not found.
    """
    names = sorted({str(binary) for binary in binaries})
    done = subprocess.run(["ldd", *names], capture_output=True, text=True, check=False)
    found: dict[str, Path] = {}
    for line in done.stdout.splitlines():
        if "not found" in line:
            raise RuntimeError(f"ldd: {line.strip()}")
        match = re.search(r"(?:=> )?(/\S+) \(0x", line)
        if match and "site-packages" not in match[1]:
            path = Path(match[1])
            found[str(path).lstrip("/")] = path.resolve()
    return found


def base_layer(bytecode: Path, extensions: Iterable[Path]) -> dict[str, Path | bytes | Link]:
    """Return interpreter, standard library and shared libraries, in the places where the interpreter looks for them."""
    library = Path(sysconfig.get_path("stdlib"))
    interpreter = Path(sys.executable).resolve()
    prefix = "usr/local"
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    files: dict[str, Path | bytes | Link] = {
        "tmp/": b"",
        "etc/passwd": b"root:x:0:0:root:/:/\nnonroot:x:65532:65532:nonroot:/:/\n",
        "etc/group": b"root:x:0:\nnonroot:x:65532:\n",
        # The loader's own search needs a list only where a library stands outside of the usual folders.
        f"{prefix}/bin/{version}": interpreter,
        f"{prefix}/bin/python3": Link(version),
    }
    own: list[Path] = [interpreter, *extensions]
    for path in sorted(library.rglob("*")):
        relative = path.relative_to(library)
        if path.is_dir() or "__pycache__" in relative.parts or STANDARD_LIBRARY_WITHOUT & set(relative.parts):
            continue
        if relative.parts[0] == "lib-dynload":
            if EXTENSIONS_WITHOUT.match(relative.name):
                continue
            own.append(path)
        if path.suffix in {".a", ".o", ".exe", ".bat"}:
            continue
        files[f"{prefix}/lib/{version}/{relative}"] = stripped(path, f"{version}/{relative}", bytecode)
        files.update(_compiled(path, f"{prefix}/lib/{version}/{relative}", bytecode))
    for place, path in linked_libraries(own).items():
        # What the interpreter brought from a place of its own goes where the loader looks.
        standard = place.startswith(("lib", "usr/lib"))
        target = place if standard else f"usr/lib/{path.name}"
        files[target] = stripped(path, target, bytecode)
        if not standard and path.name != Path(place).name:
            files[f"usr/lib/{Path(place).name}"] = Link(path.name)
    return files


def package_layer(
    packages: Iterable[Package], bytecode: Path, *, small: bool
) -> dict[str, Path | bytes | Link]:
    """Return the files of distributions below the image's site-packages."""
    files: dict[str, Path | bytes | Link] = {}
    for package in packages:
        for name in package.files:
            if small and name.startswith("kubernetes_asyncio/") and not AGENT_KUBERNETES_FILES.match(name):
                continue
            path = package.folder / name
            if path.is_file():
                place = f"{_site_packages()}/{name}"
                files[place] = stripped(path, place, bytecode)
                files.update(_compiled(path, place, bytecode))
    return files


def own_layer(bytecode: Path, component: str, version: str) -> dict[str, Path | bytes | Link]:
    """Return the package itself: of the entry points only the one that runs. It says of itself which version it is."""
    others = {"controller", "agent", "cli"} - {component}
    files: dict[str, Path | bytes | Link] = {}
    source = ROOT / "operator/gpupolicy"
    for path in sorted(source.rglob("*.py")):
        relative = path.relative_to(source)
        if relative.parts[0] not in others:
            place = f"{_site_packages()}/gpupolicy/{relative}"
            files[place] = path
            files.update(_compiled(path, place, bytecode))
    own = source / "__init__.py"
    place = f"{_site_packages()}/gpupolicy/__init__.py"
    told = re.sub(r'__version__ = ".*"', f'__version__ = "{version}"', own.read_text())
    if told != own.read_text():
        files[place] = told.encode()
        files.pop(str(Path(importlib.util.cache_from_source(place, optimization=2))))
    return files


def stripped(path: Path, place: str, scratch: Path) -> Path:
    """Return a shared library without its debugging symbols: half of an interpreter is symbols."""
    if not (path.suffix == ".so" or ".so." in path.name) or path.stat().st_size < STRIP_BYTES:
        return path
    strip = shutil.which("strip")
    if strip is None:
        return path
    target = scratch / "stripped" / f"{place}.{_state(path)}"
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        [strip, "--strip-unneeded", "-o", target, path], capture_output=True, text=True, check=False
    )
    return path if done.returncode else target


def _site_packages() -> str:
    return f"usr/local/lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"


def _state(path: Path) -> str:
    """Return what changes when a file does, so that what was made of it can be kept for the next image."""
    found = path.stat()
    return hashlib.sha256(f"{path} {found.st_mtime_ns} {found.st_size}".encode()).hexdigest()[:12]


def _compiled(path: Path, place: str, bytecode: Path) -> dict[str, Path | bytes | Link]:
    """Return the bytecode of a module, without docstrings, as the image runs it; nothing for other files."""
    import py_compile

    if path.suffix != ".py":
        return {}
    target = bytecode / f"{place}.{_state(path)}c"
    if target.exists():
        return {str(Path(importlib.util.cache_from_source(place, optimization=2))): target}
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        # By content, not by time: files in an image have no time of their own, and builds are reproducible.
        py_compile.compile(
            str(path), cfile=str(target), dfile=f"/{place}", doraise=True, optimize=2,
            invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
        )  # fmt: skip
    except py_compile.PyCompileError:
        return {}
    return {str(Path(importlib.util.cache_from_source(place, optimization=2))): target}


def program_image(component: str, version: str, bytecode: Path) -> Image:
    """Return the image of the controller or the agent."""
    packages = closure(requirements(component))
    small = component == "agent"
    brought = package_layer(packages, bytecode, small=small)
    extensions = [p for p in brought.values() if isinstance(p, Path) and ".so" in p.suffixes]
    return Image(
        f"{REGISTRY}/{component}:{version}",
        [base_layer(bytecode, extensions), brought, own_layer(bytecode, component, version)],
        entrypoint=["/usr/local/bin/python3", "-m", f"gpupolicy.{component}.app"],
        environment={
            "PYTHONHOME": "/usr/local",
            # Docstrings cost memory on every node.
            "PYTHONOPTIMIZE": "2",
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONUNBUFFERED": "1",
        },
        user="65532:65532" if component == "controller" else "0:0",
    )


def simulator_image(version: str) -> Image:
    """Return the image of the simulated cards: static programs and the two libraries, nothing else."""
    programs = simulator.build()
    files: Layer = {"tmp/": b"", **{f"opt/gpusim/{name}": programs / name for name in simulator.PROGRAMS}}
    return Image(f"{REGISTRY}/simulator:{version}", [files], entrypoint=["/opt/gpusim/gpusim"])


def images(components: Iterable[str], version: str, bytecode: Path) -> Iterator[Image]:
    """Return the images of components; what is compiled and stripped for them is kept in the folder `bytecode`."""
    for component in components:
        yield (
            simulator_image(version)
            if component == "simulator"
            else program_image(component, version, bytecode)
        )


def size_bytes(image: Image) -> int:
    """Return the size of the files of an image."""
    return sum(_sizes(layer) for layer in image.layers)


def _sizes(layer: Mapping[str, Path | bytes | Link]) -> int:
    return sum(
        content.stat().st_size if isinstance(content, Path) else len(content)
        for content in layer.values()
        if not isinstance(content, Link)
    )


def main() -> int:
    """Write an archive and print a line of JSON for each image."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("archive", type=Path)
    parser.add_argument("components", nargs="*", metavar="COMPONENT", help="all unless named")
    parser.add_argument("--version", default="0.1.0", help="tag of the images (default: %(default)s)")
    options = parser.parse_args()
    if unknown := sorted(set(options.components) - set(COMPONENTS)):
        parser.error(f"{', '.join(unknown)}: no such image; there are {', '.join(COMPONENTS)}")
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as bytecode:
        made = list(images(options.components or COMPONENTS, options.version, Path(bytecode)))
        write_archive(options.archive, made)
        for image in made:
            print(json.dumps({"image": image.name, "mib": round(size_bytes(image) / 2**20, 1)}))
    print(json.dumps({"archive": str(options.archive), "seconds": round(time.monotonic() - began, 1)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
