"""`spec.access` against whoever asks in an older version of the API, where an API server still serves it."""

from __future__ import annotations

from typing import Any

import pytest

from gpupolicy.api.policy import Access
from gpupolicy.core import access
from gpupolicy.core.classes import DesiredClass
from tests.cluster.cluster import Cluster
from tests.cluster.control_plane import ControlPlaneOptions
from tests.cluster.process import poll_until

pytestmark = pytest.mark.cluster

ADMISSION = "/apis/admissionregistration.k8s.io/v1"
PLURALS = {
    "ValidatingAdmissionPolicy": "validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": "validatingadmissionpolicybindings",
}
OLD_AND_NEW = ("v1", "v1beta2", "v1beta1")


def request(version: str, device_class: str, *, is_choice: bool) -> dict[str, Any]:
    """Return a request for a device as that version of the API writes it."""
    asked = {"deviceClassName": device_class}
    if is_choice:
        return {"name": "r", "firstAvailable": [{"name": "s", **asked}]}
    return {"name": "r", **asked} if version == "v1beta1" else {"name": "r", "exactly": asked}


def test_a_claim_in_any_served_version_is_refused() -> None:
    served = {f"resource.k8s.io/{version}": "true" for version in OLD_AND_NEW}
    with Cluster.start(options=ControlPlaneOptions(runtime_config=served)) as cluster:
        admin = cluster.control_plane.admin
        wish = DesiredClass(name="guarded", policy="p")
        allowed = Access.model_validate({"namespaces": {"matchLabels": {"team": "serving"}}})
        for body in access.objects("p", "uid", allowed, [wish]):
            bare = {**body, "metadata": {**body["metadata"], "ownerReferences": []}}
            admin.create(f"{ADMISSION}/{PLURALS[body['kind']]}", bare)

        def refusal(version: str, kind: str, device_class: str, *, is_choice: bool) -> str:
            spec: dict[str, Any] = {
                "devices": {"requests": [request(version, device_class, is_choice=is_choice)]}
            }
            answer = admin.call(
                "POST",
                f"/apis/resource.k8s.io/{version}/namespaces/default/{kind}",
                {
                    "metadata": {"name": "c"},
                    "spec": {"spec": spec} if kind == "resourceclaimtemplates" else spec,
                },
                query={"dryRun": "All"},
            )
            return "" if answer.status == 201 else str(answer.body["message"])

        poll_until(
            lambda: bool(refusal("v1", "resourceclaims", "guarded", is_choice=False)),
            timeout_seconds=60.0,
            what="the fence",
        )
        for version in OLD_AND_NEW:
            for kind in ("resourceclaims", "resourceclaimtemplates"):
                for is_choice in (False, True):
                    case = f"{version} {kind} {is_choice}"
                    told = refusal(version, kind, "guarded", is_choice=is_choice)
                    assert "ask the admin of GpuPolicy p to admit namespace default" in told, case
                    assert refusal(version, kind, "other", is_choice=is_choice) == "", case
