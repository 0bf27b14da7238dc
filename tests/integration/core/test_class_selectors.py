"""What the selectors of classes select, evaluated as the scheduler does (R18, R20, R35).

Generated devices are of our driver and of others, of this release and of others: attributes are missing, of another
type, or carry hostile text. A selector says yes or no to each of them, never an error, and yes only to its own.
"""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gpupolicy.adapters.cel import engine
from gpupolicy.core.classes import DesiredClass
from gpupolicy.core.selection import Answer, Device, Outcome

DRIVER = "gpu.gpupolicy.dev"
POLICIES = ["train", "infer", 'x" || true || "', "train\\"]
PROFILES = ["1g.10gb", "1g.10gb+me", "3g.40gb"]

values = st.one_of(
    st.sampled_from([*POLICIES, *PROFILES, "gpu", "mig", "share"]).map(lambda text: {"string": text}),
    st.sampled_from([{"int": 1}, {"bool": True}, {"version": "1.2.3"}]),
)
attributes = st.dictionaries(
    st.sampled_from(
        ["policy", "type", "profile", f"{DRIVER}/policy", "other.example.com/policy", "productName"]
    ),
    values,
    max_size=5,
)
devices = st.builds(
    Device,
    driver=st.sampled_from([DRIVER, DRIVER, "gpu.nvidia.com", ""]),
    attributes=attributes,
    allow_multiple_allocations=st.booleans(),
)
wishes = st.builds(
    DesiredClass,
    name=st.just("c"),
    policy=st.sampled_from(POLICIES),
    profile=st.none() | st.sampled_from(PROFILES),
    published=st.lists(st.sampled_from(PROFILES), unique=True, max_size=2).map(
        lambda found: tuple(sorted(found))
    ),
)


def text(device: Device, name: str) -> str | None:
    """Return a string attribute of our domain, whichever way it is written; the bare name wins."""
    found: Any = device.attributes.get(name, device.attributes.get(f"{DRIVER}/{name}", {}))
    return found.get("string")


@given(wishes, devices)
def test_a_selector_says_yes_to_its_own_and_no_to_all_else(wish: DesiredClass, device: Device) -> None:
    (verdict,) = engine.evaluate(wish.expression, [device])

    both = f"{DRIVER}/policy" in device.attributes and "policy" in device.attributes
    assert verdict.outcome in ({Outcome.MATCH, Outcome.NO_MATCH} if not both else set(Outcome))
    if not both:
        mine = (
            device.driver == DRIVER
            and text(device, "policy") == wish.policy
            and text(device, "type") == wish.kind
            and (wish.profile is None or text(device, "profile") in (wish.published or (wish.profile,)))
        )
        assert (verdict.outcome is Outcome.MATCH) is mine


@given(wishes)
def test_the_api_server_would_take_it_and_it_is_cheap(wish: DesiredClass) -> None:
    admission = engine.judge(wish.expression)

    assert admission.answer is Answer.ACCEPTED, admission.reason
    assert admission.estimated_cost is not None
    assert admission.estimated_cost < 2000


@given(st.lists(devices, max_size=6))
def test_a_training_class_yields_whole_cards_of_its_policy_only(found: list[Device]) -> None:
    wish = DesiredClass(name="h100", policy="train")

    verdicts = engine.evaluate(wish.expression, found)

    chosen = [d for d, v in zip(found, verdicts, strict=True) if v.outcome is Outcome.MATCH]
    assert all(
        d.driver == DRIVER and text(d, "type") == "gpu" and text(d, "policy") == "train" for d in chosen
    )
