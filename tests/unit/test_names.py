"""Names that are made of others fit where they stand."""

import re

import pytest

from gpupolicy.api import names

SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


@pytest.mark.parametrize(
    "node",
    [
        pytest.param("gpu-01", id="short"),
        pytest.param("n" * 243, id="just fits"),
        pytest.param("n" * 244, id="one too long"),
        pytest.param(("x" * 62 + ".") * 3 + "y" * 64, id="longest"),
        pytest.param("n" * 231 + "." + "n" * 21, id="cut at a dot"),
    ],
)
def test_a_pool_has_a_name_that_the_api_server_takes(node: str) -> None:
    pool = names.pool_name(node)
    assert len(pool) <= 253
    assert all(SUBDOMAIN.fullmatch(part) for part in pool.split("/"))
    if len(node) <= 243:
        assert names.node_of_pool(pool) == node


def test_long_names_that_differ_at_the_end_are_different_pools() -> None:
    assert names.pool_name("n" * 252 + "a") != names.pool_name("n" * 252 + "b")
