"""Builds the small Go programs that stand in for the other side of a contract, once per machine and version.

A build lands outside the checkout, in `${GPUPOLICY_CACHE:-~/.cache/gpupolicy}/contract/<name>-<hash>`, where the hash
covers the program's sources and pins.
"""

import fcntl
import hashlib
import os
import subprocess
from pathlib import Path

CACHE = Path(os.environ.get("GPUPOLICY_CACHE", "~/.cache/gpupolicy")).expanduser() / "contract"


def build(directory: Path, *, cgo: bool = False) -> Path:
    """Return the built program of a Go module; build it if need be.

    With `cgo`, names that a library may lack are bound when they are first called, as the vendor's own wrapper
    expects, and not when the program starts.

    Raises:
        subprocess.CalledProcessError: it does not compile; the compiler's words are on stderr.
        FileNotFoundError: there is no Go toolchain.
    """
    digest = hashlib.sha256()
    for path in sorted(directory.iterdir()):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    program = CACHE / f"{directory.name}-{digest.hexdigest()[:16]}"
    CACHE.mkdir(parents=True, exist_ok=True)
    # Test workers that start together build once.
    with (CACHE / f"{directory.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not program.exists():
            unfinished = program.with_suffix(".tmp")
            linking = ["-ldflags=-extldflags=-Wl,-z,lazy"] if cgo else []
            subprocess.run(
                [
                    "go",
                    "build",
                    "-p",
                    "2",
                    "-trimpath",
                    "-buildvcs=false",
                    *linking,
                    "-o",
                    str(unfinished),
                    ".",
                ],
                cwd=directory,
                check=True,
                env={
                    **os.environ,
                    "CGO_ENABLED": str(int(cgo)),
                    "CGO_CFLAGS": "-O2 -Wno-deprecated-declarations",
                },
            )
            unfinished.rename(program)
    return program
