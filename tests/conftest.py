"""Fixtures that every test folder may use: the real cluster, one per test session (or xdist worker)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from tests.cluster import build
from tests.cluster.cluster import Cluster

_numbers = itertools.count(1)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Build the cluster's programs before the first test: minutes that no test's time limit should see."""
    wanted = any(item.get_closest_marker("cluster") for item in session.items)
    if wanted and not session.config.option.collectonly:
        build.bin_directory()


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A control plane with default settings, shared by the session's tests: leave it as you found it."""
    with Cluster.start() as started:
        yield started


@pytest.fixture
def namespace(cluster: Cluster) -> Iterator[str]:
    """A fresh namespace of the shared cluster with its default service account."""
    name = f"test-{next(_numbers)}"
    with cluster.namespace(name):
        yield name
