"""The opaque configuration that a DeviceClass or a claim may carry for our driver.

It may tighten what the policy of the device allows and never widen it. A tenant writes it, so it is hostile input:
it is read strictly, an unknown field is an error, and nothing of it is executed or used as a path. No strategy that
this release serves (Exclusive, static MIG) has anything to tighten; the shape is here so that what the next ones
bring is refused with a reason today and not ignored.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from gpupolicy.api.wire import camel

CLAIM_CONFIG_KIND = "ClaimConfig"


class _Strict(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", populate_by_name=False, alias_generator=camel, strict=True
    )


class ClaimTimeSlicing(_Strict):
    """Tightens time slicing."""

    interval: Literal["Default", "Short", "Medium", "Long"] = Field(description="Length of a turn.")


class ClaimMps(_Strict):
    """Tightens MPS."""

    active_thread_percentage: Annotated[int, Field(ge=1, le=100)] | None = Field(
        default=None, description="Share of the threads, in percent."
    )
    memory_limit: Annotated[str, Field(max_length=24)] | None = Field(
        default=None, description="Memory limit, as a quantity."
    )


class ClaimConfig(_Strict):
    """One entry of configuration for driver gpu.gpupolicy.dev."""

    api_version: Literal["gpupolicy.dev/v1alpha1"] = Field(description="Version of this shape.")
    kind: Literal["ClaimConfig"] = Field(description="Name of this shape.")
    time_slicing: ClaimTimeSlicing | None = Field(default=None, description="Tightens time slicing.")
    mps: ClaimMps | None = Field(default=None, description="Tightens MPS.")
