"""Whom the client trusts: certificates and authorities, against a real API server."""

import asyncio
import dataclasses
import json
import shutil

import pytest

from gpupolicy.adapters import kube
from gpupolicy.adapters.kube import transport

pytestmark = pytest.mark.cluster


@pytest.fixture
async def client(cluster):
    async with kube.Kube.connect(str(cluster.control_plane.admin_kubeconfig)) as made:
        yield made


def config_map(namespace, name):
    return {"metadata": {"name": name, "namespace": namespace}}


def tls_kubeconfig(cluster, path, **changes):
    """Write the administrator's kubeconfig with other settings of its cluster; None takes a setting out."""
    config = json.loads(cluster.control_plane.admin_kubeconfig.read_text())
    settings = {**config["clusters"][0]["cluster"], **changes}
    config["clusters"][0]["cluster"] = {key: value for key, value in settings.items() if value is not None}
    path.write_text(json.dumps(config))
    return str(path)


TLS = {
    "as-it-is": ({}, True),
    "another-authority": ({"certificate-authority-data": None}, False),
    "another-name": ({"tls-server-name": "kubernetes.default.svc"}, True),
    "a-name-that-it-has-not": ({"tls-server-name": "example.com"}, False),
    "not-verified": ({"certificate-authority-data": None, "insecure-skip-tls-verify": True}, True),
}


@pytest.mark.parametrize("case", TLS)
async def test_the_server_is_verified_as_the_kubeconfig_says(cluster, tmp_path, case):
    changes, good = TLS[case]
    seen = []
    path = tls_kubeconfig(cluster, tmp_path / "config", **changes)
    async with kube.Kube.connect(path, observer=lambda *attempt: seen.append(attempt)) as client:
        if good:
            await client.version()
        else:
            with pytest.raises(kube.Unavailable, match="certificate is not trusted") as caught:
                await client.version()
            assert caught.value.reason == "CertificateRefused"
    assert len(seen) == 1


async def test_tls_files_that_are_no_such_are_told_before_the_first_request(cluster, tmp_path):
    path = tls_kubeconfig(cluster, tmp_path / "config", **{"certificate-authority-data": "anVuaw=="})
    with pytest.raises(kube.ConfigurationError, match="TLS files"):
        async with kube.Kube.connect(path):
            pass


@pytest.mark.parametrize("replacement", ["good", "missing", "junk"])
async def test_authorities_that_are_replaced(client, tmp_path, namespace, replacement, caplog):
    """New connections use the new file, watches that run go on, and a moment without the file harms nothing."""
    known = await client.credentials()
    ca_file = tmp_path / "ca.crt"
    shutil.copy(known.ca_file, ca_file)

    class Source:
        async def read(self):
            return dataclasses.replace(known, ca_file=str(ca_file))

        def stale_after_seconds(self):
            return 0.0

    async with kube.Kube(transport.Transport(Source())) as changing:
        found = await changing.list(kube.CONFIG_MAPS, namespace)
        watch = changing.watch(
            kube.CONFIG_MAPS,
            namespace,
            resource_version=found.resource_version,
            # The cluster's own ConfigMap may come at any time.
            field_selector="metadata.name=after",
        )
        pending = asyncio.ensure_future(anext(watch))
        await changing.version()
        sessions = {id(changing._transport._session)}
        match replacement:
            case "good":
                ca_file.write_text(ca_file.read_text() + "\n# rewritten\n")
            case "missing":
                ca_file.unlink()
            case "junk":
                ca_file.write_text("junk")
        await changing.version()
        sessions.add(id(changing._transport._session))
        await changing.create(kube.CONFIG_MAPS, config_map(namespace, "after"))
        event = await pending
        await watch.aclose()
    assert event.object["metadata"]["name"] == "after"
    assert len(sessions) == (2 if replacement == "good" else 1)
    assert ("stay as they are" in caplog.text) == (replacement != "good")
