"""Fixtures that every test folder may use: the real cluster, one per test session (or xdist worker)."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from typing import Any

import hypothesis
import pytest

from tests.cluster import build
from tests.cluster.cluster import Cluster
from tests.cluster.node import Node, NodeOptions

_numbers = itertools.count(1)

# A loaded machine is no reason to fail: time is the business of benchmarks, and of pytest's own limit. The tests judge
# a change, so they try the same examples on every run; `make search` looks for examples that nobody has seen yet.
_PROFILE = hypothesis.settings(deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.register_profile("gpupolicy", _PROFILE, derandomize=True)
hypothesis.settings.register_profile("search", _PROFILE)
hypothesis.settings.load_profile(os.environ.get("GPUPOLICY_EXAMPLES", "gpupolicy"))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Build the cluster's programs before the first test: minutes that no test's time limit should see."""
    wanted = any(item.get_closest_marker("cluster") for item in session.items)
    if wanted and not session.config.option.collectonly:
        try:
            build.bin_directory()
        except build.BuildError as error:
            raise pytest.UsageError(str(error)) from error


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A control plane with default settings, shared by the session's tests: leave it as you found it."""
    with Cluster.start() as started:
        yield started


@pytest.fixture(scope="session")
def cluster_with_nodes(cluster: Cluster) -> Callable[[int], list[Node]]:
    """A function that gives `count` real nodes of the shared cluster, kept for later tests: change nothing."""
    kept: list[Node] = []

    def give(count: int) -> list[Node]:
        missing = range(len(kept) + 1, count + 1)
        kept.extend(cluster.add_nodes(*(NodeOptions(f"node-{number}") for number in missing)))
        return kept[:count]

    return give


@pytest.fixture
def make_node(cluster: Cluster) -> Iterator[Callable[..., Node]]:
    """A function that starts a node (fields of `NodeOptions`) which is stopped after the test."""
    made: list[Node] = []

    def make(name: str | None = None, **options: Any) -> Node:
        (node,) = cluster.add_nodes(NodeOptions(name or f"own-{next(_numbers)}", **options))
        made.append(node)
        return node

    yield make
    for node in made:
        if node.exists:
            node.stop()


@pytest.fixture
def namespace(cluster: Cluster) -> Iterator[str]:
    """A fresh namespace of the shared cluster with its default service account."""
    name = f"test-{next(_numbers)}"
    with cluster.namespace(name):
        yield name
