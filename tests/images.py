"""The images of our own programs, made once for each state of the sources and kept in the cache."""

import fcntl
import hashlib
import importlib.metadata
import os
import sys
import tempfile
from pathlib import Path

from tests import simulator
from tests.cluster.image import write_archive
from tests.paths import ROOT
from tools import image

KEPT = 12
"""How many archives stay in the cache."""


def archive(*components: str, version: str = "0.1.0") -> Path:
    """Return an archive with the images of these components, making it if the sources changed.

    Args:
        components: controller, agent or simulator.
        version: tag of the images.
    """
    cache = Path(os.environ.get("GPUPOLICY_CACHE") or Path.home() / ".cache/gpupolicy") / "images"
    cache.mkdir(parents=True, exist_ok=True)
    target = cache / f"{'-'.join(components)}-{version}-{_digest(components)}.tar"
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if target.exists():
            target.touch()
            return target
        with tempfile.TemporaryDirectory(dir=cache) as scratch:
            made = Path(scratch) / "images.tar"
            write_archive(made, list(image.images(components, version, cache / "kept")))
            made.rename(target)
        for old in sorted(cache.glob("*.tar"), key=lambda p: p.stat().st_mtime)[:-KEPT]:
            old.unlink()
    return target


def _digest(components: tuple[str, ...]) -> str:
    """Return a digest of everything that goes into the images."""
    digest = hashlib.sha256(f"{components} {sys.version}".encode())
    sources = [*(ROOT / "operator").rglob("*.py"), ROOT / "tools/image.py", ROOT / "tests/cluster/image.py"]
    for path in sorted(sources):
        digest.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes())
    if "simulator" in components:
        digest.update(simulator.sources_digest().encode())
    for found in sorted(f"{d.name}={d.version}" for d in importlib.metadata.distributions()):
        digest.update(found.encode())
    return digest.hexdigest()[:16]
