"""Turns the wire models into CustomResourceDefinitions with structural schemas.

Used by the generator of `crds/` only. Pydantic's JSON schema is close to what Kubernetes wants but not
structural: references are inlined, `X | None` becomes X (absent is how Kubernetes says None), titles go, unions
of other kinds are a bug of the model and raise. Everything else that Kubernetes knows and pydantic does not
(list types, CEL rules) stands beside its field as `json_schema_extra`.
"""

from typing import Any, Final

from gpupolicy.api import names
from gpupolicy.api.node import GpuNode
from gpupolicy.api.policy import GpuPolicy
from gpupolicy.api.wire import Wire

_KEPT: Final = frozenset(
    {
        "type",
        "description",
        "default",
        "enum",
        "format",
        "pattern",
        "minimum",
        "maximum",
        "minLength",
        "maxLength",
        "minItems",
        "maxItems",
        "minProperties",
        "maxProperties",
        "required",
        "x-kubernetes-list-type",
        "x-kubernetes-list-map-keys",
        "x-kubernetes-validations",
        "x-kubernetes-preserve-unknown-fields",
        "x-kubernetes-int-or-string",
    }
)
_DROPPED: Final = frozenset(
    {"title", "$defs", "additionalProperties", "properties", "items", "anyOf", "allOf", "$ref", "const"}
)

_COLUMNS: Final[dict[str, list[tuple[str, str, str, str, int]]]] = {
    # name, type, JSON path, description, priority (1 = only with -o wide)
    names.POLICY_KIND: [
        ("Strategy", "string", ".spec.sharing.strategy", "How the cards are shared.", 0),
        ("Nodes", "string", ".status.nodes", "Nodes applied / selected.", 0),
        ("GPUs", "string", ".status.gpus", "Cards applied / selected.", 0),
        ("Devices", "integer", ".status.devices", "Devices published.", 0),
        ("Allocated", "integer", ".status.allocated", "Devices that claims hold.", 0),
        ("Free", "integer", ".status.free", "Devices that a new claim could get now.", 0),
        ("Ready", "string", '.status.conditions[?(@.type=="Ready")].status', "The summary.", 0),
        ("Age", "date", ".metadata.creationTimestamp", "Age of the policy.", 0),
        ("Priority", "integer", ".spec.priority", "Who wins a card that several policies select.", 1),
        ("Reason", "string", '.status.conditions[?(@.type=="Ready")].reason', "Why, in one word.", 1),
        ("Message", "string", '.status.conditions[?(@.type=="Ready")].message', "Why, for people.", 1),
    ],
    names.NODE_KIND: [
        ("GPUs", "integer", ".status.gpuCount", "Cards that the agent sees.", 0),
        ("MIG", "integer", ".status.migGPUs", "Cards in MIG mode.", 0),
        ("Devices", "integer", ".status.devices", "Devices published.", 0),
        ("Allocated", "integer", ".status.allocated", "Published devices that claims hold.", 0),
        ("Driver", "string", ".status.driverVersion", "Version of the NVIDIA driver.", 0),
        ("Ready", "string", '.status.conditions[?(@.type=="Ready")].status', "The summary.", 0),
        ("Age", "date", ".metadata.creationTimestamp", "Age of the object.", 0),
        ("Allocator", "string", ".status.allocator", "Who hands out the cards.", 1),
        ("Reason", "string", '.status.conditions[?(@.type=="Ready")].reason', "Why, in one word.", 1),
        ("Message", "string", '.status.conditions[?(@.type=="Ready")].message', "Why, for people.", 1),
    ],
}


def structural(
    schema: dict[str, Any], definitions: dict[str, Any], *, defaults: bool = True
) -> dict[str, Any]:
    """Return a JSON schema of pydantic as a structural schema.

    Args:
        schema: the (sub-)schema, as `model_json_schema` gives it.
        definitions: its `$defs`.
        defaults: whether defaults are kept; status has none, because nobody fills it in but its writer.

    Raises:
        ValueError: a construct that Kubernetes cannot express, named.
    """
    schema = _resolved(schema, definitions)
    unknown = set(schema) - _KEPT - _DROPPED
    if unknown:
        raise ValueError(f"schema keywords without a structural form: {sorted(unknown)} in {schema}")
    result = {key: value for key, value in schema.items() if key in _KEPT}
    if "const" in schema:
        result["enum"] = [schema["const"]]
    if not defaults or result.get("default", "") is None:
        result.pop("default", None)
    if result.get("type") == "integer":
        result["format"] = "int64"
    if "properties" in schema:
        result["properties"] = {
            name: structural(inner, definitions, defaults=defaults)
            for name, inner in schema["properties"].items()
        }
    elif result.get("type") == "object":
        inner = schema.get("additionalProperties", True)
        if not isinstance(inner, dict):
            raise ValueError(f"an object without properties needs a value type: {schema}")
        result["additionalProperties"] = structural(inner, definitions, defaults=defaults)
    if "items" in schema:
        result["items"] = structural(schema["items"], definitions, defaults=defaults)
    if "type" not in result:
        raise ValueError(f"schema without a type: {schema}")
    return result


def _resolved(schema: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    """Inline references and optionals; what stands beside a reference wins over what it points to."""
    merged = dict(schema)
    while True:
        if "$ref" in merged:
            target = definitions[merged.pop("$ref").removeprefix("#/$defs/")]
            merged = {**target, **merged}
        elif "allOf" in merged and len(merged["allOf"]) == 1:
            merged = {**merged.pop("allOf")[0], **merged}
        elif "anyOf" in merged:
            variants = [v for v in merged.pop("anyOf") if v.get("type") != "null"]
            if len(variants) != 1:
                raise ValueError(f"a union has no structural form: {schema}")
            merged = {**variants[0], **merged}
        else:
            return merged


def _kind_schema(model: type[Wire]) -> dict[str, Any]:
    """Return the root schema of a kind: spec with defaults, status without."""
    raw = model.model_json_schema(by_alias=True, mode="validation")
    definitions = raw.get("$defs", {})
    properties: dict[str, Any] = {
        "apiVersion": {"type": "string"},
        "kind": {"type": "string"},
        "metadata": {"type": "object"},
    }
    properties["spec"] = structural(raw["properties"]["spec"], definitions)
    properties["status"] = structural(raw["properties"]["status"], definitions, defaults=False)
    return {
        "type": "object",
        "description": (model.__doc__ or "").strip(),
        "required": ["spec"] if model is GpuPolicy else [],
        "properties": properties,
    }


def custom_resource_definition(model: type[Wire], kind: str, plural: str, short_name: str) -> dict[str, Any]:
    """Return the CRD of one kind as a plain object."""
    schema = _kind_schema(model)
    if not schema["required"]:
        del schema["required"]
    columns = [
        {
            "name": name,
            "type": column_type,
            "jsonPath": path,
            "description": description,
            **({"priority": priority} if priority else {}),
        }
        for name, column_type, path, description, priority in _COLUMNS[kind]
    ]
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{plural}.{names.GROUP}",
            "labels": {"app.kubernetes.io/name": "gpupolicy", "app.kubernetes.io/part-of": "gpupolicy"},
        },
        "spec": {
            "group": names.GROUP,
            "scope": "Cluster",
            "names": {
                "kind": kind,
                "listKind": f"{kind}List",
                "plural": plural,
                "singular": kind.lower(),
                "shortNames": [short_name],
                # Not the singular of a kind: kubectl would take `gpupolicy NAME` for the category and refuse the name.
                "categories": ["gpu"],
            },
            "versions": [
                {
                    "name": names.VERSION,
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": schema},
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": columns,
                }
            ],
        },
    }


def all_definitions() -> dict[str, dict[str, Any]]:
    """Return every CRD by the name of its file under `crds/`."""
    return {
        f"{names.GROUP}_gpupolicies.yaml": custom_resource_definition(
            GpuPolicy, names.POLICY_KIND, "gpupolicies", "gpol"
        ),
        f"{names.GROUP}_gpunodes.yaml": custom_resource_definition(
            GpuNode, names.NODE_KIND, "gpunodes", "gpunode"
        ),
    }
