"""Typed selector fields on a card, and what is said when nothing matches."""

from dataclasses import replace

import pytest

from gpupolicy.core.inventory import Gpu
from gpupolicy.core.matching import MATCH, CardSelector, Judgement, combine, existing_values

H100 = Gpu(
    uuid="GPU-0",
    index=0,
    product_name="NVIDIA H100 80GB HBM3",
    architecture="Hopper",
    memory_bytes=81559 * 2**20,
    compute_capability="9.0",
)
BARE = Gpu(uuid="GPU-1", index=1)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        pytest.param({}, None, id="empty-matches-all"),
        pytest.param({"products": ("NVIDIA H100 80GB HBM3",)}, None, id="exact"),
        pytest.param({"products": ("NVIDIA H100*",)}, None, id="star"),
        pytest.param({"products": ("NVIDIA ?100*",)}, None, id="question-mark"),
        pytest.param({"products": ("NVIDIA A100*", "*HBM3")}, None, id="one-of-many"),
        pytest.param(
            {"products": ("NVIDIA H100",)},
            'product "NVIDIA H100 80GB HBM3" is none of NVIDIA H100',
            id="whole-name",
        ),
        pytest.param(
            {"products": ("nvidia h100*",)},
            'product "NVIDIA H100 80GB HBM3" is none of nvidia h100*',
            id="case-counts",
        ),
        pytest.param(
            {"products": ("NVIDIA [H]100*",)},
            'product "NVIDIA H100 80GB HBM3" is none of NVIDIA [H]100*',
            id="brackets-are-brackets",
        ),
        pytest.param(
            {"products": ("NVIDIA.H100.*",)},
            'product "NVIDIA H100 80GB HBM3" is none of NVIDIA.H100.*',
            id="dots-are-dots",
        ),
        pytest.param({"architectures": ("Ampere", "Hopper")}, None, id="architecture"),
        pytest.param(
            {"architectures": ("Hopp*",)},
            'architecture "Hopper" is none of Hopp*',
            id="architecture-is-literal",
        ),
        pytest.param({"min_memory_bytes": 79 * 2**30}, None, id="memory"),
        pytest.param({"min_memory_bytes": 81559 * 2**20}, None, id="memory-exact"),
        pytest.param(
            {"min_memory_bytes": 80 * 2**30},
            "memory 81559Mi is less than 81920Mi",
            id="memory-of-the-name-is-too-much",
        ),
        pytest.param({"min_compute_capability": "9.0"}, None, id="capability"),
        pytest.param({"min_compute_capability": "9.0.0"}, None, id="capability-spelt-longer"),
        pytest.param({"min_compute_capability": "8.10"}, None, id="capability-is-numeric"),
        pytest.param(
            {"min_compute_capability": "10.0"},
            "compute capability 9.0 is less than 10.0",
            id="capability-is-not-text",
        ),
    ],
)
def test_fields(fields: dict, message: str | None) -> None:
    judgement = CardSelector(**fields).judge(H100)

    assert judgement == (MATCH if message is None else Judgement(matches=False, message=message))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"products": ("*",)}, "the card's product is not known"),
        ({"architectures": ("Hopper",)}, "the card's architecture is not known"),
        ({"min_memory_bytes": 1}, "the card's memory is not known"),
        ({"min_compute_capability": "0.0"}, "the card's compute capability is not known"),
    ],
    ids=["product", "architecture", "memory", "capability"],
)
def test_a_missing_fact_is_neither_yes_nor_no(fields: dict, message: str) -> None:
    assert CardSelector(**fields).judge(BARE) == Judgement(None, message)


def test_a_malformed_capability_matches_nothing() -> None:
    assert CardSelector(min_compute_capability="nine").judge(H100) == Judgement(
        None, '"nine" is no compute capability such as 9.0'
    )


def test_no_outweighs_cannot_tell() -> None:
    selector = CardSelector(products=("Tesla*",), min_memory_bytes=1)

    assert selector.judge(replace(H100, memory_bytes=None)).matches is False


def test_a_pattern_of_many_stars_is_quick() -> None:
    """A backtracking search would not return in this lifetime; the test's timeout would say so."""
    selector = CardSelector(products=("*a" * 31 + "b",))

    assert selector.judge(replace(H100, product_name="a" * 64)).matches is False


YES, NO, UNKNOWN = MATCH, Judgement(matches=False, message="no"), Judgement(None, "unknown")


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (YES, YES, YES),
        (YES, NO, NO),
        (NO, YES, NO),
        (YES, UNKNOWN, UNKNOWN),
        (UNKNOWN, YES, UNKNOWN),
        (UNKNOWN, NO, NO),
        (NO, UNKNOWN, NO),
    ],
)
def test_combine(first: Judgement, second: Judgement, expected: Judgement) -> None:
    assert combine(first, second) == expected


def test_no_match_lists_what_exists() -> None:
    a100 = Gpu(uuid="GPU-2", index=2, product_name="NVIDIA A100-SXM4-40GB", architecture="Ampere")

    assert existing_values([H100, BARE, a100]) == (
        "products: NVIDIA A100-SXM4-40GB, NVIDIA H100 80GB HBM3; architectures: Ampere, Hopper; "
        "memory: 81559Mi; compute capabilities: 9.0"
    )
    assert existing_values([]) == "the selected nodes report no cards"
