"""Which source of credentials is used, what is read from it, when it is read again, and what is never shown."""

import asyncio
import datetime as dt
import json
import logging
import ssl
import sys
from pathlib import Path

import pytest

from gpupolicy.adapters import kube
from gpupolicy.adapters.kube import credentials

SECRET = "very-secret-token"


def kubeconfig(path, user, *, server="https://10.0.0.1:6443", cluster=None, contexts=("one", "two")):
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {"name": name, "cluster": {"server": f"{server}/{name}", **(cluster or {})}} for name in contexts
        ],
        "users": [{"name": "me", "user": user}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": "me"}} for name in contexts],
        "current-context": contexts[0],
    }
    path.write_text(json.dumps(config))
    return str(path)


def content(path):
    return Path(path).read_text()


def plugin(path, status):
    """Write an exec plugin that prints its credentials and counts its runs; return the user entry that calls it."""
    runs = path.with_suffix(".runs")
    answer = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": status}
    path.write_text(f"import json\nopen({str(runs)!r}, 'a').write('.')\nprint(json.dumps({answer!r}))\n")
    user = {"exec": {"apiVersion": answer["apiVersion"], "command": sys.executable, "args": [str(path)]}}
    return user, lambda: len(runs.read_text())


@pytest.fixture
def service_account(tmp_path, monkeypatch, nowhere):
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    directory = tmp_path / "serviceaccount"
    directory.mkdir()
    (directory / "token").write_text(f"{SECRET}\n")
    (directory / "ca.crt").write_text("not read before a connection is made")
    return directory


@pytest.fixture
def nowhere(tmp_path, monkeypatch):
    """No environment and an empty home."""
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"):
        monkeypatch.delenv(name, raising=False)
    home = tmp_path / "home"
    (home / ".kube").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    return home


@pytest.mark.parametrize(
    ("present", "expected"),
    [
        pytest.param({"given", "variable", "home"}, "given", id="the-path-given-wins"),
        pytest.param({"variable", "home"}, "variable", id="then-KUBECONFIG"),
        pytest.param({"home"}, "home", id="then-the-home-directory"),
        pytest.param(set(), SECRET, id="then-the-pod"),
    ],
)
async def test_the_order_of_sources(nowhere, monkeypatch, service_account, present, expected):
    monkeypatch.setattr(credentials.ServiceAccount.__init__, "__defaults__", (service_account,))
    paths = {name: nowhere / name for name in ("given", "variable")} | {"home": nowhere / ".kube" / "config"}
    for name in present:
        kubeconfig(paths[name], {"token": name})
    if "variable" in present:
        monkeypatch.setenv("KUBECONFIG", str(paths["variable"]))
    source = credentials.find(str(paths["given"]) if "given" in present else None)
    assert (await source.read()).token == expected


async def test_a_service_account_that_is_named_wins(nowhere, monkeypatch, service_account):
    monkeypatch.setenv("KUBECONFIG", kubeconfig(nowhere / "variable", {"token": "variable"}))
    path = kubeconfig(nowhere / "given", {"token": "given"})
    assert (await credentials.find(path, service_account=service_account).read()).token == SECRET


@pytest.mark.parametrize("context", [None, "one"])
def test_no_source_is_an_error_that_says_what_was_looked_at(nowhere, context):
    with pytest.raises(kube.ConfigurationError, match="KUBECONFIG is not set") as caught:
        credentials.find(context=context)
    assert str(nowhere / ".kube" / "config") in str(caught.value)
    assert ("context 'one'" in str(caught.value)) == (context == "one")


async def test_several_files_in_KUBECONFIG_are_merged(tmp_path, nowhere, monkeypatch):  # noqa: N802
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_text(
        json.dumps(
            {"contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}], "current-context": "c"}
        )
    )
    second.write_text(
        json.dumps(
            {
                "clusters": [{"name": "k", "cluster": {"server": "http://x"}}],
                "users": [{"name": "u", "user": {"token": "t"}}],
            }
        )
    )
    monkeypatch.setenv("KUBECONFIG", f"{first}:{second}")
    found = await credentials.find().read()
    assert (found.server, found.token) == ("http://x", "t")


async def test_another_context(tmp_path):
    path = kubeconfig(tmp_path / "config", {"token": "t"})
    assert (await credentials.find(path, "two").read()).server == "https://10.0.0.1:6443/two"


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        pytest.param(None, "does not exist: name another", id="missing-file"),
        pytest.param("", "is empty: name another", id="empty-file"),
        pytest.param("{{{", "ParserError|ScannerError", id="not-yaml"),
        pytest.param("[]", "kubeconfig", id="a-list"),
        pytest.param("{}", "current-context", id="no-context"),
        pytest.param(
            '{"current-context": "x", "contexts": [], "clusters": []}', "kubeconfig", id="unknown-context"
        ),
    ],
)
async def test_a_malformed_kubeconfig_is_named(tmp_path, content, complaint):
    path = tmp_path / "config"
    if content is not None:
        path.write_text(content)
    with pytest.raises(kube.ConfigurationError, match=complaint) as caught:
        await credentials.find(str(path)).read()
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("namespace", ["team-a", None], ids=["named", "not-named"])
async def test_the_namespace_of_the_context(tmp_path, namespace):
    path = kubeconfig(tmp_path / "config", {})
    if namespace:
        in_namespace(path, namespace)
    assert (await credentials.Kubeconfig(path, "two").read()).namespace == namespace
    assert (await credentials.Kubeconfig(path).read()).namespace is None


def in_namespace(path, namespace):
    """Let the second context of a kubeconfig name a namespace."""
    config = json.loads(content(path))
    config["contexts"][1]["context"]["namespace"] = namespace
    Path(path).write_text(json.dumps(config))


async def test_an_unknown_context_is_named(tmp_path):
    path = kubeconfig(tmp_path / "config", {"token": "t"})
    with pytest.raises(kube.ConfigurationError, match="three"):
        await credentials.find(path, "three").read()


async def test_the_service_account_of_the_pod(service_account):
    found = await credentials.ServiceAccount(service_account).read()
    assert found == kube.Credentials(
        server="https://[fd00::1]:443",
        authorization=f"Bearer {SECRET}",
        ca_file=str(service_account / "ca.crt"),
    )


@pytest.mark.parametrize("missing", ["token", "ca.crt"])
@pytest.mark.parametrize("how", ["absent", "empty"])
async def test_an_incomplete_service_account_is_named(service_account, missing, how):
    path = service_account / missing
    path.unlink() if how == "absent" else path.write_text("")
    with pytest.raises(kube.ConfigurationError, match=str(service_account)) as caught:
        await credentials.ServiceAccount(service_account).read()
    assert missing in str(caught.value)


async def test_a_token_that_is_no_text_is_told_and_not_shown(service_account):
    (service_account / "token").write_bytes(SECRET.encode() + b"\xff")
    with pytest.raises(kube.ConfigurationError, match="ascii") as caught:
        await credentials.ServiceAccount(service_account).read()
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("variable", ["KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"])
@pytest.mark.parametrize("how", ["absent", "empty"])
async def test_a_pod_that_is_not_told_of_the_api_server(service_account, monkeypatch, variable, how):
    monkeypatch.delenv(variable) if how == "absent" else monkeypatch.setenv(variable, "")
    with pytest.raises(kube.ConfigurationError, match=variable):
        await credentials.ServiceAccount(service_account).read()


@pytest.mark.parametrize(
    ("host", "server"),
    [
        pytest.param("10.96.0.1", "https://10.96.0.1:443", id="ipv4"),
        pytest.param("fd00::1", "https://[fd00::1]:443", id="ipv6"),
        pytest.param("kubernetes.default.svc", "https://kubernetes.default.svc:443", id="name"),
    ],
)
async def test_the_address_of_the_api_server(service_account, monkeypatch, host, server):
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
    assert (await credentials.ServiceAccount(service_account).read()).server == server


async def test_client_certificates(tmp_path):
    for name in ("ca", "crt", "key"):
        (tmp_path / name).write_text(name)
    path = kubeconfig(
        tmp_path / "config",
        {"client-certificate": "crt", "client-key": "key"},
        cluster={"certificate-authority": "ca", "tls-server-name": "api", "proxy-url": "http://proxy:3128"},
    )
    found = await credentials.find(path).read()
    assert (found.ca_file, found.certificate_file, found.key_file) == tuple(
        str(tmp_path / name) for name in ("ca", "crt", "key")
    )
    assert (found.server_name, found.proxy_url(), found.verify) == ("api", "http://proxy:3128", True)
    assert found.authorization is None
    assert found.token is None


async def test_basic_authentication_is_no_token(tmp_path):
    found = await credentials.find(kubeconfig(tmp_path / "c", {"username": "u", "password": "p"})).read()
    assert found.authorization == "Basic dTpw"
    assert found.token is None


async def test_verification_can_be_switched_off(tmp_path):
    path = kubeconfig(tmp_path / "config", {"token": "t"}, cluster={"insecure-skip-tls-verify": True})
    context = (await credentials.find(path).read()).ssl_context()
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_NONE, False)


def test_verification_is_on_and_not_stricter_than_other_clients():
    context = kube.Credentials(server="https://x").ssl_context()
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)
    assert not context.verify_flags & ssl.VERIFY_X509_STRICT


@pytest.mark.parametrize("field", ["ca_file", "certificate_file"])
def test_tls_files_that_cannot_be_read_are_a_configuration_error(tmp_path, field):
    (tmp_path / "junk").write_text("junk")
    for path in (tmp_path / "junk", tmp_path / "absent"):
        with pytest.raises(kube.ConfigurationError, match="TLS files of https://x"):
            kube.Credentials(server="https://x", **{field: str(path)}).ssl_context()


@pytest.mark.parametrize(
    "found",
    [
        kube.Credentials(server="https://x", authorization=f"Bearer {SECRET}"),
        kube.Credentials(server="https://x", proxy=f"http://user:{SECRET}@proxy"),
    ],
)
def test_secrets_are_not_in_a_repr(found):
    assert SECRET not in repr(found)


def test_a_connection_is_made_anew_when_the_files_change_in_content_only(tmp_path):
    """The kubelet rewrites ca.crt whenever it rotates the token beside it."""
    ca = tmp_path / "ca.crt"
    ca.write_text("a")
    one = kube.Credentials(server="https://x", ca_file=str(ca), authorization="Bearer 1")
    two = kube.Credentials(server="https://x", ca_file=str(ca), authorization="Bearer 2")
    before = one.transport()
    ca.unlink()
    ca.write_text("a")
    assert two.transport() == before
    ca.write_text("b")
    assert two.transport() != before


@pytest.mark.parametrize(
    ("server", "excepted", "proxy"),
    [
        pytest.param("https://10.96.0.1:443", "", "http://proxy:3128", id="no-exception"),
        pytest.param("https://10.96.0.1:443", "10.96.0.1", None, id="address"),
        pytest.param("https://10.96.0.1:443", "a.b, 10.96.0.0/12", None, id="network"),
        pytest.param("https://10.95.0.1:443", "10.96.0.0/12", "http://proxy:3128", id="another-network"),
        pytest.param("https://[fd00::1]:443", "10.0.0.0/8,fd00::/16", None, id="ipv6-network"),
        pytest.param("https://api.cluster.local", ".cluster.local", None, id="domain"),
        pytest.param(
            "https://api.example.com", "10.0.0.0/8,junk/99", "http://proxy:3128", id="another-domain"
        ),
        pytest.param("http://api.example.com", "", None, id="a-proxy-for-https-only"),
        pytest.param("https://10.96.0.1:443", "*", None, id="everything"),
    ],
)
def test_the_proxy_of_the_environment_and_its_exceptions(monkeypatch, server, excepted, proxy):
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "no_proxy", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:3128")
    monkeypatch.setenv("NO_PROXY", excepted)
    assert kube.Credentials(server=server).proxy_url() == proxy


class Source:
    """A source whose answers are a list; an exception in it is raised."""

    def __init__(self, *answers, stale_after_seconds=None):
        self.answers = list(answers)
        self.stale = stale_after_seconds

    async def read(self):
        answer = self.answers.pop(0)
        await asyncio.sleep(0)
        if isinstance(answer, Exception):
            raise answer
        return kube.Credentials(server="https://x", authorization=f"Bearer {answer}")

    def stale_after_seconds(self):
        return self.stale


async def test_credentials_are_read_once_while_they_are_good():
    keeper = credentials.Keeper(Source("one", "two", stale_after_seconds=3600))
    assert [(await keeper.current()).token for _ in range(3)] == ["one", "one", "one"]


async def test_credentials_that_aged_are_read_again():
    keeper = credentials.Keeper(Source("one", "two", stale_after_seconds=0))
    assert [(await keeper.current()).token for _ in range(2)] == ["one", "two"]


async def test_credentials_that_were_refused_are_read_again():
    keeper = credentials.Keeper(Source("one", "two"))
    assert (await keeper.current()).token == "one"
    assert (await keeper.renew()).token == "two"
    assert (await keeper.current()).token == "two"


async def test_a_source_that_fails_later_leaves_the_old_credentials_in_use(caplog):
    keeper = credentials.Keeper(
        Source("one", kube.ConfigurationError("gone"), "three", stale_after_seconds=0)
    )
    with caplog.at_level(logging.WARNING):
        assert [(await keeper.current()).token for _ in range(3)] == ["one", "one", "three"]
    assert "gone" in caplog.text


async def test_a_source_that_fails_at_first_is_an_error():
    with pytest.raises(kube.ConfigurationError, match="gone"):
        await credentials.Keeper(Source(kube.ConfigurationError("gone"))).current()


async def test_a_token_file_is_read_again(tmp_path):
    (tmp_path / "token").write_text("one\n")
    source = credentials.find(kubeconfig(tmp_path / "config", {"tokenFile": "token"}))
    assert (await source.read()).token == "one"
    assert source.stale_after_seconds() == credentials.REREAD_SECONDS
    (tmp_path / "token").write_text("two\n")
    assert (await source.read()).token == "two"


async def test_a_token_in_the_file_itself_does_not_age(tmp_path):
    source = credentials.find(kubeconfig(tmp_path / "config", {"token": "t"}))
    await source.read()
    assert source.stale_after_seconds() is None


@pytest.mark.parametrize(
    ("minutes", "low", "high"),
    [
        pytest.param(None, None, None, id="without-expiry-until-refused"),
        pytest.param(14, 700, 14 * 60, id="with-expiry-a-little-before"),
        pytest.param(-5, 1, 60, id="expired-is-tried-again-but-not-at-once"),
    ],
)
async def test_an_exec_plugin_runs_again_when_its_answer_ends(tmp_path, minutes, low, high):
    status = {"token": "from-plugin"}
    if minutes is not None:
        expiry = dt.datetime.now(dt.UTC) + dt.timedelta(minutes=minutes)
        status["expirationTimestamp"] = expiry.strftime("%Y-%m-%dT%H:%M:%SZ")
    user, runs = plugin(tmp_path / "plugin.py", status)
    source = credentials.find(kubeconfig(tmp_path / "config", user))
    assert (await source.read()).token == "from-plugin"
    stale = source.stale_after_seconds()
    if minutes is None:
        assert stale is None
    else:
        assert low <= stale <= high
    await source.read()
    assert runs() == 2


async def test_an_exec_plugin_that_fails_is_a_configuration_error(tmp_path):
    user = {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "/bin/false"}}
    path = kubeconfig(tmp_path / "config", user)
    with pytest.raises(kube.ConfigurationError, match="process returned 1"):
        await credentials.find(path).read()


async def test_an_exec_plugin_may_give_a_certificate(tmp_path):
    user, _ = plugin(tmp_path / "plugin.py", {"clientCertificateData": "CERT", "clientKeyData": "KEY"})
    found = await credentials.find(kubeconfig(tmp_path / "config", user)).read()
    assert content(found.certificate_file) == "CERT"
    assert content(found.key_file) == "KEY"


async def test_callers_at_the_same_time_share_one_reading():
    """An exec plugin may take seconds and ask a person; it must not run once per waiting request."""
    source = Source("one", "two")
    keeper = credentials.Keeper(source)
    first = await asyncio.gather(*(keeper.current() for _ in range(5)))
    again = await asyncio.gather(*(keeper.renew() for _ in range(5)))
    assert {found.token for found in first} == {"one"}
    assert {found.token for found in again} == {"two"}
    assert source.answers == []
