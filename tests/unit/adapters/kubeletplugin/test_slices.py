"""ResourceSlices of a pool: limits, order, generations, and that no write order ever shows a wrong pool."""

import copy
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gpupolicy.adapters.kubeletplugin import slices

OWNER = slices.Owner(driver="gpu.example.com", node_name="node-1", node_uid="uid-of-node-1")
POOL = "node-1/example"


def device(name: str, **fields: Any) -> dict[str, Any]:
    return {"name": name, "attributes": {"type": {"string": "gpu"}}, **fields}


def devices(count: int, **fields: Any) -> tuple[dict[str, Any], ...]:
    return tuple(device(f"gpu-{n}", **fields) for n in range(count))


def counter_sets(count: int) -> tuple[dict[str, Any], ...]:
    return tuple({"name": f"set-{n}", "counters": {"memory": {"value": "80Gi"}}} for n in range(count))


def pool(*members: Any, name: str = POOL, **fields: Any) -> slices.Pool:
    return slices.Pool(name=name, devices=tuple(members), **fields)


class Server:
    """The slices as an API server holds them: uids, versions, conflicts."""

    def __init__(self) -> None:
        self.items: dict[str, dict[str, Any]] = {}
        self._version = 0

    def create(self, item: Mapping[str, Any]) -> None:
        name = item["metadata"]["name"]
        assert name not in self.items, "AlreadyExists"
        assert "resourceVersion" not in item["metadata"]
        self._version += 1
        self._store(item, uid=f"uid-{self._version}")

    def replace(self, item: Mapping[str, Any]) -> None:
        live = self.items[item["metadata"]["name"]]
        assert item["metadata"]["resourceVersion"] == live["metadata"]["resourceVersion"], "Conflict"
        for field in ("driver", "nodeName"):
            assert item["spec"][field] == live["spec"][field], "immutable"
        assert item["spec"]["pool"]["name"] == live["spec"]["pool"]["name"], "immutable"
        self._version += 1
        self._store(item, uid=live["metadata"]["uid"])

    def _store(self, item: Mapping[str, Any], uid: str) -> None:
        stored = copy.deepcopy(dict(item))
        stored["metadata"].update(uid=uid, resourceVersion=str(self._version))
        self.items[item["metadata"]["name"]] = stored

    def steps(self, changes: slices.Changes) -> Any:
        """Make the writes one by one."""
        for item in changes.obstacles:
            del self.items[item["metadata"]["name"]]
            yield
        for item in changes.writes:
            if "resourceVersion" in item["metadata"]:
                self.replace(item)
            else:
                self.create(item)
            yield
        for item in changes.leftovers:
            del self.items[item["metadata"]["name"]]
            yield

    def apply(self, changes: slices.Changes) -> None:
        for _ in self.steps(changes):
            pass

    def plan(self, wanted: slices.Pool, owner: slices.Owner = OWNER, **options: Any) -> slices.Changes:
        return slices.plan(wanted, owner, [copy.deepcopy(item) for item in self.items.values()], **options)

    def converge(self, wanted: slices.Pool, **options: Any) -> slices.Changes:
        changes = self.plan(wanted, **options)
        self.apply(changes)
        assert not self.plan(wanted, **options)
        return changes

    def visible(self) -> dict[str, list[str]]:
        """List the device names that a scheduler would use, by pool: the rules of kube-scheduler, written again."""
        pools: dict[str, list[dict[str, Any]]] = {}
        for item in sorted(self.items.values(), key=lambda item: item["metadata"]["name"]):
            pools.setdefault(item["spec"]["pool"]["name"], []).append(item["spec"])
        seen = {}
        for name, specs in pools.items():
            newest = max(spec["pool"]["generation"] for spec in specs)
            current = [spec for spec in specs if spec["pool"]["generation"] == newest]
            if any(spec["pool"]["resourceSliceCount"] != len(current) for spec in current):
                continue
            seen[name] = [each["name"] for spec in current for each in spec.get("devices", [])]
        return seen


def sizes(server: Server) -> list[int]:
    ordered = sorted(server.items.items())
    return [len(item["spec"].get("devices", item["spec"].get("sharedCounters"))) for _, item in ordered]


LISTY = {"attributes": {"numa": {"ints": [0, 1]}}}
TAINTED = {"taints": [{"key": "k", "effect": "NoSchedule"}]}
CONSUMING = {"consumesCounters": [{"counterSet": "set-0", "counters": {"memory": {"value": "1"}}}]}

LAYOUTS = [
    pytest.param(pool(), [], id="no devices"),
    pytest.param(pool(*devices(1)), [1], id="one"),
    pytest.param(pool(*devices(128)), [128], id="exactly a slice"),
    pytest.param(pool(*devices(129)), [128, 1], id="one more"),
    pytest.param(pool(*devices(65), partitionable=True), [64, 1], id="partitionable keeps to 64"),
    pytest.param(pool(*devices(64), device("x", **TAINTED)), [64, 1], id="one taint"),
    pytest.param(pool(*devices(64), device("x", **LISTY)), [64, 1], id="one list attribute"),
    pytest.param(pool(*devices(65), device("x", taints=[])), [66], id="an empty list of taints is none"),
    pytest.param(
        pool(*devices(64), device("x", **CONSUMING), counter_sets=counter_sets(9)),
        [64, 1, 8, 1],
        id="counter sets have slices of their own",
    ),
]


@pytest.mark.parametrize(("wanted", "expected"), LAYOUTS)
def test_slices_keep_the_limits_of_the_api(wanted: slices.Pool, expected: list[int]) -> None:
    server = Server()
    server.converge(wanted)
    assert sizes(server) == expected
    assert all(
        item["spec"]["pool"] == {"name": POOL, "generation": 1, "resourceSliceCount": len(expected)}
        for item in server.items.values()
    )
    names = [each["name"] for each in wanted.devices]
    assert server.visible() == ({POOL: names} if names else {})


def test_a_slice_as_it_is_sent() -> None:
    """The whole object, once."""
    (created,) = slices.plan(pool(device("gpu-0")), OWNER, []).writes
    assert created == {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {
            "name": created["metadata"]["name"],
            "ownerReferences": [
                {
                    "apiVersion": "v1",
                    "kind": "Node",
                    "name": "node-1",
                    "uid": "uid-of-node-1",
                    "controller": True,
                }
            ],
        },
        "spec": {
            "driver": "gpu.example.com",
            "nodeName": "node-1",
            "pool": {"name": POOL, "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": "gpu-0", "attributes": {"type": {"string": "gpu"}}}],
        },
    }


@given(
    node=st.from_regex(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?", fullmatch=True),
    prefix=st.sampled_from(["00000", "c0001"]),
)
def test_names_are_legal_however_long_the_node_is(node: str, prefix: str) -> None:
    """A DNS subdomain of at most 253 characters, with the position in front."""
    name = slices.name_slice(prefix, f"{node}/p", slices.Owner(driver="d", node_name=node, node_uid="u"))
    assert len(name) <= 253
    assert name.startswith(f"{prefix}-{node[:200].rstrip('.-')}")
    assert not name.endswith((".", "-"))
    # Only what the node's own name brings along may look odd, never the place where it was cut.
    assert not name[: -len("-0123456789")].endswith((".", "-"))


def test_names_differ_by_all_that_identifies_a_slice() -> None:
    owners = [
        OWNER,
        slices.Owner(driver="other.example.com", node_name="node-1", node_uid="u"),
        slices.Owner(driver="gpu.example.com", node_name="node-2", node_uid="u"),
    ]
    names = {
        slices.name_slice(prefix, name, owner)
        for prefix in ("0", "1")
        for name in ("p", "q")
        for owner in owners
    }
    assert len(names) == 12


def test_names_of_one_slice_are_always_the_same() -> None:
    """A new node object, such as after a reinstallation, does not rename slices."""
    again = slices.Owner(driver=OWNER.driver, node_name=OWNER.node_name, node_uid="another")
    assert slices.name_slice("00000", POOL, OWNER) == slices.name_slice("00000", POOL, again)


THREE = devices(150)  # two slices of plain devices


def changed(members: tuple[dict[str, Any], ...], index: int) -> tuple[dict[str, Any], ...]:
    return tuple({**each, "attributes": {}} if n == index else each for n, each in enumerate(members))


GENERATIONS = [
    pytest.param(pool(*THREE), 0, 1, id="nothing changes"),
    pytest.param(pool(*changed(THREE, 140)), 1, 1, id="one slice changes in place"),
    pytest.param(pool(*changed(changed(THREE, 0), 140)), 2, 2, id="two slices change"),
    pytest.param(pool(*devices(300)), 3, 2, id="one more slice"),
    pytest.param(pool(*devices(120)), 1, 2, id="one slice less"),
    pytest.param(pool(*THREE[::-1]), 2, 2, id="another order"),
    pytest.param(pool(*devices(100), device("x", **TAINTED)), 2, 2, id="a taint halves the slices"),
]


@pytest.mark.parametrize(("wanted", "writes", "generation"), GENERATIONS)
def test_the_generation_moves_once_and_only_when_needed(
    wanted: slices.Pool, writes: int, generation: int
) -> None:
    server = Server()
    server.converge(pool(*THREE))
    changes = server.converge(wanted)
    assert (len(changes.writes), changes.generation) == (writes, generation)
    assert {item["spec"]["pool"]["generation"] for item in server.items.values()} == {generation}
    assert server.visible() == {POOL: [each["name"] for each in wanted.devices]}


@pytest.mark.parametrize("lost", [[0], [1], [0, 1]])
def test_lost_slices_come_back_under_their_names_and_generation(lost: list[int]) -> None:
    """The kubelet wipes a node's slices at its start; what it left is not touched."""
    server = Server()
    for wanted in (pool(*changed(changed(THREE, 0), 140)), pool(*THREE)):
        server.converge(wanted)
    names = sorted(server.items)
    kept = {name: item for n, (name, item) in enumerate(sorted(server.items.items())) if n not in lost}
    server.items = dict(kept)
    changes = server.converge(pool(*THREE), lowest_generation=2)
    assert changes.generation == 2
    assert len(changes.writes) == len(lost)
    assert sorted(server.items) == names
    assert {name: server.items[name] for name in kept} == kept


def test_a_change_and_a_loss_at_once_need_a_new_generation() -> None:
    server = Server()
    server.converge(pool(*THREE))
    del server.items[max(server.items)]
    assert server.converge(pool(*changed(THREE, 0))).generation == 2


def test_withdrawing_deletes_every_slice() -> None:
    server = Server()
    server.converge(pool(*THREE))
    changes = server.converge(pool())
    assert (len(changes.obstacles), changes.writes) == (2, ())
    assert server.items == {}


def test_slices_of_another_pool_of_ours_go_before_anything_is_offered() -> None:
    """The same hardware must not be offered in two pools, not even for a moment."""
    server = Server()
    server.converge(pool(*devices(3), name="node-1"))
    changes = server.plan(pool(*devices(3)))
    assert [item["spec"]["pool"]["name"] for item in changes.obstacles] == ["node-1"]
    for _ in server.steps(changes):
        assert len(server.visible()) <= 1
    assert list(server.visible()) == [POOL]


@pytest.mark.parametrize(
    "spec",
    [{"driver": "other.example.com"}, {"nodeName": "node-2"}, {"nodeName": None, "allNodes": True}],
    ids=["other driver", "other node", "all nodes"],
)
def test_slices_of_others_are_never_touched(spec: dict[str, Any]) -> None:
    """Even if a list returns them by mistake."""
    server = Server()
    server.converge(pool(*devices(3)))
    (item,) = server.items.values()
    foreign = copy.deepcopy(item)
    foreign["metadata"]["name"] = "foreign"
    foreign["spec"].update(spec)
    server.items["foreign"] = foreign
    assert not server.plan(pool(*devices(3)))
    assert [each["metadata"]["name"] for each in server.plan(pool()).obstacles] == [item["metadata"]["name"]]


def test_a_surplus_slice_of_the_same_generation_is_an_obstacle() -> None:
    """More slices than the count makes a pool as unusable as fewer."""
    server = Server()
    server.converge(pool(*devices(3)))
    (item,) = server.items.values()
    copied = copy.deepcopy(item)
    copied["metadata"]["name"] = "copy"
    server.items["copy"] = copied
    assert server.visible() == {}
    changes = server.converge(pool(*devices(3)))
    assert (len(changes.obstacles), len(changes.writes)) == (1, 0)
    assert server.visible() == {POOL: ["gpu-0", "gpu-1", "gpu-2"]}


def test_a_slice_of_a_higher_generation_is_outgrown() -> None:
    """Somebody's slice of generation 9 would hide ours of generation 1 for ever."""
    server = Server()
    server.converge(pool(*devices(3)))
    (item,) = server.items.values()
    copied = copy.deepcopy(item)
    copied["metadata"]["name"] = "copy"
    copied["spec"]["pool"]["generation"] = 9
    server.items["copy"] = copied
    server.converge(pool(*devices(3)))
    assert server.visible() == {POOL: ["gpu-0", "gpu-1", "gpu-2"]}


def test_another_node_object_is_a_new_owner() -> None:
    """With the old uid the garbage collector would take the slices away."""
    server = Server()
    server.converge(pool(*THREE))
    owner = slices.Owner(driver=OWNER.driver, node_name=OWNER.node_name, node_uid="new")
    server.apply(server.plan(pool(*THREE), owner))
    assert {item["metadata"]["ownerReferences"][0]["uid"] for item in server.items.values()} == {"new"}


def test_labels_of_others_survive_a_replacement() -> None:
    server = Server()
    server.converge(pool(*devices(3)))
    (item,) = server.items.values()
    item["metadata"]["labels"] = {"team": "a"}
    server.converge(pool(*devices(2)))
    (item,) = server.items.values()
    assert item["metadata"]["labels"] == {"team": "a"}


def test_what_the_server_dropped_or_respelled_is_not_sent_again() -> None:
    """Else a server without a feature would be written to for ever."""
    server = Server()
    wanted = pool(device("gpu-0", capacity={"memory": {"value": "81920Mi"}}, **TAINTED))
    (sent,) = server.converge(wanted).writes
    (item,) = server.items.values()
    item["spec"]["devices"][0]["capacity"]["memory"]["value"] = "80Gi"
    del item["spec"]["devices"][0]["taints"]
    assert server.plan(wanted).writes
    settled = {
        item["metadata"]["name"]: slices.Settled(sent=sent["spec"], returned=copy.deepcopy(item["spec"]))
    }
    assert not server.plan(wanted, settled=settled)
    item["spec"]["devices"][0]["capacity"]["memory"]["value"] = "1Gi"
    assert server.plan(wanted, settled=settled).writes
    other = pool(device("gpu-0", capacity={"memory": {"value": "2Gi"}}))
    assert server.plan(other, settled=settled).writes


def test_a_taint_keeps_its_time() -> None:
    """Rewriting the slice must not restart the clock of tolerations; a changed taint is a new one."""
    server = Server()
    taint = {"key": "sick", "value": "79", "effect": "NoExecute"}
    other = {"key": "sick", "value": "48", "effect": "NoExecute"}
    server.converge(pool(device("a", taints=[taint]), device("b", taints=[taint])))
    (item,) = server.items.values()
    for each in item["spec"]["devices"]:
        each["taints"][0]["timeAdded"] = "2026-11-30T10:00:00Z"
    assert not server.plan(pool(device("a", taints=[taint]), device("b", taints=[taint])))
    (sent,) = server.plan(pool(device("b", taints=[taint]), device("a", taints=[other]), device("c"))).writes
    assert [each.get("taints") for each in sent["spec"]["devices"]] == [
        [{**taint, "timeAdded": "2026-11-30T10:00:00Z"}],
        [other],
        None,
    ]


def test_planning_changes_nothing_that_it_was_given() -> None:
    wanted = pool(device("a", **TAINTED), counter_sets=counter_sets(1))
    before = copy.deepcopy(wanted)
    server = Server()
    server.converge(wanted)
    for item in server.items.values():
        for each in item["spec"].get("devices", []):
            each["taints"][0]["timeAdded"] = "2026-11-30T10:00:00Z"
    server.plan(wanted)
    assert wanted == before


PROBLEMS = [
    pytest.param(pool(device("a"), device("b")), [], id="fine"),
    pytest.param(pool(device("a"), device("a")), ["device 'a' stands twice"], id="device twice"),
    pytest.param(
        pool(device("a"), counter_sets=counter_sets(1) * 2),
        ["counter set 'set-0' stands twice"],
        id="set twice",
    ),
    pytest.param(
        pool(device("a", **CONSUMING)),
        ["device 'a' consumes from counter set 'set-0', which the pool lacks"],
        id="no set",
    ),
    pytest.param(
        pool(
            device("a", consumesCounters=[{"counterSet": "set-0", "counters": {"memory": {}, "cpus": {}}}]),
            counter_sets=counter_sets(1),
        ),
        ["device 'a' consumes counter 'cpus', which set 'set-0' lacks"],
        id="no counter",
    ),
]


@pytest.mark.parametrize(("wanted", "problems"), PROBLEMS)
def test_what_would_make_the_whole_pool_invalid_is_found(wanted: slices.Pool, problems: list[str]) -> None:
    """The API server accepts these slices one by one; the scheduler then refuses all of them."""
    assert list(slices.find_problems(wanted)) == problems


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("spec.devices[].taints", True),
        ("spec.devices[].consumesCounters", False),
        ("spec.devices[].attributes.type.string", True),
        ("spec.sharedCounters", False),
        ("spec.devices[]", True),
        ("spec.pool.name.deeper", False),
    ],
)
def test_fields_are_found_by_their_general_path(path: str, expected: bool) -> None:
    (item,) = slices.plan(pool(device("a"), device("b", **TAINTED)), OWNER, []).writes
    assert slices.contains(item, path) is expected


def test_paths_are_generalized() -> None:
    assert slices.generalize(["spec.devices[3].taints", "spec.devices[12].taints", "a[0].b[1]"]) == (
        "a[].b[]",
        "spec.devices[].taints",
    )


members = st.lists(st.integers(0, 400), unique=True, max_size=300).map(
    lambda numbers: tuple(device(f"gpu-{n}") for n in numbers)
)
pools = st.builds(
    slices.Pool,
    name=st.sampled_from([POOL, POOL, "node-1"]),
    devices=members | st.builds(devices, st.integers(0, 300)),
    counter_sets=st.builds(counter_sets, st.integers(0, 17)),
    partitionable=st.booleans(),
)


class Publishing(RuleBasedStateMachine):
    """Any sequence of wishes, crashes in the middle of the writes, wipes and meddling.

    What the scheduler sees is at every moment a pool that was wished for, or none; and after a whole round of
    writes it is the last wish.
    """

    def __init__(self) -> None:
        super().__init__()
        self.server = Server()
        self.wishes: list[list[str]] = [[]]
        self.wished: slices.Pool | None = None
        self.lowest = 1

    def _plan(self, wanted: slices.Pool) -> slices.Changes:
        changes = self.server.plan(wanted, lowest_generation=self.lowest)
        self.wishes.append([each["name"] for each in wanted.devices])
        return changes

    @rule(wanted=pools)
    def wish(self, wanted: slices.Pool) -> None:
        changes = self._plan(wanted)
        for _ in self.server.steps(changes):
            self.sees_only_wishes()
        self.lowest = max(self.lowest, changes.generation)
        self.wished = wanted
        names = [each["name"] for each in wanted.devices]
        assert self.server.visible() == ({wanted.name: names} if names else {})
        assert not self.server.plan(wanted, lowest_generation=self.lowest)

    @rule(wanted=pools, share=st.floats(0, 1))
    def crash_in_the_middle(self, wanted: slices.Pool, share: float) -> None:
        changes = self._plan(wanted)
        total = len(changes.obstacles) + len(changes.writes) + len(changes.leftovers)
        for done, _ in enumerate(self.server.steps(changes), start=1):
            self.sees_only_wishes()
            if done >= share * total:
                break
        self.wished = None

    @rule(data=st.data())
    def lose_some(self, data: st.DataObject) -> None:
        for name in sorted(self.server.items):
            if data.draw(st.booleans()):
                del self.server.items[name]
        self.wished = None

    @rule()
    def repeat_the_last_wish(self) -> None:
        if self.wished is not None:
            assert not self.server.plan(self.wished, lowest_generation=self.lowest)

    @invariant()
    def sees_only_wishes(self) -> None:
        visible = self.server.visible()
        assert len(visible) <= 1
        for names in visible.values():
            assert names in self.wishes

    @invariant()
    def keeps_the_limits(self) -> None:
        for item in self.server.items.values():
            spec = item["spec"]
            assert ("devices" in spec) != ("sharedCounters" in spec)
            assert len(spec.get("devices", [])) <= 128
            assert len(spec.get("sharedCounters", [])) <= 8


Publishing.TestCase.settings = settings(max_examples=40, stateful_step_count=12, deadline=None)
test_any_history_of_publishing = Publishing.TestCase


def test_labels_are_given_and_those_of_others_are_kept() -> None:
    """Labels alone are no reason to write; what is written anyway carries ours beside whatever somebody added."""
    labelled = slices.Owner(
        driver=OWNER.driver, node_name=OWNER.node_name, node_uid=OWNER.node_uid, labels={"by": "us"}
    )
    server = Server()
    (written,) = slices.plan(pool(device("a")), OWNER, []).writes
    assert "labels" not in written["metadata"]
    server.create(written)
    (live,) = server.items.values()
    live["metadata"]["labels"] = {"team": "x", "by": "nobody"}
    assert not slices.plan(pool(device("a")), labelled, [live])
    (update,) = slices.plan(pool(device("b")), labelled, [live]).writes
    assert update["metadata"]["labels"] == {"team": "x", "by": "us"}
    (fresh,) = slices.plan(pool(device("b")), labelled, []).writes
    assert fresh["metadata"]["labels"] == {"by": "us"}
