"""`spec.access` on a real API server: who may claim, how many, and what becomes of it (R40, R42)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration.controller.conftest import World
from tests.stories import objects

pytestmark = pytest.mark.cluster

OFFER = {"deviceClassName": "guarded", "extendedResourceName": "example.com/guarded"}
GUARD = "gpupolicy-access-guarded"


@pytest.fixture
def guarded(world: World) -> Iterator[World]:
    """A policy that namespaces of one team may use, and a namespace of each kind."""
    world.add_node("gpu-01", gpu_pool="a")
    world.start_controller()
    for name, team in (("serving", "serving"), ("stranger", "other")):
        if world.admin.call("GET", f"/api/v1/namespaces/{name}").status != 200:
            world.admin.create("/api/v1/namespaces", {"metadata": {"name": name, "labels": {"team": team}}})
    account = "/api/v1/namespaces/{}/serviceaccounts/default"
    for name in ("serving", "stranger"):
        path = account.format(name)
        world.wait(path, lambda path=path: world.admin.call("GET", path).status == 200)
    yield world
    # A controller would put back what goes while it runs.
    world.stop_controllers()
    world.cluster.kubectl("delete", "resourcequotas", "--all", "-n", "serving", "--ignore-not-found")


def apply(world: World, access: dict[str, Any] | None) -> None:
    """Apply the policy with this access, and wait until the controller has acted on it."""
    spec = {"nodeSelector": {"matchLabels": {"gpu-pool": "a"}}, "offers": [OFFER]}
    world.policy("guarded", {**spec, **({"access": access} if access is not None else {})})

    def seen() -> bool:
        found = world.condition("guarded", "Accepted")
        body = world.admin.get("/apis/gpupolicy.dev/v1alpha1/gpupolicies/guarded")
        return bool(found["observedGeneration"] == body["metadata"]["generation"])

    world.wait("the policy to be judged", seen)


def create(world: World, body: dict[str, Any]) -> str:
    """Create an object with the API server's admission, without keeping it; return what was refused."""
    group = "/api/v1" if body["kind"] == "Pod" else "/apis/resource.k8s.io/v1"
    path = f"{group}/namespaces/{body['metadata']['namespace']}/{body['kind'].lower()}s"
    answer = world.admin.call("POST", path, body, query={"dryRun": "All"})
    return "" if answer.status == 201 else str(answer.body["message"])


def claim(name: str, namespace: str, device_class: str) -> dict[str, Any]:
    """A claim of its own, with the class as second choice."""
    choices = [
        {"name": "best", "deviceClassName": "other"},
        {"name": "next", "deviceClassName": device_class},
    ]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"devices": {"requests": [{"name": "gpu", "firstAvailable": choices}]}},
    }


def init_pod(namespace: str) -> dict[str, Any]:
    """A pod whose init container alone asks."""
    body = objects.pod("init", namespace)
    container = {**body["spec"]["containers"][0], "name": "first"}
    container["resources"] = {"limits": {"example.com/guarded": "1"}}
    body["spec"]["initContainers"] = [container]
    return body


WAYS = {
    "template": lambda ns: objects.template("t", ns, "guarded"),
    "second-choice": lambda ns: claim("c", ns, "guarded"),
    "extended-name": lambda ns: objects.pod("p", ns, limits={"example.com/guarded": 1}),
    "implicit-name": lambda ns: objects.pod(
        "p", ns, limits={"deviceclass.resource.kubernetes.io/guarded": 1}
    ),
    "init-container": init_pod,
}
HARMLESS = {
    "other-class": lambda ns: objects.template("t", ns, "other"),
    "plain-pod": lambda ns: objects.pod("p", ns),
    "other-name": lambda ns: objects.pod("p", ns, limits={"example.com/other": 1}),
}


def test_r42_others_are_refused_by_every_name_and_told_whom_to_ask(guarded: World) -> None:
    """The selected namespace is let in, and whoever asks for something else is not looked at."""
    apply(guarded, {"namespaces": {"matchLabels": {"team": "serving"}}})
    guarded.wait("the fence", lambda: create(guarded, WAYS["template"]("stranger")))
    for way, body in WAYS.items():
        refused = create(guarded, body("stranger"))
        assert "ask the admin of GpuPolicy guarded to admit namespace stranger" in refused, way
        assert "team=serving" in refused, way
        assert create(guarded, body("serving")) == "", way
    for way, body in HARMLESS.items():
        assert create(guarded, body("stranger")) == "", way


SELECTORS: list[Any] = [
    pytest.param({"key": "team", "operator": "In", "values": ["other", "x"]}, True, id="in"),
    pytest.param({"key": "team", "operator": "In", "values": ["serving"]}, False, id="not-in-values"),
    pytest.param({"key": "team", "operator": "NotIn", "values": ["serving"]}, True, id="notin"),
    pytest.param({"key": "absent", "operator": "NotIn", "values": ["x"]}, True, id="notin-absent"),
    pytest.param({"key": "team", "operator": "Exists"}, True, id="exists"),
    pytest.param({"key": "absent", "operator": "Exists"}, False, id="exists-absent"),
    pytest.param({"key": "absent", "operator": "DoesNotExist"}, True, id="absent"),
    pytest.param({"key": "team", "operator": "DoesNotExist"}, False, id="present"),
]


def test_a_selector_means_what_it_means_everywhere(guarded: World) -> None:
    """Every operator, with the label there and not, on the namespace `stranger` of team `other`."""
    for case in SELECTORS:
        requirement, admitted = case.values
        # Admission follows with a delay, so what holds before must be the opposite: else nobody would have been asked.
        before = {"matchLabels": {"team": "nobody" if admitted else "other"}}
        for selector, wanted in ((before, not admitted), ({"matchExpressions": [requirement]}, admitted)):
            apply(guarded, {"namespaces": selector})
            guarded.wait(
                f"{case.id}: admitted is {wanted}",
                lambda wanted=wanted: (create(guarded, WAYS["template"]("stranger")) == "") is wanted,
            )


def test_r40_quotas_have_the_keys_that_count_and_go_when_they_are_not_wanted(guarded: World) -> None:
    """A pod over the limit is refused at once; without access nothing of it stays."""
    quotas = [{"namespace": "serving", "deviceClassName": "guarded", "devices": 1}]
    apply(guarded, {"namespaces": {"matchLabels": {"team": "serving"}}, "quotas": quotas})
    path = f"/api/v1/namespaces/serving/resourcequotas/{GUARD}"
    guarded.wait("the quota", lambda: guarded.admin.get(path)["status"]["hard"])
    assert guarded.admin.get(path)["spec"]["hard"] == {
        "guarded.deviceclass.resource.k8s.io/devices": "1",
        "requests.example.com/guarded": "1",
        "requests.deviceclass.resource.kubernetes.io/guarded": "1",
    }
    one, two = (objects.pod("p", "serving", limits={"example.com/guarded": count}) for count in (1, 2))
    # Admission learns of what was written with a delay, also of what a test before left behind.
    guarded.wait("one card to be admitted", lambda: create(guarded, one) == "")
    guarded.wait("two to be too many", lambda: "exceeded quota" in create(guarded, two))

    apply(guarded, None)
    guarded.wait("the quota to go", lambda: guarded.admin.call("GET", path).status == 404)
    for kind in ("validatingadmissionpolicies", "validatingadmissionpolicybindings"):
        guard = f"/apis/admissionregistration.k8s.io/v1/{kind}/{GUARD}"
        guarded.wait(f"{kind} to go", lambda guard=guard: guarded.admin.call("GET", guard).status == 404)
    guarded.wait("the stranger to be admitted", lambda: create(guarded, WAYS["template"]("stranger")) == "")


REFUSED: list[Any] = [
    pytest.param(
        {"quotas": [{"namespace": "serving", "deviceClassName": "nobodys", "devices": 1}]},
        "the policy offers no class nobodys; it offers guarded",
        id="class-of-nobody",
    ),
    pytest.param(
        {"quotas": [{"namespace": "nowhere", "deviceClassName": "guarded", "devices": 1}]},
        "there is no namespace nowhere",
        id="no-namespace",
    ),
    pytest.param(
        {"namespaces": {"matchExpressions": [{"key": "team", "operator": "In"}]}},
        "In on team needs values",
        id="no-values",
    ),
]


def test_what_cannot_be_is_said_in_the_status(guarded: World) -> None:
    """Field, value and remedy; the class itself is there."""
    for case in REFUSED:
        access, words = case.values
        apply(guarded, access)
        guarded.wait(
            case.id, lambda words=words: words in guarded.condition("guarded", "Accepted")["message"]
        )
        assert guarded.condition("guarded", "Accepted")["reason"] == "InvalidPolicy"
    guarded.wait("the class", lambda: "guarded" in guarded.classes())


LONG = "c" * 225
LONG_DOMAIN = f"{'a.' * 121}bb"
NAMES: list[Any] = [
    pytest.param({"deviceClassName": LONG}, "", id="the-longest-class"),
    pytest.param({"deviceClassName": f"{LONG}c"}, "no quota can count a class", id="a-longer-class"),
    pytest.param({"extendedResourceName": f"{LONG_DOMAIN}/{'x' * 63}"}, "", id="the-longest-resource"),
    pytest.param(
        {"extendedResourceName": f"{LONG_DOMAIN}b/{'x' * 63}"}, "API server refuses", id="a-longer-resource"
    ),
]


@pytest.mark.parametrize(("names", "words"), NAMES)
def test_names_that_are_too_long_to_be_counted(guarded: World, names: dict[str, str], words: str) -> None:
    """The API server takes every key up to our limits; past them the policy has a status, and says it."""
    offer = {**OFFER, **names}
    quota = {"namespace": "serving", "deviceClassName": offer["deviceClassName"], "devices": 1}
    spec = {
        "nodeSelector": {"matchLabels": {"gpu-pool": "a"}},
        "offers": [offer],
        "access": {"quotas": [quota]},
    }
    guarded.policy("guarded", spec)
    wanted = "False" if words else "True"
    guarded.wait("the verdict", lambda: guarded.condition("guarded", "Accepted").get("status") == wanted)
    assert words in guarded.condition("guarded", "Accepted")["message"]
    status = guarded.admin.get("/apis/gpupolicy.dev/v1alpha1/gpupolicies/guarded")["status"]
    if not words:
        (shown,) = status["deviceClasses"]
        assert guarded.admin.get(PATHS["quota"])["spec"]["hard"].keys() == set(shown["quotaKeys"])


ADMISSION = "/apis/admissionregistration.k8s.io/v1"
PATHS = {
    "policy": f"{ADMISSION}/validatingadmissionpolicies/{GUARD}",
    "binding": f"{ADMISSION}/validatingadmissionpolicybindings/{GUARD}",
    "quota": f"/api/v1/namespaces/serving/resourcequotas/{GUARD}",
}
BOTH = {
    "namespaces": {"matchLabels": {"team": "serving"}},
    "quotas": [{"namespace": "serving", "deviceClassName": "guarded", "devices": 1000}],
}
EDITS: list[Any] = [
    pytest.param("policy", {"spec": {"failurePolicy": "Ignore"}}, "spec.failurePolicy", id="failure-policy"),
    pytest.param(
        "policy",
        {"spec": {"matchConditions": [{"name": "never", "expression": "false"}]}},
        "spec.matchConditions",
        id="a-condition-that-lets-all-in",
    ),
    pytest.param(
        "policy",
        {
            "spec": {
                "matchConstraints": {
                    "excludeResourceRules": [
                        {
                            "apiGroups": [""],
                            "apiVersions": ["v1"],
                            "resources": ["pods"],
                            "operations": ["CREATE"],
                        }
                    ]
                }
            }
        },
        "spec.matchConstraints",
        id="an-exception",
    ),
    pytest.param(
        "binding", {"spec": {"validationActions": ["Audit"]}}, "spec.validationActions", id="only-audited"
    ),
    pytest.param(
        "binding",
        {"spec": {"matchResources": {"namespaceSelector": {"matchLabels": {"x": "y"}}}}},
        "spec.matchResources",
        id="nowhere",
    ),
    pytest.param(
        "quota",
        {"spec": {"hard": {"requests.example.com/guarded": "7"}}},
        "spec.hard",
        id="another-limit",
    ),
    pytest.param("quota", {"spec": {"hard": {"pods": "0"}}}, "spec.hard", id="a-limit-more"),
    pytest.param("quota", {"metadata": {"labels": {"gpupolicy.dev/policy": None}}}, "", id="out-of-sight"),
    pytest.param(
        "policy", {"metadata": {"ownerReferences": None}}, "metadata.ownerReferences", id="orphaned"
    ),
    pytest.param("binding", None, "", id="binding-deleted"),
    pytest.param("policy", None, "", id="policy-deleted"),
    pytest.param("quota", None, "", id="quota-deleted"),
]


def contents(world: World) -> dict[str, Any]:
    """What the three objects say, without what every write changes."""
    found = {}
    for kind, path in PATHS.items():
        body = world.admin.get(path)
        meta = body["metadata"]
        found[kind] = (body["spec"], meta["labels"], [o["uid"] for o in meta["ownerReferences"]])
    return found


def drifts(world: World, words: str) -> int:
    """How many Drift events of the policy hold these words."""
    return len(
        [e for e in world.events("GpuPolicy", "guarded") if e["reason"] == "Drift" and words in e["note"]]
    )


def test_what_is_edited_by_hand_is_put_right_at_once_with_an_event(guarded: World) -> None:
    """Every hole that an admin could make by the way, and every object gone; each is told once."""
    apply(guarded, BOTH)
    guarded.wait("the objects", lambda: contents(guarded))
    before = contents(guarded)
    for case in EDITS:
        kind, patch, field = case.values
        events = drifts(guarded, GUARD)
        if patch is None:
            guarded.admin.delete(PATHS[kind])
        else:
            guarded.admin.patch(PATHS[kind], patch)
        guarded.wait(f"{case.id} to be told", lambda events=events: drifts(guarded, GUARD) == events + 1)
        assert contents(guarded) == before, case.id
        wanted = field or "deleted by somebody else"
        assert drifts(guarded, wanted) >= 1, case.id


def is_observed(policy: dict[str, Any]) -> bool:
    """Whether the types of an admission policy have been checked."""
    return bool(policy["status"]["observedGeneration"] == policy["metadata"]["generation"])


def is_counted(quota: dict[str, Any]) -> bool:
    """Whether what a quota limits has been counted."""
    return bool(quota["status"]["used"].keys() == quota["spec"]["hard"].keys())


def test_nothing_is_asked_or_written_while_access_stands(guarded: World) -> None:
    """Also after a restart: what stands is seen, and not written again."""
    apply(guarded, BOTH)
    guarded.wait("the objects", lambda: contents(guarded))
    guarded.wait("a quiet moment", lambda: guarded.condition("guarded", "Accepted")["status"] == "True")
    # Kubernetes' own controllers write the status of a policy and of a quota once, some time after each was made.
    guarded.wait("the policy seen", lambda: is_observed(guarded.admin.get(PATHS["policy"])))
    guarded.wait("the quota counted", lambda: is_counted(guarded.admin.get(PATHS["quota"])))
    versions = {k: guarded.admin.get(p)["metadata"]["resourceVersion"] for k, p in PATHS.items()}
    guarded.controllers[-1].stop()
    position = guarded.cluster.control_plane.audit_position()
    guarded.start_controller()
    spec = {"nodeSelector": {"matchLabels": {"gpu-pool": "a"}}, "offers": [OFFER], "access": BOTH}
    guarded.policy("guarded", {**spec, "priority": 7})
    guarded.wait(
        "the policy to be judged again",
        lambda: (
            guarded.condition("guarded", "Accepted")["observedGeneration"]
            == guarded.admin.get("/apis/gpupolicy.dev/v1alpha1/gpupolicies/guarded")["metadata"]["generation"]
        ),
    )
    assert {k: guarded.admin.get(p)["metadata"]["resourceVersion"] for k, p in PATHS.items()} == versions
    touched = [w for w in guarded.written(after=position) if GUARD in json.dumps(w)]
    assert touched == []


@pytest.mark.parametrize(
    ("resource", "access"),
    [
        ("validatingadmissionpolicies", {"namespaces": {"matchLabels": {"team": "serving"}}}),
        (
            "resourcequotas",
            {"quotas": [{"namespace": "serving", "deviceClassName": "guarded", "devices": 1}]},
        ),
    ],
)
@pytest.mark.parametrize("verbs", ["none", "read"])
def test_a_missing_right_refuses_only_who_needs_it(
    guarded: World, resource: str, access: dict[str, Any], verbs: str
) -> None:
    """Verb and resource are named; the others are served, and so is this one once the right is there."""
    guarded.controllers[-1].stop()
    path = "/apis/rbac.authorization.k8s.io/v1/clusterroles/gpupolicy-controller"
    role = guarded.admin.get(path)
    kept = [
        {**r, "resources": [x for x in r["resources"] if x != resource]}
        for r in role["rules"]
        if r["resources"] != [resource]
    ]
    if verbs == "read":
        groups = next(r["apiGroups"] for r in role["rules"] if resource in r["resources"])
        kept.append({"apiGroups": groups, "resources": [resource], "verbs": ["get", "list", "watch"]})
    guarded.admin.patch(path, {"rules": kept})
    group = "admissionregistration.k8s.io" if resource.startswith("validating") else ""
    try:
        for verb in ("patch", "list")[: 2 if verbs == "none" else 1]:
            guarded.wait_right("gpupolicy-controller", verb, f"{resource}.{group}", allowed=False)
        guarded.start_controller()
        guarded.policy("plain", {"nodeSelector": {"matchLabels": {"gpu-pool": "none"}}})
        apply(guarded, access)
        guarded.wait("the refusal", lambda: guarded.condition("guarded", "Accepted")["reason"] == "Degraded")
        message = guarded.condition("guarded", "Accepted")["message"]
        for part in ("ClusterRole", f'cannot {"list" if verbs == "none" else "patch"} resource "{resource}"'):
            assert part in message
        guarded.wait(
            "the other policy",
            lambda: (
                guarded.condition("plain", "Accepted")["reason"] == "Accepted"
                or guarded.condition("plain")["reason"] == "NoMatchingNodes"
            ),
        )
        apply(guarded, None)
        guarded.wait("without access", lambda: guarded.condition("guarded", "Accepted")["status"] == "True")
        apply(guarded, access)
        guarded.wait("the refusal", lambda: guarded.condition("guarded", "Accepted")["reason"] == "Degraded")
    finally:
        guarded.admin.patch(path, {"rules": role["rules"]})
    guarded.wait("the right to be used", lambda: guarded.condition("guarded", "Accepted")["status"] == "True")
    kind = "policy" if resource.startswith("validating") else "quota"
    assert guarded.admin.call("GET", PATHS[kind]).status == 200


def test_a_namespace_that_ends_is_no_missing_right(guarded: World) -> None:
    """While it terminates nothing can be made in it, and the API server says so with a 403."""
    account = "/api/v1/namespaces"
    guarded.admin.create(account, {"metadata": {"name": "ending", "finalizers": ["example.com/held"]}})
    apply(guarded, {"quotas": [{"namespace": "ending", "deviceClassName": "guarded", "devices": 1}]})
    quota = f"/api/v1/namespaces/ending/resourcequotas/{GUARD}"
    guarded.wait("the quota", lambda: guarded.admin.call("GET", quota).status == 200)
    guarded.cluster.kubectl("delete", "namespace", "ending", "--wait=false")
    try:
        guarded.wait(
            "the refusal",
            lambda: "no namespace ending" in guarded.condition("guarded", "Accepted")["message"],
        )
    finally:
        guarded.cluster.kubectl(
            "patch", "namespace", "ending", "--type=merge", "-p", '{"metadata":{"finalizers":null}}'
        )


def test_an_object_of_somebody_else_is_left_alone(guarded: World) -> None:
    """The name is no proof: without our policy as owner nothing is deleted."""
    body = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {
            "name": GUARD,
            "namespace": "serving",
            "labels": {"app.kubernetes.io/managed-by": "gpupolicy", "gpupolicy.dev/policy": "guarded"},
        },
        "spec": {"hard": {"pods": "5"}},
    }
    guarded.cluster.kubectl("create", "-f", "-", stdin=json.dumps(body))
    apply(guarded, None)
    guarded.wait("the class", lambda: "guarded" in guarded.classes())
    apply(guarded, {"quotas": []})
    assert guarded.admin.get(f"/api/v1/namespaces/serving/resourcequotas/{GUARD}")["spec"]["hard"] == {
        "pods": "5"
    }


UNLABELLED = {
    "quota": {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": GUARD, "namespace": "serving"},
        "spec": {"hard": {"pods": "5"}},
    },
    "admission policy": {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": GUARD},
        "spec": {
            "matchConstraints": {
                "resourceRules": [
                    {
                        "apiGroups": [""],
                        "apiVersions": ["v1"],
                        "operations": ["CREATE"],
                        "resources": ["secrets"],
                    }
                ]
            },
            "validations": [{"expression": "true"}],
        },
    },
}
"""What somebody else may have made under the names of our objects."""


@pytest.mark.parametrize("kind", UNLABELLED)
def test_a_name_that_somebody_else_has_refuses_the_policy(guarded: World, kind: str) -> None:
    """Nothing of it is written; the policy goes on when the name is free."""
    body = UNLABELLED[kind]
    guarded.cluster.kubectl("create", "-f", "-", stdin=json.dumps(body))
    arguments = [body["kind"], GUARD, *(("-n", "serving") if kind == "quota" else ())]
    try:
        before = json.loads(guarded.cluster.kubectl("get", *arguments, "-o", "json"))
        apply(
            guarded,
            {
                "namespaces": {"matchLabels": {"team": "serving"}},
                "quotas": [{"namespace": "serving", "deviceClassName": "guarded", "devices": 2}],
            },
        )
        guarded.wait("the conflict", lambda: guarded.condition("guarded", "Accepted")["reason"] != "Accepted")
        said = guarded.condition("guarded", "Accepted")
        after = json.loads(guarded.cluster.kubectl("get", *arguments, "-o", "json"))
    finally:
        guarded.cluster.kubectl("delete", *arguments)

    assert (said["status"], said["reason"]) == ("False", "ResourceNameConflict")
    assert f"{body['kind']} {GUARD}" in said["message"]
    assert after["spec"] == before["spec"]
    assert "ownerReferences" not in after["metadata"]
    guarded.wait("the policy accepted", lambda: guarded.condition("guarded", "Accepted")["status"] == "True")
