"""Socket names within the limit, sockets of ours replaced, everything else left alone."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpupolicy.adapters.kubeletplugin import sockets

DRIVER = "gpu.example.com"
UID = "0f8fad5b-d9cb-469f-a165-70867728950e"
PLUGINS = Path("/var/lib/kubelet/plugins")
REGISTRY = Path("/var/lib/kubelet/plugins_registry")
LONG_DRIVER = "a" * 63


@pytest.fixture
def held() -> Iterator[list[sockets.BoundSocket]]:
    """Sockets that are closed after the test."""
    bound: list[sockets.BoundSocket] = []
    yield bound
    for one in bound:
        one.listener.close()


def dead(path: Path) -> Path:
    """Leave a socket file behind, as a killed process does."""
    path.parent.mkdir(exist_ok=True)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
    return path


def test_names_without_an_instance() -> None:
    assert sockets.name_sockets(DRIVER, PLUGINS / DRIVER, REGISTRY, None) == sockets.SocketPaths(
        service=PLUGINS / DRIVER / "dra.sock", registration=REGISTRY / f"{DRIVER}-reg.sock"
    )


def test_names_of_an_instance() -> None:
    assert sockets.name_sockets(DRIVER, PLUGINS / DRIVER, REGISTRY, UID) == sockets.SocketPaths(
        service=PLUGINS / DRIVER / f"dra-{UID}.sock", registration=REGISTRY / f"{DRIVER}-{UID}-reg.sock"
    )


def test_names_are_shortened_for_a_long_driver() -> None:
    """A driver's name may have 63 characters, a socket path 107 bytes."""
    paths = sockets.name_sockets(LONG_DRIVER, PLUGINS / LONG_DRIVER, REGISTRY, UID)
    other = sockets.name_sockets(LONG_DRIVER, PLUGINS / LONG_DRIVER, REGISTRY, UID[:-1] + "f")
    for path in (paths.service, paths.registration):
        assert len(os.fsencode(path)) <= 107
    assert paths.service.name.startswith("dra-")
    assert paths.registration.name.endswith("-reg.sock")
    assert paths.service != other.service
    assert paths.registration != other.registration


@given(
    driver=st.from_regex(r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?", fullmatch=True),
    instance=st.none() | st.from_regex(r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?", fullmatch=True),
)
def test_every_driver_and_instance_fits_the_standard_directories(driver: str, instance: str | None) -> None:
    """And no name is hidden, since the kubelet passes over what begins with a dot."""
    paths = sockets.name_sockets(driver, PLUGINS / driver, REGISTRY, instance)
    for path, parent in ((paths.service, PLUGINS / driver), (paths.registration, REGISTRY)):
        assert path.parent == parent
        assert len(os.fsencode(path)) <= sockets.PATH_BYTES
        assert path.suffix == ".sock"
        assert not path.name.startswith(".")


def test_a_directory_that_leaves_no_room_is_named() -> None:
    with pytest.raises(sockets.SocketError, match="longer than 107 bytes: use a shorter directory"):
        sockets.name_sockets(DRIVER, Path("/" + "x" * 100), REGISTRY, None)


@pytest.mark.parametrize("instance", ["", "../x", "a/b", ".", "a b", "a" * 64])
def test_an_instance_id_cannot_leave_the_directory(instance: str) -> None:
    with pytest.raises(sockets.SocketError, match="instance id"):
        sockets.name_sockets(DRIVER, PLUGINS, REGISTRY, instance)


def test_a_bound_socket_accepts_and_is_private(tmp_path: Path, held: list[sockets.BoundSocket]) -> None:
    path = tmp_path / "dra.sock"
    held.append(sockets.bind(path))
    assert held[0].state() == "ours"
    assert path.stat().st_mode & 0o777 == 0o600
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
    assert [entry.name for entry in tmp_path.iterdir()] == ["dra.sock"]


def test_a_dead_socket_is_replaced(tmp_path: Path, held: list[sockets.BoundSocket]) -> None:
    path = dead(tmp_path / "dra.sock")
    assert sockets.is_dead(path)
    held.append(sockets.bind(path))
    assert not sockets.is_dead(path)


def test_a_served_socket_is_not(tmp_path: Path, held: list[sockets.BoundSocket]) -> None:
    """Two instances on the same cards are worse than one that does not start."""
    held.append(sockets.bind(tmp_path / "dra.sock"))
    with pytest.raises(sockets.SocketError, match="another process serves there"):
        sockets.bind(tmp_path / "dra.sock")
    assert held[0].state() == "ours"


@pytest.mark.parametrize("make", [Path.touch, Path.mkdir], ids=["file", "directory"])
def test_what_is_no_socket_is_kept(tmp_path: Path, make: object) -> None:
    path = tmp_path / "dra.sock"
    make(path)  # type: ignore[operator]
    with pytest.raises(sockets.SocketError, match="not a socket"):
        sockets.bind(path)
    assert path.exists()


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(sockets.SocketError, match="must exist on the host"):
        sockets.bind(tmp_path / "absent" / "dra.sock")


def test_unlink_takes_only_its_own(tmp_path: Path, held: list[sockets.BoundSocket]) -> None:
    path = tmp_path / "dra.sock"
    held.append(sockets.bind(path))
    path.unlink()
    assert held[0].state() == "missing"
    held[0].unlink()
    held.append(sockets.bind(path))
    assert held[0].state() == "replaced"
    held[0].unlink()
    assert held[1].state() == "ours"
    held[1].unlink()
    assert not path.exists()


@pytest.mark.parametrize("driver", [DRIVER, LONG_DRIVER], ids=["short", "long"])
@pytest.mark.parametrize("instance", [None, UID], ids=["single", "rolling"])
def test_sockets_of_dead_instances_are_found(tmp_path: Path, driver: str, instance: str | None) -> None:
    """Whatever form their names took, in directories as deep as the real ones."""
    plugins = tmp_path / "p"
    registry = tmp_path / "r"
    # The names must be shortened as on a real node: pad the directories to the same length.
    plugins /= "x" * max(1, len(str(PLUGINS / driver)) - len(str(plugins)) - 1)
    registry /= "x" * max(1, len(str(REGISTRY)) - len(str(registry)) - 1)
    for directory in (plugins, registry):
        directory.mkdir(parents=True)
    paths = sockets.name_sockets(driver, plugins, registry, instance)
    dead(paths.service)
    dead(paths.registration)
    assert set(sockets.remove_stale(driver, plugins, registry)) == {paths.service, paths.registration}
    assert list(plugins.iterdir()) == list(registry.iterdir()) == []


def test_sockets_of_others_and_of_the_living_stay(tmp_path: Path, held: list[sockets.BoundSocket]) -> None:
    """Also those of a driver whose name begins with ours."""
    plugins, registry = tmp_path / "p", tmp_path / "r"
    for directory in (plugins, registry):
        directory.mkdir()
    foreign = dead(registry / f"{DRIVER}-extra-reg.sock")
    other = dead(registry / "other.example.com-reg.sock")
    alive = sockets.name_sockets(DRIVER, plugins, registry, "alive")
    held += [sockets.bind(alive.service), sockets.bind(alive.registration)]
    note = plugins / "dra-note.sock"
    note.write_text("not a socket")
    assert sockets.remove_stale(DRIVER, plugins, registry) == ()
    for path in (foreign, other, alive.service, alive.registration, note):
        assert path.exists()


def test_only_the_dead_socket_of_a_dead_instance_goes(
    tmp_path: Path, held: list[sockets.BoundSocket]
) -> None:
    """The name of its registration may be somebody's file or a living socket by now."""
    plugins, registry = tmp_path / "p", tmp_path / "r"
    for directory in (plugins, registry):
        directory.mkdir()
    services = [dead(plugins / "dra-one.sock"), dead(plugins / "dra-two.sock")]
    note = registry / f"{DRIVER}-one-reg.sock"
    note.write_text("a file")
    held.append(sockets.bind(registry / f"{DRIVER}-two-reg.sock"))
    assert sockets.remove_stale(DRIVER, plugins, registry) == tuple(services)
    assert note.read_text() == "a file"
    assert held[0].state() == "ours"


def test_nothing_to_remove_where_there_is_no_directory(tmp_path: Path) -> None:
    assert sockets.remove_stale(DRIVER, tmp_path / "p", tmp_path / "r") == ()
