"""The shape that all wire models share, and the small types that several of them use.

Models ignore unknown fields: an agent of the previous release must survive a newer CRD. Strictness belongs to
the API server, whose schema and CEL rules are generated from these same models (see `api/schema.py`); the rules
stand beside the fields they guard, under `x-kubernetes-validations` in `json_schema_extra`.
"""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field


def camel(name: str) -> str:
    """Return the JSON name of a field: camelCase, with the initialisms that Kubernetes writes in capitals."""
    head, *tail = name.split("_")
    capitals = {"id": "ID", "uid": "UID", "gpu": "GPU", "cpu": "CPU"}
    return head + "".join(capitals.get(part, part.capitalize()) for part in tail)


class Wire(BaseModel):
    """A frozen model that reads and writes camelCase JSON and ignores what it does not know."""

    model_config = ConfigDict(
        frozen=True, extra="ignore", populate_by_name=True, alias_generator=camel, defer_build=True
    )

    def to_wire(self) -> dict[str, Any]:
        """Return the object as it goes over the wire: JSON types, aliases, nothing that is unset or None."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


def rules(*pairs: tuple[str, str]) -> dict[str, Any]:
    """Return the schema extension for CEL rules, given as (rule, message that names the remedy)."""
    return {"x-kubernetes-validations": [{"rule": rule, "message": message} for rule, message in pairs]}


def list_map(*keys: str) -> dict[str, Any]:
    """Return the schema extension of a list whose items server-side apply merges by these keys."""
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(keys)}


Quantity = Annotated[
    str,
    Field(
        max_length=24,
        json_schema_extra=rules(
            (
                "isQuantity(self) && quantity(self).isGreaterThan(quantity('0'))",
                "must be a positive quantity, e.g. 79Gi",
            )
        ),
    ),
]
"""A positive Kubernetes quantity, such as `79Gi`."""

DnsLabel = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", min_length=1, max_length=63)]
DnsSubdomain = Annotated[
    str,
    Field(
        pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$",
        min_length=1,
        max_length=253,
    ),
]


class LabelSelectorRequirement(Wire):
    """One requirement of a label selector."""

    key: Annotated[str, Field(min_length=1, max_length=317)] = Field(
        description="Label key that it applies to."
    )
    operator: Annotated[str, Field(pattern="^(In|NotIn|Exists|DoesNotExist)$", max_length=16)] = Field(
        description="How the label relates to the values: In, NotIn, Exists or DoesNotExist."
    )
    values: Annotated[list[Annotated[str, Field(max_length=63)]], Field(max_length=64)] = Field(
        default_factory=list,
        description="Values to compare with; needed for In and NotIn, not allowed for Exists and DoesNotExist.",
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )


class LabelSelector(Wire):
    """A label selector as in every Kubernetes API; all requirements must hold. Empty selects everything."""

    match_labels: Annotated[dict[str, Annotated[str, Field(max_length=63)]], Field(max_length=64)] = Field(
        default_factory=dict, description="Labels that must be there with exactly these values."
    )
    match_expressions: Annotated[list[LabelSelectorRequirement], Field(max_length=64)] = Field(
        default_factory=list,
        description="Further requirements, ANDed.",
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )
