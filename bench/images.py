"""How large the images are, as layers that are not compressed."""

from collections.abc import Iterator
from typing import Final

from bench.registry import Bench
from bench.result import Result
from tests import images

MIB: Final = 2**20
LIMITS_MIB: Final = {"controller": 150.0, "agent": 75.0, "simulator": 5.0}


def measure() -> Iterator[Result]:
    """Make each image, if its sources changed, and weigh it."""
    for component, limit in LIMITS_MIB.items():
        yield Result(images.archive(component).stat().st_size / MIB, "MiB", limit, 1, component)


BENCHES: Final = (Bench("image-size", "size of the image of each component", lambda _: measure()),)
