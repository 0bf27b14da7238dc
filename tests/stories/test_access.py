"""Who gets how much, and why nothing: quotas that the real quota controller counts, and pods that wait.

One node of four simulated cards.
"""

import itertools
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpupolicy.cli import main
from tests.cluster.control_plane import KubectlError
from tests.paths import ROOT
from tests.stack import GpuNodeOptions, Stack
from tests.stories import objects

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

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


def refused(stack: Stack, body: dict[str, Any], *options: str) -> str:
    """Create an object; return what the API server said against it."""
    try:
        stack.kubectl("create", "-f", "-", *options, stdin=json.dumps(body))
    except KubectlError as error:
        return error.stderr
    return ""


def claim(name: str, namespace: str, device_class: str, *, count: int = 1) -> dict[str, Any]:
    """A claim for devices of a class."""
    body = objects.template(name, namespace, device_class, count=count)
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
    # The admission plugin reads quotas from a cache; what is created before it knows this one is counted by nobody.
    too_many = claim("too-many", namespace, "burst", count=3)
    stack.wait(lambda: "exceeded quota" in refused(stack, too_many, "--dry-run=server"), "the quota in force")
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
    stack.wait(lambda: stack.policy_row("burst")[4:7] == ["4", "2", "2"], "the row to say the same")
    stack.kubectl("delete", "pod", "by-name", "-n", namespace)
    stack.wait(lambda: used() == dict.fromkeys(keys, "1"), "the device given back in every key")
    # The plugin's cache may still hold the counts of before.
    third = objects.pod("third", namespace, limits={implicit: 1})
    stack.wait(lambda: refused(stack, third) == "", "room for another pod")
    stack.wait_pods(namespace, 2)
    stack.wait(lambda: used() == dict.fromkeys(keys, "2"), "by the implicit name it counts the same")


def reviewed(stack: Stack, policy: str) -> tuple[str, str, str]:
    """Status, reason and message of the condition `Reviewed`."""
    found = stack.condition("gpupolicy", policy, "Reviewed")
    return found.get("status", ""), found.get("reason", ""), found.get("message", "")


def warnings(stack: Stack, policy: str, reason: str) -> list[str]:
    """The notes of the warnings about a policy."""
    found = stack.get("events.events.k8s.io", "-n", "default")
    return [
        e["note"]
        for e in found
        if (e["regarding"].get("name"), e["reason"], e["type"]) == (policy, reason, "Warning")
    ]


def test_r43_priority_takes_no_card_from_a_running_pod_and_a_quota_is_suggested(
    stack: Stack, namespace: str
) -> None:
    """Burst pods hold every card; the higher policy waits, both are warned, and the suggested quota settles it."""
    stack.apply(objects.policy("burst", pool=POOL, priority=10))
    stack.wait_policies("burst")
    assert reviewed(stack, "burst") == ("True", "Reviewed", "")
    stack.apply(
        objects.template("all", namespace, "burst", count=4), objects.pod("burst", namespace, template="all")
    )
    stack.wait_pods(namespace, 1)

    stack.apply(objects.policy("prod", pool=POOL, priority=100, gpusPerNode=3))
    stack.wait(lambda: reviewed(stack, "prod")[1] == "NoPreemption", "prod warned")
    stack.wait(lambda: reviewed(stack, "burst")[1] == "NoPreemption", "burst warned")
    suggestion = "{namespace: NAMESPACE, deviceClassName: burst, devices: 1}"
    assert suggestion in reviewed(stack, "burst")[2]
    for policy in ("burst", "prod"):
        stack.wait(
            lambda policy=policy: (
                "no PriorityClass preempts" in "".join(warnings(stack, policy, "NoPreemption"))
            ),
            f"an event about {policy}",
        )
        assert stack.condition("gpupolicy", policy, "Accepted")["status"] == "True"

    # The scheduler does as we say: the more important pod waits, and the burst pod is left alone.
    stack.apply(
        {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": "prod"},
            "value": 1000,
        },
        objects.template("one", namespace, "prod"),
    )
    important = objects.pod("important", namespace, template="one")
    important["spec"]["priorityClassName"] = "prod"
    stack.apply(important)

    def unschedulable() -> bool:
        conditions = stack.get("pod", "important", "-n", namespace)["status"].get("conditions", [])
        return any(c["type"] == "PodScheduled" and c["status"] == "False" for c in conditions)

    stack.wait(unschedulable, "the important pod to wait")
    assert stack.get("pod", "burst", "-n", namespace)["status"]["phase"] == "Running"

    quota = {"quotas": [{"namespace": namespace, "deviceClassName": "burst", "devices": 1}]}
    stack.apply(objects.policy("burst", pool=POOL, priority=10, access=quota))
    for policy in ("burst", "prod"):
        stack.wait(
            lambda policy=policy: reviewed(stack, policy)[0] == "True", f"nothing left to say of {policy}"
        )
    stack.kubectl("delete", "pod", "burst", "-n", namespace)
    stack.wait_pods(namespace, 1)
    stack.kubectl("delete", "priorityclass", "prod")


def test_r32_a_selector_that_reads_nothing_of_a_card_is_too_broad(stack: Stack, namespace: str) -> None:
    """A MIG policy with the driver only also matches the whole cards of another; it is served all the same."""
    whole = objects.policy("whole", pool=POOL, gpuSelector={"products": ["NVIDIA H100*"]}, gpusPerNode=3)
    stack.apply({**whole, "spec": {**whole["spec"], "priority": 10}})
    stack.wait_policies("whole")
    cut = objects.policy(
        "cut",
        pool=POOL,
        gpusPerNode=1,
        gpuSelector={"cel": 'device.driver == "gpu.gpupolicy.dev"'},
        sharing=objects.mig({"1g.10gb": 7}),
    )
    stack.apply(cut)
    stack.wait_policies("cut")
    stack.wait(lambda: reviewed(stack, "cut")[1] == "SelectorTooBroad", "the warning")
    assert "also matches 3 whole cards (3 of policy whole)" in reviewed(stack, "cut")[2]
    stack.wait(lambda: warnings(stack, "cut", "SelectorTooBroad") != [], "the event")
    status = stack.get("gpupolicy", "cut")["status"]
    assert (status["preview"]["matched"], status["preview"]["candidates"]) == (4, 4)
    assert status["preview"]["clauses"] == ["cel: drops 0"]
    assert stack.policy_row("cut")[3:6] == ["1/1", "7", "0"]

    own = 'device.attributes["gpu.gpupolicy.dev"]'
    cel = f'{own}.productName.startsWith("NVIDIA H100")'
    stack.kubectl(
        "patch", "gpupolicy", "cut", "--type=merge", "-p", json.dumps({"spec": {"gpuSelector": {"cel": cel}}})
    )
    stack.wait(lambda: reviewed(stack, "cut") == ("True", "Reviewed", ""), "nothing left to say")


def hand_count(stack: Stack) -> dict[str, tuple[int, int]]:
    """Count devices and allocated devices per MIG profile from slices and claims alone."""
    profiles = {d["name"]: d["attributes"]["profile"]["string"] for d in stack.devices(policy="cut")}
    held = {
        result["device"]
        for one in stack.get("resourceclaims", "-A")
        for result in one.get("status", {}).get("allocation", {}).get("devices", {}).get("results", [])
    }
    devices = Counter(profiles.values())
    taken = Counter(profiles[name] for name in held if name in profiles)
    return {profile: (number, taken[profile]) for profile, number in devices.items()}


def why_unscheduled(stack: Stack, namespace: str, pod: str) -> str:
    """What the scheduler says of a pod."""
    conditions = stack.get("pod", pod, "-n", namespace)["status"].get("conditions", [])
    return "".join(c.get("message", "") for c in conditions if c.get("reason") == "Unschedulable")


def test_r48_a_pod_that_waits_is_explained(
    stack: Stack, namespace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Numbers as counted by hand, other classes of the policy, and clause by clause what a selector drops."""
    classes = {profile: f"cut-{profile.replace('.', '-')}" for profile in objects.H100_LAYOUT}
    offers = [
        {"deviceClassName": name, "profile": profile, "extendedResourceName": f"example.com/{name}"}
        for profile, name in classes.items()
    ]
    stack.apply(objects.policy("cut", pool=POOL, sharing=objects.mig(objects.H100_LAYOUT), offers=offers))
    stack.wait_policies("cut")
    stack.apply(
        objects.template("four", namespace, "cut-3g-40gb", count=4),
        objects.pod("holds", namespace, template="four"),
    )
    stack.wait_pods(namespace, 1)
    clause = 'device.attributes["gpu.gpupolicy.dev"].productName == "NVIDIA B300"'
    choosy = objects.template("choosy", namespace, "cut-1g-10gb")
    choosy["spec"]["spec"]["devices"]["requests"][0]["exactly"]["selectors"] = [
        {"cel": {"expression": f'device.attributes["gpu.gpupolicy.dev"].type == "mig" && {clause}'}}
    ]
    stack.apply(
        objects.pod("waits", namespace, limits={"example.com/cut-3g-40gb": 1}),
        choosy,
        objects.pod("choosy", namespace, template="choosy"),
    )
    stack.wait(lambda: why_unscheduled(stack, namespace, "waits"), "the scheduler to leave the first")
    stack.wait(
        lambda: "cannot allocate" in why_unscheduled(stack, namespace, "choosy"),
        "and the second, with a claim",
    )
    stack.wait(lambda: stack.policy_row("cut")[4:7] == ["16", "4", "12"], "the row to show what is held")

    admin = ["--kubeconfig", str(stack.cluster.control_plane.admin_kubeconfig)]

    def explained(pod: str) -> dict[str, Any]:
        capsys.readouterr()
        assert main.main(["explain", "pod", pod, "-n", namespace, "-o", "json", *admin]) == 0
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        assert found["notRead"] == found["problems"] == []
        return found

    (waits,) = explained("waits")["requests"]
    counted = hand_count(stack)
    assert counted == {"3g.40gb": (4, 4), "2g.20gb": (4, 0), "1g.10gb": (8, 0)}
    told = {waits["class"]: waits["ofClass"], **waits["otherClasses"]}
    assert {name: (one["devices"], one["allocated"]) for name, one in told.items()} == {
        name: counted[profile] for profile, name in classes.items()
    }
    assert [str(sum(one[key] for one in told.values())) for key in ("devices", "allocated", "free")] == (
        stack.policy_row("cut")[4:7]
    )
    assert (waits["cause"], waits["message"]) == ("NoneFree", "4 of 4 devices allocated, 0 free")

    (choosy_row,) = explained("choosy")["requests"]
    assert choosy_row["cause"] == "SelectorMisses"
    assert choosy_row["drops"] == [{"clause": clause, "devices": 8}]
    assert choosy_row["ofClass"]["free"] == 8

    holds = explained("holds")
    assert (holds["requests"], {held["node"] for held in holds["held"]}) == ([], {"gpu-09"})
    three = {d["name"] for d in stack.devices(policy="cut", profile="3g.40gb")}
    assert {held["device"] for held in holds["held"]} == three

    assert main.main(["explain", "pod", "nobody", "-n", namespace, *admin]) == main.USAGE_ERROR
    assert f"there is no pod nobody in namespace {namespace}" in capsys.readouterr().err
    assert as_plugin(stack, tmp_path, "explain", "pod", "waits", "-n", namespace).splitlines()[0] == (
        f"pod {namespace}/waits is Pending: its request cannot be satisfied now"
    )


def as_plugin(stack: Stack, folder: Path, *arguments: str) -> str:
    """What `kubectl gpupolicy ARGUMENTS` prints, with the command line on PATH as an installation puts it there."""
    plugin = folder / "kubectl-gpupolicy"
    plugin.write_text(f'#!/bin/sh\nexec {sys.executable} -m gpupolicy.cli.main "$@"\n')
    plugin.chmod(0o755)
    plane = stack.cluster.control_plane
    environment = {
        "KUBECONFIG": str(plane.admin_kubeconfig),
        "PATH": f"{folder}:{plane.programs}:/usr/bin:/bin",
        "PYTHONPATH": str(ROOT / "operator"),
    }
    done = subprocess.run(
        [plane.programs / "kubectl", "gpupolicy", *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def test_r48_with_fewer_rights_less_is_told(
    stack: Stack, namespace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without the right to read claims one clear line; without nodes and policies the rest of the explanation."""
    # Not before the account is there, which a controller makes for every namespace.
    stack.wait(lambda: stack.succeeds("get", "serviceaccount", "default", "-n", namespace), "the account")
    stack.apply(objects.pod("idle", namespace))
    config = yaml.safe_load(stack.cluster.control_plane.admin_kubeconfig.read_text())
    token = stack.kubectl("create", "token", "default", "-n", namespace).strip()
    config["users"] = [{"name": user["name"], "user": {"token": token}} for user in config["users"]]
    config["contexts"][0]["context"]["namespace"] = namespace
    path = tmp_path / "config"
    path.write_text(yaml.safe_dump(config))
    asked = ["explain", "pod/idle", "-o", "json", "--kubeconfig", str(path)]
    assert main.main(asked) == main.USAGE_ERROR
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1
    assert "it takes the rights to get the pod" in error
    dra = ("resourceslices", "deviceclasses", "resourceclaims", "resourceclaimtemplates")
    kinds = ",".join(["pods", *(f"{kind}.resource.k8s.io" for kind in dra)])
    name = f"{namespace}-explains"
    stack.kubectl("create", "clusterrole", name, "--verb=get,list", f"--resource={kinds}")
    try:
        account = f"--serviceaccount={namespace}:default"
        stack.kubectl("create", "clusterrolebinding", name, f"--clusterrole={name}", account)
        # The API server reads rights from a cache.
        stack.wait(lambda: main.main(asked) == 0, "the rights in force")
    finally:
        stack.kubectl("delete", "clusterrolebinding", name, "--ignore-not-found")
        stack.kubectl("delete", "clusterrole", name)
    found = json.loads(capsys.readouterr().out)
    assert found["namespace"] == namespace
    assert found["summary"].endswith("the pod asks for no devices of a claim")
    assert [told.partition(":")[0] for told in found["notRead"]] == ["gpupolicies.gpupolicy.dev", "nodes"]
