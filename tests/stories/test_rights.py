"""What each identity may do, with the chart's own roles on a real API server, and what it must not."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster.control_plane import KubectlError
from tests.stack import NAMESPACE, Stack

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]


def bare_node(name: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}


def gpu_node(name: str) -> dict[str, Any]:
    return {"apiVersion": "gpupolicy.dev/v1alpha1", "kind": "GpuNode", "metadata": {"name": name}, "spec": {}}


def piece(node: str, driver: str = "gpu.gpupolicy.dev", **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"{node}-{driver}"},
        "spec": {
            "driver": driver,
            "pool": {"name": f"{node}/gpupolicy", "generation": 1, "resourceSliceCount": 1},
            **(spec or {"nodeName": node}),
            "devices": [],
        },
    }


@pytest.fixture(scope="module", autouse=True)
def _nodes(stack: Stack) -> Iterator[None]:
    for name in ("rights-a", "rights-b"):
        stack.apply(bare_node(name))
    stack.apply(gpu_node("rights-b"), piece("rights-b"))
    # The API server reads roles and admission policies from caches, and what was just installed counts some time later.
    for body in (piece("rights-a"), gpu_node("rights-a")):
        stack.wait(lambda body=body: said_to_agent(stack, body) == "", f"the right to write a {body['kind']}")
    for body in (piece("rights-c", nodeName="rights-c"), gpu_node("rights-c")):
        stack.wait(
            lambda body=body: "may not write" in said_to_agent(stack, body), f"the fence of a {body['kind']}"
        )
    yield
    stack.kubectl("delete", "resourceslice", "rights-b-gpu.gpupolicy.dev")
    stack.kubectl("delete", "gpunode", "rights-b")
    stack.kubectl("delete", "node", "rights-a", "rights-b")


def as_agent(stack: Stack, node: str | None, *arguments: str, body: Any = None) -> str:
    access = stack.cluster.service_account_kubeconfig(NAMESPACE, "gpupolicy-agent", node=node)
    return stack.kubectl(*arguments, kubeconfig=access.kubeconfig, stdin=json.dumps(body) if body else None)


def said_to_agent(stack: Stack, body: Any) -> str:
    """Return what the API server says against an object that the agent of rights-a would create."""
    try:
        as_agent(stack, "rights-a", *CREATE, body=body)
    except KubectlError as error:
        return error.stderr
    return ""


def as_controller(stack: Stack, *arguments: str, body: Any = None) -> str:
    access = stack.cluster.service_account_kubeconfig(NAMESPACE, "gpupolicy-controller")
    return stack.kubectl(*arguments, kubeconfig=access.kubeconfig, stdin=json.dumps(body) if body else None)


CREATE = ("create", "--dry-run=server", "-f", "-")

ALLOWED: list[Any] = [
    pytest.param(CREATE, piece("rights-a"), id="slice-of-its-node"),
    pytest.param(CREATE, gpu_node("rights-a"), id="gpunode-of-its-node"),
    pytest.param(("get", "resourceclaims", "-A"), None, id="read-claims"),
    pytest.param(("get", "node", "rights-a"), None, id="read-its-node"),
]


@pytest.mark.parametrize(("arguments", "body"), ALLOWED)
def test_an_agent_may_do_its_work(stack: Stack, arguments: tuple[str, ...], body: Any) -> None:
    """Without this the refusals below would prove nothing."""
    as_agent(stack, "rights-a", *arguments, body=body)


REFUSED: list[Any] = [
    pytest.param(
        "rights-a", CREATE, piece("rights-b", nodeName="rights-b"), "may not write", id="slice-of-another"
    ),
    pytest.param(
        "rights-a", CREATE, piece("rights-x", allNodes=True), "may not write", id="slice-of-all-nodes"
    ),
    pytest.param(
        "rights-a", CREATE, piece("rights-a", driver="gpu.nvidia.com"), "only write", id="other-driver"
    ),
    pytest.param(None, CREATE, piece("rights-a"), "not bound to a node", id="token-without-node"),
    pytest.param(
        "rights-a",
        ("delete", "resourceslice", "rights-b-gpu.gpupolicy.dev", "--dry-run=server"),
        None,
        "may not write",
        id="delete-slice-of-another",
    ),
    pytest.param("rights-a", CREATE, gpu_node("rights-c"), "may not write", id="gpunode-of-another"),
    pytest.param(
        "rights-a",
        (
            "patch",
            "gpunode",
            "rights-b",
            "--subresource=status",
            "--type=merge",
            "-p",
            '{"status":{"devices":9}}',
        ),
        None,
        "may not write",
        id="status-of-another",
    ),
    pytest.param(
        "rights-a",
        ("patch", "gpunode", "rights-b", "--type=merge", "-p", '{"spec":{"gpus":[]}}'),
        None,
        "cannot patch",
        id="spec-of-a-gpunode",
    ),
    pytest.param(
        "rights-a",
        CREATE,
        {"apiVersion": "gpupolicy.dev/v1alpha1", "kind": "GpuPolicy", "metadata": {"name": "x"}, "spec": {}},
        "cannot create",
        id="policy",
    ),
    pytest.param("rights-a", ("get", "secrets", "-A"), None, "cannot list", id="secrets"),
    pytest.param("rights-a", ("get", "pods", "-A"), None, "cannot list", id="pods"),
    pytest.param("rights-a", ("get", "nodes"), None, "cannot list", id="nodes"),
]


@pytest.mark.parametrize(("node", "arguments", "body", "words"), REFUSED)
def test_an_agent_may_do_nothing_else(
    stack: Stack, node: str | None, arguments: tuple[str, ...], body: Any, words: str
) -> None:
    """A stolen agent token reaches its own node and no further."""
    with pytest.raises(KubectlError) as refusal:
        as_agent(stack, node, *arguments, body=body)
    assert words in refusal.value.stderr


CONTROLLER_REFUSED: list[Any] = [
    pytest.param(CREATE, piece("rights-a"), "cannot create", id="slice"),
    pytest.param(
        CREATE,
        {"apiVersion": "gpupolicy.dev/v1alpha1", "kind": "GpuPolicy", "metadata": {"name": "x"}, "spec": {}},
        "cannot create",
        id="policy",
    ),
    pytest.param(
        (
            "patch",
            "gpunode",
            "rights-b",
            "--subresource=status",
            "--type=merge",
            "-p",
            '{"status":{"devices":9}}',
        ),
        None,
        "gpunodes/status",
        id="status-of-a-gpunode",
    ),
    pytest.param(CREATE, gpu_node("rights-a"), "cannot create", id="gpunode"),
    pytest.param(("get", "customresourcedefinitions"), None, "cannot list", id="crds"),
    pytest.param(("get", "secrets", "-A"), None, "cannot list", id="secrets"),
]


@pytest.mark.parametrize(("arguments", "body", "words"), CONTROLLER_REFUSED)
def test_the_controller_does_not_write_what_others_own(
    stack: Stack, arguments: tuple[str, ...], body: Any, words: str
) -> None:
    """One writer per status, and the controller publishes no devices."""
    with pytest.raises(KubectlError) as refusal:
        as_controller(stack, *arguments, body=body)
    assert words in refusal.value.stderr


def test_the_chart_makes_its_own_objects_only(stack: Stack) -> None:
    """Installing makes no class, touches no node (R1): everything of the release carries its label."""
    manifest = stack.helm("get", "manifest", "gpupolicy", "--namespace", NAMESPACE)
    kinds = {line.removeprefix("kind: ") for line in manifest.splitlines() if line.startswith("kind: ")}
    assert "DeviceClass" not in kinds
    # Those of policies that other tests had are collected a moment after them.
    stack.wait(lambda: stack.get("deviceclasses") == [], "no class but those of policies")


def test_a_typo_in_the_values_is_refused(stack: Stack) -> None:
    """A setting that nobody reads would look as if it worked."""
    with pytest.raises(RuntimeError, match="crd"):
        stack.helm("template", "x", "charts/gpupolicy", "--set", "crd.install=false")
