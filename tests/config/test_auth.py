"""The `auth:` section and its files of keys: what is wrong is named with file, line and column."""

from pathlib import Path

import pytest

from gateway.config.rules import LoadedRules, load_rules

RULES = "version: 1\nengines: {it: {endpoints: ['http://h:1']}}\nroutes: [{name: all, engine: it}]\n"
HASH = "sha256:" + "0" * 64
KEY = f"- id: '0123456789ab'\n  tenant: acme\n  hash: {HASH}\n"


def load(folder: Path, auth: str, keys: str = KEY) -> LoadedRules:
    (folder / "rules").mkdir(exist_ok=True)
    (folder / "rules" / "rules.yaml").write_text(f"{RULES}auth: {auth}\n")
    (folder / "rules" / "keys.yaml").write_text(keys)
    (folder / "outside.yaml").write_text(KEY)
    return load_rules([folder / "rules" / "rules.yaml"])


def test_defaults(tmp_path: Path) -> None:
    """A path is enough: a principal is required then, and engines receive no credential."""
    loaded = load(tmp_path, "{keys: keys.yaml}")
    rules = loaded.rules
    assert rules is not None and rules.auth is not None
    assert rules.auth.required and not rules.auth.forward
    (file,) = rules.auth.keys
    assert [(key.id, key.tenant, key.name) for key in file.keys] == [("0123456789ab", "acme", "")]
    assert loaded.followed_files == (tmp_path / "rules" / "keys.yaml",)


@pytest.mark.parametrize("auth", ["{keys: ../outside.yaml}", "{keys: link.yaml}"])
def test_files_are_confined_to_the_rule_folder(tmp_path: Path, auth: str) -> None:
    """A path that leads out of the folder of the rule file is refused, by a link too."""
    (tmp_path / "rules").mkdir()
    (tmp_path / "rules" / "link.yaml").symlink_to(tmp_path / "outside.yaml")
    (problem,) = load(tmp_path, auth).errors
    assert "is outside of the rule file's folder" in str(problem)
    assert str(problem).startswith(f"{tmp_path}/rules/rules.yaml:4:")


@pytest.mark.parametrize(
    "keys, line, message",
    [
        (KEY + KEY, 4, "key id '0123456789ab' is declared twice"),
        (KEY.replace("acme", "''"), 2, "an empty text stands here"),
        (KEY.replace("tenant: acme", "tenants: acme"), 2, "unknown key 'tenants' in a key: did you mean 'tenant'?"),
        ("- id: '0123456789ab'\n", 1, "a key needs 'tenant'"),
        (KEY.replace("0123456789ab", "x"), 1, "'x' is not a key's id"),
        (KEY.replace(HASH, "pmi-secret"), 3, "not a hash that `pointsman keys client add` has written"),
        (KEY + "  expires: soon\n", 4, "'soon' is not a time: write 2027-01-31 or 2027-01-31T12:00:00Z"),
        ("keys: []\n", 1, "expected a list of keys"),
    ],
)
def test_errors_of_key_files_name_the_place(tmp_path: Path, keys: str, line: int, message: str) -> None:
    """An error in a file of keys refuses the rules, with the place in that file, and quotes no hash or key."""
    loaded = load(tmp_path, "{keys: keys.yaml}", keys)
    assert loaded.rules is None
    found = [str(problem) for problem in loaded.errors]
    assert any(text.startswith(f"{tmp_path}/rules/keys.yaml:{line}:") and message in text for text in found), found
    assert "pmi-secret" not in str(found)


@pytest.mark.parametrize(
    "auth, message",
    [
        ("{}", "it needs 'keys'"),
        ("{keys: none.yaml}", "the key file 'none.yaml' cannot be read: there is no such file"),
        ("{keys: keys.yaml, require: true}", "unknown key 'require' in auth: did you mean 'required'?"),
        ("{keys: keys.yaml, required: perhaps}", "'perhaps' is neither true nor false"),
    ],
)
def test_errors_of_the_section(tmp_path: Path, auth: str, message: str) -> None:
    """Errors of the section itself."""
    assert any(message in str(problem) for problem in load(tmp_path, auth).errors), load(tmp_path, auth).problems


@pytest.mark.parametrize(
    "certificate, message",
    [
        ("{tenant: a}", "a certificate has one name: of 'uri', 'dns', 'email' and 'subject'"),
        ("{uri: 'spiffe://a', dns: a, tenant: a}", "a certificate has one name"),
        ("{uri: 'spiffe://a/*'}", "have no tenant: write 'tenant', or '{tenant}' once"),
        ("{uri: 'spiffe://a/{tenant}', tenant: a}", "have several tenants"),
        ("{uri: 'spiffe://{tenant}/{tenant}'}", "have several tenants"),
        ("{san: a, tenant: a}", "unknown key 'san' in a certificate"),
    ],
)
def test_errors_of_certificates(tmp_path: Path, certificate: str, message: str) -> None:
    """An entry of `certificates` has one name, and its tenant from one place; the error names the line."""
    (problem,) = load(tmp_path, f"{{certificates: {certificate}}}").errors
    assert message in str(problem)
    assert str(problem).startswith(f"{tmp_path}/rules/rules.yaml:4:")


ISSUER = "issuer: 'https://it', audience: a"
AT = "jwks: 'https://idp/keys'"


@pytest.mark.parametrize(
    "issuer, message",
    [
        (f"{ISSUER}", "an issuer needs 'jwks'"),
        (f"{ISSUER}, jwks: ../outside.yaml", "is outside of the rule file's folder"),
        (f"{ISSUER}, jwks: none.json", "the key set 'none.json' cannot be read: there is no such file"),
        (f"{ISSUER}, jwks: 'http://idp/keys'", "'http://idp/keys' is no https URL"),
        (f"{ISSUER}, jwks: 'ftp://idp/keys'", "'ftp://idp/keys' is no https URL"),
        (f"{ISSUER}, {AT}, algorithms: [HS256]", "unknown algorithm 'HS256'"),
        (f"{ISSUER}, {AT}, algorithms: none", "unknown algorithm 'none'"),
        (f"{ISSUER}, {AT}, leeway: 1h", "1h is out of range"),
        (f"{ISSUER}, {AT}}}, {{{ISSUER}, {AT}", "issuer 'https://it' is declared twice"),
    ],
)
def test_errors_of_issuers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, issuer: str, message: str) -> None:
    """Errors of `jwt`."""
    monkeypatch.setattr("gateway.config.auth.find_spec", lambda name: name)
    problems = load(tmp_path, f"{{jwt: [{{{issuer}}}]}}").errors
    assert any(message in str(problem) for problem in problems), problems


def test_tokens_need_their_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without PyJWT, `check` says what to install; nothing else needs it."""
    monkeypatch.setattr("gateway.config.auth.find_spec", lambda name: None)
    (problem,) = load(tmp_path, f"{{jwt: {{{ISSUER}, {AT}}}}}").errors
    assert "pip install 'pointsman[jwt]'" in str(problem)


def test_a_key_set_without_a_usable_key(tmp_path: Path) -> None:
    """A file that is no key set, or has no key for the algorithms, is refused by `check`."""
    pytest.importorskip("jwt")
    for text, message in (("[]", "is no JSON Web Key Set"), ('{"keys": []}', "cannot be used")):
        (tmp_path / "rules").mkdir(exist_ok=True)
        (tmp_path / "rules" / "jwks.json").write_text(text)
        problems = load(tmp_path, f"{{jwt: {{{ISSUER}, jwks: jwks.json}}}}").errors
        assert any(message in str(problem) for problem in problems), problems


@pytest.mark.parametrize(
    "route, message",
    [
        ("allow: {tenant: acme}", "route 'all' has 'allow', and the rules have no 'auth'"),
        ("refuse: {}", "route 'all' names nobody"),
        ("allow: [{tenants: a}]", "unknown key 'tenants' in allow: did you mean 'tenant'?"),
    ],
)
def test_errors_of_access(tmp_path: Path, route: str, message: str) -> None:
    """`allow` and `refuse` need `auth:`, and somebody whom they name."""
    text = RULES.replace("engine: it}", f"engine: it, {route}}}")
    file = tmp_path / "rules.yaml"
    file.write_text(text)
    assert any(message in str(problem) for problem in load_rules([file]).errors), load_rules([file]).problems


def test_rules_that_go_by_a_credential(tmp_path: Path) -> None:
    """Credentials are taken out of requests: a rule that reads one would never hold, and others would take its
    requests."""
    text = RULES.replace("engine: it}", "engine: it, match: {header: {Authorization: x}}}")
    limits = "limits: [{name: l, per: ['header:x-api-key'], concurrency: 1}]\n"
    (tmp_path / "keys.yml").write_text("")
    file = tmp_path / "rules.yaml"
    file.write_text(f"{text}auth: {{keys: keys.yml}}\n{limits}")
    found = [str(problem) for problem in load_rules([file]).errors]
    assert any(
        "route 'all' matches header 'authorization', which 'auth' takes out of requests" in each for each in found
    )
    assert any("limit 'l' is per header 'x-api-key'" in each and "use 'per: key'" in each for each in found)
    file.write_text(text + limits)
    assert not load_rules([file]).errors


@pytest.mark.parametrize(
    "key, field",
    [
        *(("tenant_header", field) for field in ("authorization", "X-Api-Key", "host", "x-request-id", "content-type")),
        *(("session_header", field) for field in ("authorization", "api-key")),
    ],
)
def test_identity_has_fields_of_its_own(tmp_path: Path, key: str, field: str) -> None:
    """With `auth:`, neither the tenant nor the session is in a field that authentication takes out, and the tenant,
    which the gateway writes, in none that has another meaning."""
    file = tmp_path / "rules.yaml"
    (tmp_path / "keys.yml").write_text("")
    text = RULES + f"identity: {{{key}: {field}}}\n"
    file.write_text(f"{text}auth: {{keys: keys.yml}}\n")
    (problem,) = load_rules([file]).errors
    assert f"{key} {field.lower()!r} has another meaning" in str(problem) and "rules.yaml:" in str(problem)
    file.write_text(text)
    assert not load_rules([file]).errors


@pytest.mark.parametrize(
    "engine, auth, message",
    [
        ("protocol: openai", "", "the rules have no 'auth'"),
        ("protocol: kserve", "auth: {keys: keys.yml}", "it is for protocol openai"),
        ("protocol: openai, dialects: [chat, messages]", "auth: {keys: keys.yml}", "leave 'messages' out"),
        ("protocol: openai", "auth: {keys: keys.yml}", ""),
    ],
)
def test_salts_of_tenants_need_a_place(tmp_path: Path, engine: str, auth: str, message: str) -> None:
    """`cache_salt: tenant` needs a verified tenant and APIs that have the field."""
    (tmp_path / "keys.yml").write_text("")
    file = tmp_path / "rules.yaml"
    text = RULES.replace("'http://h:1']", f"'http://h:1'], cache_salt: tenant, {engine}")
    file.write_text(f"{text}{auth}\n")
    found = [str(problem) for problem in load_rules([file]).errors]
    assert len(found) == bool(message)
    assert not message or ("engine 'it' has 'cache_salt: tenant'" in found[0] and message in found[0])


@pytest.mark.parametrize(
    "name, warns",
    [("ann", True), ("ann*", True), ("0123456789ab", False), ("01*", False), ("sub:ann", False), ("*", False)],
)
def test_names_that_no_caller_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, warns: bool) -> None:
    """A bare subject in `allow` or `refuse` names nobody, and `check` says so: subjects have `sub:` before."""
    monkeypatch.setattr("gateway.config.auth.find_spec", lambda name: name)
    (tmp_path / "keys.yaml").write_text(KEY)
    file = tmp_path / "rules.yaml"
    for where in ("allow", "refuse"):
        rules = RULES.replace("engine: it}", f"engine: it, {where}: {{key: '{name}'}}}}")
        for auth in ("keys: keys.yaml", f"keys: keys.yaml, jwt: {{{ISSUER}, {AT}}}"):
            file.write_text(f"{rules}auth: {{{auth}}}\n")
            found = [str(each) for each in load_rules([file]).problems]
            if not warns or "jwt" not in auth:
                assert not found
            else:
                (text,) = found
                assert "rules.yaml:3:" in text and "warning" in text
                assert f"route 'all': {where} names key {name!r}, which no caller has" in text
                assert f"'sub:{name}'" in text


def test_proxies_are_networks(tmp_path: Path) -> None:
    """An address or a network of IPv4 or IPv6; anything else is named."""
    file = tmp_path / "rules.yaml"
    file.write_text(RULES + "identity: {trusted_proxies: [10.0.0.1, 'fd00::/8', 10.0.0.1/8]}\n")
    assert "'10.0.0.1/8' is not an address or a network" in str(load_rules([file]).errors)


def test_forwarded_certificates_need_names_and_proxies(tmp_path: Path) -> None:
    """Without names no certificate identifies a caller, and without proxies nobody may forward one."""
    errors = [str(error) for error in load(tmp_path, "{keys: keys.yaml, forwarded_certificates: true}").errors]
    assert [error.partition("error: ")[2] for error in errors] == [
        "auth has 'forwarded_certificates', and no 'certificates' that name their callers",
        "auth has 'forwarded_certificates', and nobody may forward any: name the proxies in 'identity: "
        "{trusted_proxies: ...}'",
    ]


def test_an_empty_file_admits_nobody(tmp_path: Path) -> None:
    """A file without a key is valid, so that the last key can be taken out."""
    rules = load(tmp_path, "{keys: keys.yaml}", "# none\n").rules
    assert rules is not None and rules.auth is not None and rules.auth.keys[0].keys == ()
