"""Manifests in a status are valid YAML that asks for what the policy offers; times read back as they were written."""

import datetime as dt
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gpupolicy.core import classes, examples, render
from tests.unit.core.wire import MIG, policy

OFFERS = [{"deviceClassName": "h100.cards", "extendedResourceName": "nvidia.com/gpu"}]


def documents(spec: dict[str, Any], cards: int = 8) -> dict[str, list[dict[str, Any]]]:
    found = examples.examples(classes.desired(policy(**spec)), cards_per_node=cards)
    return {e.name: list(yaml.safe_load_all(e.manifest)) for e in found}


def test_a_whole_node_is_one_claim_for_all_of_its_cards() -> None:
    template, job = documents({"offers": OFFERS})["h100.cards-whole-node"]

    (request,) = template["spec"]["spec"]["devices"]["requests"]
    assert request["exactly"] == {"deviceClassName": "h100.cards", "count": 8}
    (claim,) = job["spec"]["template"]["spec"]["resourceClaims"]
    assert claim["resourceClaimTemplateName"] == template["metadata"]["name"]
    assert job["spec"]["template"]["spec"]["containers"][0]["resources"]["claims"] == [
        {"name": claim["name"]}
    ]


@pytest.mark.parametrize("cards", [0, 1])
def test_there_is_no_example_for_nodes_that_do_not_exist(cards: int) -> None:
    assert "p-whole-node" not in documents({}, cards)


def test_an_extended_name_gets_a_pod_with_limits() -> None:
    (pod,) = documents({"offers": OFFERS})["h100.cards-limits"]

    assert pod["spec"]["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": 1}


@pytest.mark.parametrize("name", ["80", "1e3", "0x1f", "1.5", "true", "null", "on", "y", "2026-01-01"])
def test_names_that_look_like_numbers_or_words_of_yaml_stay_names(name: str) -> None:
    """A manifest with the class 80 in place of "80" is refused by the API server."""
    found = documents({"offers": [{"deviceClassName": name, "extendedResourceName": f"{name}/x"}]})

    template, job = found[f"{name}-claim"]
    (request,) = template["spec"]["spec"]["devices"]["requests"]
    assert request["exactly"]["deviceClassName"] == name
    assert job["spec"]["template"]["spec"]["resourceClaims"][0]["resourceClaimTemplateName"].startswith(
        name.replace(".", "-")
    )
    (pod,) = found[f"{name}-limits"]
    assert pod["spec"]["containers"][0]["resources"]["limits"] == {f"{name}/x": 1}
    assert render.word(name) == f'"{name}"'


def test_every_profile_gets_a_claim() -> None:
    found = documents({"sharing": MIG})

    asked = [
        d[0]["spec"]["spec"]["devices"]["requests"][0]["exactly"]["deviceClassName"] for d in found.values()
    ]
    assert asked == ["p-3g-40gb", "p-2g-20gb", "p-1g-10gb"]


def test_names_of_objects_are_labels_and_the_number_is_bounded() -> None:
    offers = [{"deviceClassName": f"{'x' * 80}.{i}", "extendedResourceName": f"a.b/c{i}"} for i in range(9)]

    found = documents({"offers": offers})

    assert len(found) == 8
    for group in found.values():
        for body in group:
            name = body["metadata"]["name"]
            assert len(name) <= 63
            assert name.strip("-").replace("-", "").isalnum()


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"])),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.from_regex(r"[a-z]{1,5}", fullmatch=True), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(st.dictionaries(st.from_regex(r"[a-z]{1,5}", fullmatch=True), json_values, max_size=4))
def test_yaml_reads_back(body: dict[str, Any]) -> None:
    assert (yaml.safe_load(render.yaml(body)) or {}) == body


def test_a_class_reads_back() -> None:
    body = classes.manifest(classes.desired(policy(sharing=MIG))[0], policy_uid="u")

    assert yaml.safe_load(render.yaml(body)) == body


def test_moments_are_written_in_utc_and_read_back() -> None:
    moment = dt.datetime(2026, 3, 4, 5, 6, 7, 890000, dt.timezone(dt.timedelta(hours=2)))

    assert render.timestamp(moment) == "2026-03-04T03:06:07Z"
    assert render.parse_timestamp("2026-03-04T03:06:07Z") == moment.replace(microsecond=0)


@pytest.mark.parametrize("text", ["", "yesterday", "2026-03-04T03:06:07"], ids=["empty", "words", "no-zone"])
def test_what_is_no_moment_is_none(text: str) -> None:
    assert render.parse_timestamp(text) is None
