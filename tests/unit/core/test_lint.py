"""Findings on selectors that the API server takes."""

from typing import Any

import pytest

from gpupolicy.adapters.cel import engine
from gpupolicy.core import lint, selection
from gpupolicy.core.lint import Finding, LintReason
from gpupolicy.core.selection import Device

DRIVER = "gpu.gpupolicy.dev"
GUARD = f'device.driver == "{DRIVER}"'
ATTRIBUTES = f'device.attributes["{DRIVER}"]'
ENGINE = engine.Engine()


def device(kind: str, number: int, **attributes: Any) -> Device:
    facts: dict[str, Any] = {"type": {"string": kind}, "productName": {"string": "NVIDIA H100"}} | attributes
    return Device(DRIVER, facts, name=f"{kind}-{number}", node="node-1")


DEVICES = [device("gpu", n) for n in range(4)] + [
    device("mig", n, profile={"string": "1g.10gb"}) for n in range(7)
]


def findings(
    expression: str, devices: list[Device] = DEVICES, meant_for: str | None = None
) -> tuple[Finding, ...]:
    found = selection.preview(expression, devices, ENGINE)
    return lint.lint(expression, devices, found, ENGINE, meant_for=meant_for)


def test_a_selector_for_slices_that_takes_whole_cards_is_too_broad() -> None:
    (finding,) = findings(GUARD, meant_for="mig")
    assert finding.reason is LintReason.SELECTOR_TOO_BROAD
    assert "also matches 4 whole cards" in finding.message
    assert 'type == "mig"' in finding.message


@pytest.mark.parametrize(
    ("expression", "meant_for"),
    [
        (f'{GUARD} && {ATTRIBUTES}.type == "mig"', "mig"),
        (f'{GUARD} && {ATTRIBUTES}.type == "gpu"', "gpu"),
        (GUARD, None),
        (f'{GUARD} && {ATTRIBUTES}.?profile.orValue("") == "1g.10gb"', "mig"),
    ],
)
def test_a_selector_that_takes_what_it_is_meant_for_is_fine(expression: str, meant_for: str | None) -> None:
    assert findings(expression, meant_for=meant_for) == ()


def test_one_whole_card_is_called_one() -> None:
    (finding,) = findings(GUARD, DEVICES[3:], meant_for="mig")
    assert "also matches 1 whole card;" in finding.message


def test_a_kind_that_nobody_knows_yet_is_named_as_it_is() -> None:
    (finding,) = findings(GUARD, [device("vfio", 0), DEVICES[5]], meant_for="mig")
    assert "1 vfio device;" in finding.message


def test_an_unguarded_attribute_fails_and_the_remedy_is_said() -> None:
    (finding,) = findings(f'{GUARD} && {ATTRIBUTES}.profile == "1g.10gb"')
    assert finding.reason is LintReason.SELECTOR_FAILS
    assert "fails on 4 of 11 devices (node-1/gpu-0, node-1/gpu-1" in finding.message
    assert "no such key: profile" in finding.message
    assert "has(...)" in finding.message


def test_a_selector_without_the_driver_fails_on_the_first_foreign_device() -> None:
    """Although no such device is there yet."""
    (finding,) = findings(f'{ATTRIBUTES}.type == "gpu"')
    assert finding.reason is LintReason.SELECTOR_FAILS
    assert "device of another driver" in finding.message
    assert "device.driver ==" in finding.message


def test_a_wrong_product_lists_the_products_there_are() -> None:
    (finding,) = findings(f'{GUARD} && {ATTRIBUTES}.productName == "NVIDIA A100"')
    assert finding.reason is LintReason.SELECTOR_MATCHES_NOTHING
    assert "none of 11 devices matches" in finding.message
    assert 'productName == "NVIDIA A100"` drops 11' in finding.message
    assert 'productName: "NVIDIA H100"' in finding.message


def test_a_misspelt_attribute_gets_a_suggestion() -> None:
    found = {
        f.reason: f.message
        for f in findings(f'{GUARD} && {ATTRIBUTES}.?productname.orValue("") == "NVIDIA H100"')
    }
    message = found[LintReason.SELECTOR_MATCHES_NOTHING]
    assert f"no device has {DRIVER}/productname (did you mean {DRIVER}/productName?)" in message


def test_a_wrong_driver_lists_the_drivers_there_are() -> None:
    (finding,) = findings('device.driver == "gpu.nvidia.com"')
    assert f"drivers: {DRIVER}" in finding.message


def test_many_values_are_cut_short() -> None:
    many = [device("gpu", n, uuid={"string": f"GPU-{n}"}) for n in range(9)]
    (finding,) = findings(f'{GUARD} && {ATTRIBUTES}.uuid == "GPU-x"', many)
    assert finding.message.count('"GPU-') == 6  # five values, and the clause
    assert finding.message.endswith(", ...")


def test_values_of_another_drivers_attributes_are_not_ours() -> None:
    """An attribute without a domain belongs to the driver that publishes it."""
    other = Device("other.com", {"productName": {"string": "not a GPU"}}, name="other")
    (finding,) = findings(f'{GUARD} && {ATTRIBUTES}.productName == "NVIDIA A100"', [*DEVICES, other])
    assert 'productName: "NVIDIA H100"' in finding.message
    assert "not a GPU" not in finding.message


def test_where_there_are_no_devices_nothing_is_found() -> None:
    assert findings(GUARD, [], meant_for="mig") == ()


def test_an_expression_that_does_not_compile_is_no_matter_of_taste() -> None:
    """The API server refuses it; advice on guards would only hide that."""
    assert findings("device.nope == 1") == ()
