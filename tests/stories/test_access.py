"""Who gets how much: quotas that the real quota controller counts, on a node of four simulated cards."""

import itertools
import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster.control_plane import KubectlError
from tests.stack import GpuNodeOptions, Stack
from tests.stories import objects

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]

POOL = "shared"
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def node(stack: Stack) -> Iterator[str]:
    """A controller and a node of four cards, its agent reporting."""
    controller = stack.start_controller()
    (made,) = stack.add_nodes(GpuNodeOptions(name="gpu-09", pool=POOL, gpus=4))
    stack.wait(lambda: stack.get("gpunodes") != [], "the agent's GpuNode")
    yield made.name
    stack.agent(made.name).stop()
    made.stop()
    stack.kubectl("delete", "gpunode", made.name, "--ignore-not-found")
    controller.stop()


@pytest.fixture
def namespace(stack: Stack, node: str) -> Iterator[str]:
    """A namespace whose pods and policies go with the test; afterwards every card is idle again."""
    with stack.cluster.namespace(f"access-{next(_numbers)}") as name:
        yield name
        stack.kubectl("delete", "pods", "--all", "-n", name, "--grace-period=0", "--force")
        stack.kubectl("delete", "gpupolicies", "--all")
        stack.wait(lambda: stack.devices() == [], "the devices withdrawn")
        stack.wait(lambda: stack.get("gpunode", node)["status"].get("allocated", 0) == 0, "no claim")


def refused(stack: Stack, body: dict[str, Any]) -> str:
    """Create an object; return what the API server said against it."""
    try:
        stack.kubectl("create", "-f", "-", stdin=json.dumps(body))
    except KubectlError as error:
        return error.stderr
    return ""


def claim(name: str, namespace: str, device_class: str) -> dict[str, Any]:
    """A claim for one device."""
    body = objects.template(name, namespace, device_class)
    return {**body, "kind": "ResourceClaim", "spec": body["spec"]["spec"]}


def test_r40_every_key_counts_a_device_once_whichever_way_it_is_asked_for(
    stack: Stack, namespace: str
) -> None:
    """Two of four cards: one by claim, one by extended name; then no way leads to a third."""
    stack.apply(
        objects.policy(
            "burst",
            pool=POOL,
            offers=[{"deviceClassName": "burst", "extendedResourceName": "example.com/burst"}],
            access={"quotas": [{"namespace": namespace, "deviceClassName": "burst", "devices": 2}]},
        )
    )
    stack.wait_policies("burst")
    (offered,) = stack.get("gpupolicy", "burst")["status"]["deviceClasses"]
    keys = set(offered["quotaKeys"])
    assert keys == {
        "burst.deviceclass.resource.k8s.io/devices",
        "requests.example.com/burst",
        "requests.deviceclass.resource.kubernetes.io/burst",
    }

    def used() -> dict[str, str]:
        found: dict[str, str] = stack.get("resourcequota", "gpupolicy-access-burst", "-n", namespace)[
            "status"
        ].get("used", {})
        return found

    stack.wait(lambda: used() == dict.fromkeys(keys, "0"), "the quota of all keys")
    stack.apply(
        objects.template("one", namespace, "burst"), objects.pod("by-claim", namespace, template="one")
    )
    stack.wait_pods(namespace, 1)
    stack.wait(lambda: used() == dict.fromkeys(keys, "1"), "one device in every key")
    stack.apply(objects.pod("by-name", namespace, limits={"example.com/burst": 1}))
    stack.wait_pods(namespace, 2)
    stack.wait(lambda: used() == dict.fromkeys(keys, "2"), "two devices in every key")

    implicit = "deviceclass.resource.kubernetes.io/burst"
    for body in (
        objects.pod("third", namespace, limits={"example.com/burst": 1}),
        objects.pod("third", namespace, limits={implicit: 1}),
        claim("third", namespace, "burst"),
    ):
        assert "exceeded quota: gpupolicy-access-burst" in refused(stack, body), body
    assert stack.policy_row("burst")[4:7] == ["4", "2", "2"]
    stack.kubectl("delete", "pod", "by-name", "-n", namespace)
    stack.wait(lambda: used() == dict.fromkeys(keys, "1"), "the device given back in every key")
    assert refused(stack, objects.pod("third", namespace, limits={implicit: 1})) == ""
    stack.wait_pods(namespace, 2)
    stack.wait(lambda: used() == dict.fromkeys(keys, "2"), "by the implicit name it counts the same")
