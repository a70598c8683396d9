"""Sources of endpoints in rules: what they declare, and errors that name the cure."""

from pathlib import Path

import pytest

from gateway.config import sources
from gateway.config.host_access import HostNames
from gateway.config.host_uses import foreign_uses
from gateway.config.rules import LoadedRules, load_rules, load_texts
from gateway.config.source_specs import KubernetesSpec, SourceSpec


def rules(endpoints: str, more: str = "") -> str:
    engine = f"engines: {{it: {{endpoints: {endpoints}{more}}}}}"
    return f"version: 1\n{engine}\nroutes: [{{name: all, engine: it}}]\n"


def load(tmp_path: Path, text: str) -> LoadedRules:
    (tmp_path / "rules.yaml").write_text(text)
    return load_rules([tmp_path / "rules.yaml"], {})


@pytest.fixture(autouse=True)
def with_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether dnspython is installed or not."""
    monkeypatch.setattr(sources, "find_spec", lambda name: name)


def test_sources_stand_among_endpoints(tmp_path: Path) -> None:
    """An engine has listed endpoints and sources; paths are relative to the rule file; the fronts are those of all."""
    (tmp_path / "endpoints.yaml").write_text("[]")
    written = """
      - {url: "http://a:8000", grpc: "a:8001"}
      - {dns: "triton.svc:8000", grpc: 8001, min_refresh: 2s, zone: z1}
      - {kubernetes: {service: triton, namespace: models, port: http}, grpc: grpc, slow: 1}
      - {file: endpoints.yaml, grpc: 8001}
    """
    text = "version: 1\nengines:\n  it:\n    endpoints:" + written.replace(", slow: 1", "") + "\n"
    loaded = load(tmp_path, text + "routes: [{name: all, engine: it}]\n")
    assert loaded.problems == () and loaded.rules is not None
    engine = loaded.rules.engines["it"]
    assert [each.url for each in engine.endpoints] == ["http://a:8000"]
    dns, slices, file = engine.sources
    assert dns == SourceSpec(dns="triton.svc:8000", grpc="8001", min_refresh=2.0, zone="z1")
    assert slices.kubernetes == KubernetesSpec("triton", "models", "http")
    assert file.file == str(tmp_path / "endpoints.yaml")
    assert engine.speaks_rest and engine.speaks_grpc
    assert [each.label for each in engine.sources[:2]] == ["dns:triton.svc:8000", "kubernetes:models/triton:http"]
    assert (dns.seconds_when_empty, dns.drain_seconds) == (300.0, 30.0)
    assert (slices.seconds_when_empty, slices.drain_seconds) == (0.0, 0.0)


@pytest.mark.parametrize(
    "entry, error",
    [
        ('{dns: "a:1", file: b}', "a source of endpoints is dns or file, not both"),
        ("{dns: a}", "address 'a' has no port"),
        ('{dns: "10.0.0.1:80"}', "'10.0.0.1:80' has an address: write 'http://10.0.0.1:80' as an endpoint"),
        ("{dns: _http.a}", "is no name of SRV records: write _PORT._tcp.NAME"),
        ('{dns: "a:1", servers: ["ns"]}', "'ns' is no address"),
        ('{dns: "a:1", grpc: grpc}', "grpc 'grpc' is a name, which ports of Kubernetes have: write the number"),
        ('{dns: "a:1", scheme: grpc, grpc: 1}', "the scheme grpc is gRPC already"),
        ('{dns: "a:1", min_refresh: 1ms}', "min_refresh 0.001 s is less than 0.05 s"),
        ('{dns: "a:1", min_refresh: 2m}', "min_refresh 120 s is more than max_refresh, 60 s"),
        ('{dns: "a:1", url: "http://a"}', "unknown key 'url' in a source of endpoints"),
        ("{file: a, servers: [10.0.0.1]}", "'servers' is for dns, and this source is file"),
        ("{kubernetes: {service: Triton}}", "name 'Triton' is none of Kubernetes'"),
        ("{kubernetes: {service: a, token: t}}", "'token' is for the server that 'api' names"),
        ("{kubernetes: {service: a, api: 'ftp://b'}}", "must begin with https:// or http://"),
        ("{kubernetes: {service: a}, grpc: 99999}", "port 99999: 1 to 65535"),
        ('{dns: "a:1", max_endpoints: 0}', "0 is too small: at least 1"),
        ("{http: 'ftp://a'}", "URL 'ftp://a' must begin with https:// or http://"),
        ("{http: 'http://a', interval: 1ms}", "interval 0.001 s is less than 0.05 s"),
        ("{http: 'http://a', grpc: grpc}", "write the number, or 'listed' where each entry has its own address"),
        ("{dns: 'a:1', grpc: listed}", "grpc 'listed' is a name"),
        ("{file: a, token: b}", "'token' is for http, and this source is file"),
        ('["http://a:1", {dns: "a:1", grpc: 2}]', "some endpoints of engine 'it' have an address for gRPC and others"),
    ],
)
def test_errors(tmp_path: Path, entry: str, error: str) -> None:
    """What contradicts itself, or cannot be, is an error at its line."""
    loaded = load(tmp_path, rules(entry))
    assert loaded.rules is None
    assert any(error in str(problem) for problem in loaded.errors), loaded.problems


def test_warnings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is not there yet is a warning, and so is a name without dnspython; SRV records need it."""
    (problem,) = load(tmp_path, rules("{file: later.yaml}")).problems
    assert "there is no file" in str(problem) and "warning" in str(problem)
    (problem,) = load(tmp_path, rules("{kubernetes: {service: a, api: 'http://b:1', token: t}}")).problems
    assert "the token goes to http://b:1 unencrypted" in str(problem)
    (problem,) = load(tmp_path, rules("{http: 'http://b:1/list', token: t}")).problems
    assert "http:http://b:1/list: the token goes there unencrypted" in str(problem)
    (problem,) = load(tmp_path, rules('["http://a:1"]', ", balance: session, slow_start: 10s")).problems
    assert "'slow_start' of engine 'it' has no effect" in str(problem)
    (problem,) = load(tmp_path, rules('["http://a:1"]', ", locality: {zone: a}")).problems
    assert "'locality' of engine 'it' has no effect: no endpoint comes before another" in str(problem)
    assert not load(tmp_path, rules('["http://a:1", {url: "http://b:1", priority: 1}]', ", locality: {}")).problems
    monkeypatch.setattr(sources, "find_spec", lambda name: None)
    (problem,) = load(tmp_path, rules('{dns: "a:1"}')).problems
    assert "dns:a:1 is resolved every 5 s: the package dnspython is not installed" in str(problem)
    (problem,) = load(tmp_path, rules("{dns: _a._tcp.b}")).problems
    assert "SRV records need the package dnspython: pip install 'pointsman[discovery]'" in str(problem)


def test_files_are_confined(tmp_path: Path) -> None:
    """Rules by the admin API may name the files of the rule folder, and those that rule files on disk name."""
    name = str(tmp_path / "rules.yaml")
    assert load_texts({name: rules("{file: inside.yaml}")}, {}, HostNames()).rules is not None
    for entry in (
        "{file: /etc/passwd}",
        "{kubernetes: {service: a, api: 'https://b', token: /etc/shadow}}",
        "{kubernetes: {service: a, api: 'https://b', ca: ../ca.pem}}",
        "{http: 'https://b', token: /etc/shadow}",
        "{http: 'https://b', ca: ../ca.pem}",
    ):
        loaded = load_texts({name: rules(entry)}, {}, HostNames())
        assert "rules of the admin API may name files of that folder" in str(loaded.errors[0])
    allowed = HostNames(files=frozenset({"/etc/passwd"}))
    assert load_texts({name: rules("{file: /etc/passwd}")}, {}, allowed).rules is not None


@pytest.mark.parametrize(
    "entry, more",
    [
        ('{dns: "attacker.test:80"}', ", api_key: '${KEY}'"),
        ('{dns: "good.test:80", servers: [10.6.6.6]}', ", api_key: '${KEY}'"),
        ("{kubernetes: {service: good, api: 'https://attacker', token: token}}", ""),
        ("{http: 'https://attacker', token: token}", ""),
        ("{http: 'https://attacker'}", ", api_key: '${KEY}'"),
    ],
)
def test_rules_of_other_gateways_send_no_credential_elsewhere(tmp_path: Path, entry: str, more: str) -> None:
    """A credential, and a token of Kubernetes, go by rules of other gateways only to sources that rule files on this
    disk name."""
    name, environment = str(tmp_path / "rules.yaml"), {"KEY": "secret"}
    on_disk = rules('{dns: "good.test:80"}', ", api_key: '${KEY}'")
    if not more:
        on_disk = rules("{kubernetes: {service: good, api: 'https://good', token: token}}")
    here = load_texts({name: on_disk}, environment)
    foreign = load_texts({name: rules(entry, more)}, environment)
    assert here.rules is not None and foreign.rules is not None
    assert foreign_uses(here, here) == []
    assert "may not send" in str(foreign_uses(foreign, here)[0])
