"""Statuses that an older CRD does not declare in full: what the refusal names is left out, and nothing else."""

from typing import Any, cast

import pytest

from gpupolicy.adapters import kube
from gpupolicy.adapters.kube import statuses

ONE = (
    "failed to create typed patch object (/n; gpupolicy.dev/v1alpha1, Kind=GpuNode): .status.preview: field not "
    "declared in schema"
)
SEVERAL = """failed to create typed patch object (/n; gpupolicy.dev/v1alpha1, Kind=GpuNode): errors:
  .status.agentVersion: field not declared in schema
  .status.gpus[uuid="GPU-0:1.2"].layout: field not declared in schema
  .status.gpus[uuid="GPU-1"].mig.depth: field not declared in schema"""


@pytest.mark.parametrize(
    ("message", "paths"),
    [
        pytest.param(ONE, (("status", "preview"),), id="one"),
        pytest.param(
            SEVERAL,
            (("status", "agentVersion"), ("status", "gpus", "layout"), ("status", "gpus", "mig", "depth")),
            id="several",
        ),
        pytest.param("(/n): .spec.future: field not declared in schema", (), id="of-the-spec"),
        pytest.param("(/n): .status: field not declared in schema", (), id="the-status-itself"),
        pytest.param("status.conditions[0].reason: Required value", (), id="another-refusal"),
    ],
)
def test_what_a_refusal_names(message: str, paths: tuple[statuses.Path, ...]) -> None:
    assert statuses.undeclared(message) == paths


def test_what_is_left_out() -> None:
    body = {
        "metadata": {"name": "n"},
        "status": {"agentVersion": "1", "gpus": [{"uuid": "a", "layout": "x", "mig": {"depth": 1, "on": True}}, {"uuid": "b"}]},
    }  # fmt: skip
    assert statuses.without(body, statuses.undeclared(SEVERAL)) == {
        "metadata": {"name": "n"},
        "status": {"gpus": [{"uuid": "a", "mig": {"on": True}}, {"uuid": "b"}]},
    }
    assert body["status"]["agentVersion"] == "1", "the caller's object is not changed"  # type: ignore[index]


class Server:
    """Refuses with each message in turn, then stores."""

    def __init__(self, *messages: str) -> None:
        self.messages = list(messages)
        self.bodies: list[Any] = []

    async def apply(self, _resource: Any, body: Any, **_options: Any) -> Any:
        self.bodies.append(body)
        if self.messages:
            raise kube.Invalid(422, "Invalid", self.messages.pop(0))
        return body


async def write(server: Server) -> Any:
    body = {"metadata": {"name": "n"}, "status": {"preview": 1, "agentVersion": "1", "devices": 3}}
    return await kube.apply_status(cast("kube.Kube", server), kube.GPUNODES, body, field_manager="m")


async def test_the_rest_is_written(caplog: pytest.LogCaptureFixture) -> None:
    server = Server(ONE, SEVERAL)
    assert (await write(server))["status"] == {"devices": 3}
    assert len(server.bodies) == 3
    assert "lacks status.preview; upgrade the CRDs" in caplog.text


async def test_another_refusal_is_raised_at_once() -> None:
    server = Server("status.conditions[0].reason: Required value")
    with pytest.raises(kube.Invalid):
        await write(server)
    assert len(server.bodies) == 1


async def test_a_server_that_never_has_enough_ends_it() -> None:
    server = Server(*[ONE] * 9)
    with pytest.raises(kube.Invalid):
        await write(server)
    assert len(server.bodies) == 4
