"""One cluster with GpuPolicy on it for all stories of a session."""

from collections.abc import Iterator

import pytest

from tests.cluster.cluster import Cluster
from tests.stack import Stack


@pytest.fixture(scope="session")
def stack() -> Iterator[Stack]:
    """A control plane with the chart installed; tests add nodes and controllers of their own."""
    with Cluster.start() as cluster:
        made = Stack(cluster)
        made.install()
        yield made
