"""What the agent's process must not load: it runs on every node with a GPU, and modules are most of its memory.

The lists are no wish but what was measured; whoever needs one of these modules looks at `make bench BENCH=agent-idle` first
and says in `docs/benchmarks.md` what it costs.
"""

import itertools
import json
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection

from gpupolicy.agent import footprint

SOURCE_ROOT = Path(__file__).resolve().parents[3] / "operator"

UNWANTED = {
    "kubernetes_asyncio.client.api_client": "the library's client; we send plain objects (with urllib3: 2 MiB)",
    "kubernetes_asyncio.client.configuration": "the library's settings; `credentials.Credentials` is ours",
    "kubernetes_asyncio.client.models.v1_pod": "one of the 1,200 generated models (34 MiB together)",
    "kubernetes_asyncio.config.kube_config": "read with a kubeconfig only, which no pod has (3 MiB)",
    "urllib3": "another HTTP client (0.8 MiB)",
    "requests": "another HTTP client",
    "multiprocessing": "processes are not what the agent starts (0.4 MiB)",
    "yaml": "JSON goes to the API server, and is YAML where somebody reads it (0.7 MiB)",
    "dateutil": "times of the API server are RFC 3339, which the standard library reads (0.5 MiB)",
    "aiohttp.web": "pages, routes and files of a web site; three answers need `aiohttp.web_server` only (1 MiB)",
    "aiohttp.web_app": "the same by another name",
    "kopf": "the controller's framework",
    "celpy": "selectors are the controller's",
    "cel_expr_python": "selectors are the controller's",
    "re2": "selectors are the controller's",
    "lark": "selectors are the controller's",
    "jsonschema": "the API server validates",
    "cryptography": "the standard library speaks TLS",
    "numpy": "nothing here is worth it",
    "unittest": "tests",
    "pydoc": "tests",
    "pdb": "tests",
    "pygments": "tests",
    "gpupolicy.controller": "another process",
    "gpupolicy.cli": "another process",
    "gpupolicy.api.schema": "CRDs are generated before a release",
    "gpupolicy.adapters.cel": "selectors are the controller's",
}
"""Module -> what it is or what it costs; a package stands for all that is below it."""

LIBRARIES = {
    "aiohappyeyeballs",
    "aiohttp",
    "aiosignal",
    "annotated_types",
    "attr",
    "frozenlist",
    "google",
    "grpclib",
    "h2",
    "hpack",
    "hyperframe",
    "idna",
    "multidict",
    "prometheus_client",
    "propcache",
    "pydantic",
    "pydantic_core",
    "pynvml",
    "typing_extensions",
    "typing_inspection",
    "yarl",
}
"""What the agent's libraries load of each other; another name here is another library on every node."""


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return what is loaded, with its file, once the agent has a pod's credentials, was scraped and has read its API."""
    directory = tmp_path_factory.mktemp("serviceaccount")
    (directory / "token").write_text("token")
    (directory / "ca.crt").write_text("certificate")
    program = f"""
import asyncio, json, sys
from pathlib import Path
from gpupolicy.agent import app, endpoints, metrics
from gpupolicy.adapters.kube import credentials
from gpupolicy.agent.state import NodeState
from gpupolicy.api.claimconfig import ClaimConfig
from gpupolicy.api.node import GpuNode

async def serve():
    await credentials.find(service_account=Path({str(directory)!r})).read()
    async with endpoints.Endpoints(0, host="127.0.0.1") as doors:
        doors.measured = metrics.for_node(NodeState("n", ledger=None))
        reader, writer = await asyncio.open_connection("127.0.0.1", await doors.port)
        writer.write(b"GET /metrics HTTP/1.0\\r\\n\\r\\n")
        assert b"gpupolicy_node_gpus" in await reader.read()
        writer.close()

app.parse(["--node-name=n"])
asyncio.run(serve())
GpuNode.model_validate({{"metadata": {{"name": "n"}}, "spec": {{"gpus": [{{"uuid": "GPU-1", "policy": "p"}}]}}}}).to_wire()
ClaimConfig.model_validate({{"apiVersion": "gpupolicy.dev/v1alpha1", "kind": "ClaimConfig"}})
files = {{name: getattr(module, "__file__", None) or "" for name, module in sys.modules.items()}}
print(json.dumps(files))
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={
            "PYTHONPATH": str(SOURCE_ROOT),
            "PYTHONDONTWRITEBYTECODE": "1",
            "KUBERNETES_SERVICE_HOST": "127.0.0.1",
            "KUBERNETES_SERVICE_PORT": "1",
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("module", UNWANTED)
def test_what_is_not_needed_is_not_loaded(loaded: dict[str, str], module: str) -> None:
    found = sorted(name for name in loaded if name == module or name.startswith(f"{module}."))
    assert found == [], f"{UNWANTED[module]}; python -X importtime tells who imports it"


def test_what_is_loaded_is_what_is_looked_at(loaded: dict[str, str]) -> None:
    """The list above would be worth nothing if the program did not load what the agent does."""
    wanted = {
        "aiohttp.web_server",
        "gpupolicy.agent.app",
        "grpclib.server",
        "prometheus_client",
        "pydantic",
        "pynvml",
    }
    assert wanted <= loaded.keys()


def test_no_other_library_is_loaded(loaded: dict[str, str]) -> None:
    """A library is what has a file in the folder of installed packages, whatever loads it."""
    places = {Path(sysconfig.get_path(kind)) for kind in ("purelib", "platlib")}
    found = {
        name.partition(".")[0]
        for name, file in loaded.items()
        if file and any(place in Path(file).parents for place in places)
    }
    # What a virtual environment loads into every process, whoever runs in it.
    assert found - {"_distutils_hack", "_virtualenv", "setuptools"} <= LIBRARIES


def test_calls_of_the_past_take_no_memory() -> None:
    """The kubelet keeps one connection for months, and each call on it is a stream."""
    call = [(":method", "POST"), (":path", "/"), (":scheme", "http"), (":authority", "localhost")]
    client, server = H2Connection(), H2Connection(H2Configuration(client_side=False))
    client.initiate_connection()
    server.initiate_connection()
    for number in itertools.islice(itertools.count(1, 2), footprint.CLOSED_STREAMS + 100):
        client.send_headers(number, call, end_stream=True)
        server.receive_data(client.data_to_send())
        server.send_headers(number, [(":status", "200")], end_stream=True)
        client.receive_data(server.data_to_send())
    # Closed streams are counted when somebody asks for the open ones.
    assert server.open_inbound_streams == 0
    assert len(server._closed_streams) == footprint.CLOSED_STREAMS
