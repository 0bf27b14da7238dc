"""The command line: defaults fit a node, bad values are told with the flag that has them."""

from pathlib import Path

import pytest

from gpupolicy.adapters import cdi
from gpupolicy.agent.app import parse


def test_defaults_fit_a_node() -> None:
    options, level = parse(["--node-name", "gpu-01"])
    assert level == "info"
    assert options.state_directory == Path("/var/lib/kubelet/plugins/gpu.gpupolicy.dev/ledger")
    assert options.plugin_directory == Path("/var/lib/kubelet/plugins/gpu.gpupolicy.dev")
    assert options.lock_path == Path("/var/lib/kubelet/plugins/gpu.gpupolicy.dev/agent.lock")
    assert options.cdi_directory == Path("/var/run/cdi")
    assert options.boot_id_path == Path("/proc/sys/kernel/random/boot_id")
    assert options.health_port is None
    assert options.mounts == ()


def test_the_node_may_come_from_the_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NODE_NAME", "gpu-07")
    monkeypatch.setenv("POD_UID", "uid-1")
    options, _ = parse([])
    assert (options.node, options.instance_id) == ("gpu-07", "uid-1")


def test_everything_can_be_elsewhere(tmp_path: Path) -> None:
    boot_id = tmp_path / "proc/sys/kernel/random/boot_id"
    boot_id.parent.mkdir(parents=True)
    boot_id.write_text("boot")
    options, _ = parse(
        [
            "--node-name=n",
            f"--kubelet-root={tmp_path}/kubelet",
            f"--proc-root={tmp_path}/proc",
            "--cdi-mount=/a:/b",
            "--cdi-mount=/c:/d:ro",
            "--poll-seconds=5",
            "--health-port=8081",
        ]
    )
    assert options.state_directory == tmp_path / "kubelet/plugins/gpu.gpupolicy.dev/ledger"
    assert options.boot_id_path == boot_id
    assert options.mounts == (
        cdi.Mount(host_path="/a", container_path="/b", options=("bind", "rw")),
        cdi.Mount(host_path="/c", container_path="/d", options=("bind", "ro")),
    )
    assert options.timing.poll == 5
    assert options.health_port == 8081


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "--node-name"),
        (["--node-name=n", "--poll-seconds=0"], "--poll-seconds"),
        (["--node-name=n", "--poll-seconds=often"], "--poll-seconds"),
        (["--node-name=n", "--nvml-seconds=-1"], "--nvml-seconds"),
        (["--node-name=n", "--health-port=65536"], "--health-port: '65536' is no port"),
        (["--node-name=n", "--health-port=-1"], "--health-port"),
        (["--node-name=n", "--settle-seconds=nan"], "--settle-seconds"),
        (["--node-name=n", "--cdi-mount=relative:/b"], "--cdi-mount"),
        (["--node-name=n", "--cdi-mount=/a:/b:rw"], "--cdi-mount"),
        (["--node-name=n", "--cdi-mount=/a"], "--cdi-mount"),
        (["--node-name=n", "--log-level=loud"], "--log-level"),
    ],
)
def test_bad_values_are_told(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NODE_NAME", raising=False)
    with pytest.raises(SystemExit):
        parse(arguments)
    assert told in capsys.readouterr().err
