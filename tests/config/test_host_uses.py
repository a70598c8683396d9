"""Rules of another gateway send what they name of the host where the rule files on this disk send it."""

from pathlib import Path

import pytest

from gateway.config.host_uses import foreign_uses
from gateway.config.rules import LoadedRules, load_texts

ENVIRONMENT = {"KEY": "sk-secret", "HOST": "h", "MODEL": "m"}
ENGINE = """
  a:
    endpoints: [{url: "https://${HOST}:1", grpc: "h:2"}, {url: "https://h:3", grpc: "h:4"}]
    api_key: ${KEY}
    headers: {x-token: {file: token}, x-other: {env: KEY}}
    tls: {server_name: h}
"""
TEXT = """
  c: {endpoints: ["http://h:5"], protocol: openai, dialects: [completions], chat_template: own.jinja}
"""
PLAIN = """
  b: {endpoints: ["https://evil:1"]}
"""
ROUTES = """
routes:
  - {name: all, engine: a, match: {header: {x-key: "${KEY}"}}, model: "${MODEL}"}
  - {name: texts, engine: c, match: {model: c}}
  - {name: rest, engine: b}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("token", "own.jinja", "other"):
        (tmp_path / name).write_text("text")
        (tmp_path / name).chmod(0o600)
    return tmp_path


def loaded(folder: Path, text: str) -> LoadedRules:
    found = load_texts({str(folder / "rules.yaml"): text}, ENVIRONMENT)
    assert found.rules is not None, found.problems
    return found


def rules(engine: str = ENGINE, plain: str = PLAIN, routes: str = ROUTES, more: str = "", text: str = TEXT) -> str:
    return f"version: 1\n{more}\nengines:{engine}{text}{plain}{routes}"


@pytest.mark.parametrize(
    "text",
    [
        rules(),
        rules(ENGINE.replace("x-token: {file: token}, ", "").replace("x-other", "x-key")),
        rules(ENGINE.replace("https://${HOST}:1", "https://h:1")),
        rules(ENGINE.replace(', {url: "https://h:3", grpc: "h:4"}', "")),
        rules(text=TEXT.replace("[completions]", "[embeddings]")),
        rules(plain=PLAIN.replace("evil", "elsewhere")),
        rules(routes=ROUTES.replace("name: all", "name: other").replace(', model: "${MODEL}"', "")),
        rules(more='x-a: "$${KEY}"'),
    ],
)
def test_what_the_files_send_may_be_sent(folder: Path, text: str) -> None:
    """Also by other fields, for fewer addresses, and with other rules around."""
    assert foreign_uses(loaded(folder, text), loaded(folder, rules())) == []


@pytest.mark.parametrize(
    ("text", "use"),
    [
        (rules(ENGINE.replace("${HOST}:1", "evil:1")), "${KEY} to this address"),
        (rules(ENGINE.replace("https://${HOST}:1", "http://h:1")), "${KEY} to this address"),
        (rules(ENGINE.replace("${HOST}:1", "h:9")), "token to this address"),
        (rules(ENGINE.replace("h:4", "evil:4")), "token to this address"),
        (rules(ENGINE.replace("server_name: h", "verify: false")), "${KEY} to this address"),
        (rules(ENGINE + "    metrics: {path: ':9/metrics'}\n"), "${KEY} to this address"),
        (rules(ENGINE + "    models: {path: ':9/models'}\n"), "${KEY} to this address"),
        (rules(ENGINE.replace("{file: token}", "{file: other}")), "other to this address"),
        (rules(text=TEXT.replace("own.jinja", "token")), "token to this address"),
        (rules(text=TEXT.replace("h:5", "evil:5")), "own.jinja to this address"),
        (rules(plain=PLAIN.replace("]}", "], api_key: '${KEY:-x}'}")), "${KEY} to this address"),
        (rules(plain=PLAIN.replace("]}", "], headers: {x: {env: KEY}}}")), "${KEY} to this address"),
        (
            rules(plain=PLAIN.replace("]}", "], protocol: openai, dialects: [chat], chat_template: token}")),
            "token to this address",
        ),
        (
            rules(plain=PLAIN.replace("]}", "], <<: *a}"), more="x-a: &a {api_key: '${KEY}'}"),
            "${KEY} to this address",
        ),
        (rules(plain=PLAIN.replace("evil", "${KEY}.evil")), "${KEY} to this address"),
        (rules(routes=ROUTES.replace("${MODEL}", "${KEY}")), "${KEY} to routes.model"),
        (rules(routes=ROUTES.replace("${KEY}", "${KEY}*")), "${KEY}* to routes.match.header.x-key"),
        (rules(routes=ROUTES.replace("name: rest", "name: '${MODEL}'")), "${MODEL} to routes.name"),
    ],
)
def test_nothing_goes_elsewhere(folder: Path, text: str, use: str) -> None:
    """To another address, port or scheme, with less TLS, by a default, a merge or a name; each with its place."""
    found = foreign_uses(loaded(folder, text), loaded(folder, rules()))
    assert any(use in str(problem) for problem in found), found
    assert "sk-secret" not in str(found)
    assert all(problem.location.file == str(folder / "rules.yaml") for problem in found)


def test_an_activator_is_an_address_of_its_own(folder: Path) -> None:
    """A credential goes to an activator only where the rule files on this disk send it to that one."""
    key = "    activator: {url: 'https://k8s/scale', headers: {authorization: '${KEY}'}}\n"
    on_disk = loaded(folder, rules(ENGINE + key))
    assert foreign_uses(on_disk, on_disk) == []
    assert foreign_uses(on_disk, loaded(folder, rules()))
    for other in ("https://evil/scale", "https://k8s/other"):
        assert foreign_uses(loaded(folder, rules(ENGINE + key.replace("https://k8s/scale", other))), on_disk)
    assert foreign_uses(loaded(folder, rules(ENGINE + key.replace("}}", "}, tls: {verify: false}}"))), on_disk)
