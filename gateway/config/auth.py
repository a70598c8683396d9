"""The `auth:` section, and the files of API keys that it names."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

from gateway.config.auth_specs import (
    CREDENTIAL_HEADERS,
    ApiKeySpec,
    AuthSpec,
    CertificateSpec,
    JwksSpec,
    JwtSpec,
    KeyFileSpec,
)
from gateway.config.globs import covers
from gateway.config.host_access import read_settled
from gateway.config.specs import RulesSpec
from gateway.protocol.jwks import read_key_set
from gateway.yaml.nodes import Items, Node, Scalar, read_yaml
from gateway.yaml.readers import Reading, expected, one_or_many, record_of, scalar

_KEY = record_of("a key", ApiKeySpec)
_PREFIXES = ("sub:", "cert:")  # of the keys of callers that are known by a token or a certificate
# Fields in which no tenant can stand: the gateway reads them, or engines do.
_OTHER_FIELDS = frozenset({"content-type", "host", "inference-header-content-length", "x-request-id"})
_ID = re.compile(r"\b[0-9a-f]{12}\b")
_COMMENT = re.compile(r"(?m)(^|\s)#.*$")


def read_key_file(path: Path, reading: Reading) -> tuple[ApiKeySpec, ...]:
    """The keys of a file, which is empty or has a list of them.

    Raises: OSError, UnicodeDecodeError.
    """
    root = read_yaml(read_settled(path)[0].decode("utf-8"), str(path), {}, reading.problems)
    if isinstance(root, Scalar) and root.is_null:  # an empty file admits nobody
        return ()
    if not isinstance(root, Items):
        expected(root, "a list of keys", reading)
        return ()
    keys = [key for node in root.nodes if (key := _KEY(node, reading)) is not None]
    for key in keys:
        assert key.location is not None
        reading.declare("key id", key.id, key.location)
    return tuple(keys)


def still_named(file: KeyFileSpec) -> tuple[ApiKeySpec, ...]:
    """The keys whose ids the file still has outside of comments, where its content cannot be read as keys any more. A
    file that is gone, as while it is being replaced, has removed none."""
    try:
        text = read_settled(Path(file.path))[0].decode("utf-8", "replace")
    except OSError:
        return file.keys
    named = set(_ID.findall(_COMMENT.sub("", text)))
    return tuple(key for key in file.keys if key.id in named)


def confined_path(node: Scalar, reading: Reading) -> Path | None:
    """The file that a text names, relative to the folder of the rule file, which it must be in."""
    folder = Path(node.location.file).parent
    try:
        path = (folder / node.text).resolve()
        is_inside = path.is_relative_to(folder.resolve())
    except (OSError, RuntimeError, ValueError) as error:  # links in a circle, a NUL in the path
        reading.error(node.location, f"{node.text!r} is not a path: {error}")
        return None
    if not is_inside:
        reading.error(node.location, f"{node.text!r} is outside of the rule file's folder: put the file into {folder}")
        return None
    reading.followed_files[str(folder / node.text)] = None
    return folder / node.text


def _key_file(node: Node, reading: Reading) -> KeyFileSpec | None:
    if scalar(str)(node, reading) is None or not isinstance(node, Scalar):
        return None
    path = confined_path(node, reading)
    if path is None:
        return None
    try:
        return KeyFileSpec(str(path), read_key_file(path, reading))
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        reading.error(node.location, f"the key file {node.text!r} cannot be read: {why}")
        return None


def check_access(rules: RulesSpec, reading: Reading) -> None:
    """Without `auth:` nobody is known, so nobody could be let in or kept out."""
    if "auth" in reading.declared.get("section", {}):
        return
    for route in rules.routes:
        if route.allow or route.refuse:
            assert route.location is not None
            key = "allow" if route.allow else "refuse"
            what = f"route {route.name!r} has {key!r}, and the rules have no 'auth': nobody would be known"
            reading.error(route.location, what)


def check_keys(rules: RulesSpec, reading: Reading) -> None:
    """Where callers are known by tokens or certificates, a key in `allow` or `refuse` without its prefix names nobody.
    Keys in Redis are not known here."""
    auth = rules.auth
    if auth is None or auth.redis_keys:
        return
    prefixes = [prefix for prefix, specs in (("sub:", auth.jwt), ("cert:", auth.certificates)) if specs]
    ids = [key.id for file in auth.keys for key in file.keys]
    for route in rules.routes:
        for where, specs in (("allow", route.allow), ("refuse", route.refuse)):
            for name in [name for spec in specs for name in spec.key] if prefixes else ():
                if not _may_name_a_caller(name, ids):
                    assert route.location is not None
                    cure = " or ".join(repr(prefix + name) for prefix in prefixes)
                    what = f"route {route.name!r}: {where} names key {name!r}, which no caller has: write {cure}"
                    reading.warn(route.location, f"{what}, or the id of a key in the files")


def _may_name_a_caller(name: str, ids: list[str]) -> bool:
    """Whether a glob of `key` names one of these keys, or what a token or a certificate may have."""
    if name.startswith(_PREFIXES) or "[" in name or any(covers(name, id) for id in ids):
        return True
    beginning = name.partition("*")[0].partition("?")[0]
    return beginning != name and any(prefix.startswith(beginning) for prefix in _PREFIXES)


def check_cache_salts(rules: RulesSpec, reading: Reading) -> None:
    """A tenant's salt needs a verified tenant, and an engine that has a place for it in each request."""
    for engine in rules.engines.values():
        if engine.cache_salt != "tenant":
            continue
        if rules.auth is None:
            why = "the rules have no 'auth', by which a tenant is known"
        elif not engine.protocol.traits.has_dialects:
            why = "it is for protocol openai"
        elif "messages" in engine.dialects:
            why = "messages have no such field: leave 'messages' out of its dialects, so that they are translated"
        else:
            continue
        assert engine.location is not None
        reading.error(engine.location, f"engine {engine.name!r} has 'cache_salt: tenant', and {why}")


def check_identity(rules: RulesSpec, reading: Reading) -> None:
    """Authentication takes credentials out of requests, and writes the tenant into them."""
    if rules.auth is None:
        return
    taken = CREDENTIAL_HEADERS if rules.auth.reads_credentials else frozenset[str]()
    for key, name, others in (
        ("tenant_header", rules.identity.tenant_header, _OTHER_FIELDS),
        ("session_header", rules.identity.session_header, frozenset[str]()),
    ):
        if name in taken | others:
            place = reading.declared["section"]["identity"]
            reading.error(
                place, f"{key} {name!r} has another meaning: name a field for this alone, such as x-{key[:-7]}"
            )


def check_forwarded_certificates(rules: RulesSpec, reading: Reading) -> None:
    """Names in `x-forwarded-client-cert` are those of a caller where a trusted proxy says so, and rules know them."""
    auth = rules.auth
    if auth is None or not auth.forwarded_certificates:
        return
    assert auth.location is not None
    if not auth.certificates:
        reading.error(auth.location, "auth has 'forwarded_certificates', and no 'certificates' that name their callers")
    if not rules.identity.trusted_proxies:
        what = "auth has 'forwarded_certificates', and nobody may forward any: name the proxies"
        reading.error(auth.location, f"{what} in 'identity: {{trusted_proxies: ...}}'")


def check_credentials(rules: RulesSpec, reading: Reading) -> None:
    """Authentication takes credentials out of requests: rules that go by such a header would never hold."""
    if rules.auth is None or not rules.auth.reads_credentials:
        return
    for route in rules.routes:
        for name in CREDENTIAL_HEADERS & route.match.header.keys():
            assert route.location is not None
            cure = "use 'match: {tenant: ...}', or 'allow: {key: ...}'"
            what = f"route {route.name!r} matches header {name!r}, which 'auth' takes out of requests: {cure}"
            reading.error(route.location, what)
    for kind, limits in (("limit", rules.limits), ("budget", rules.budgets)):
        for limit in limits:
            for name in CREDENTIAL_HEADERS:
                if f"header:{name}" in limit.per:
                    assert limit.location is not None
                    what = f"{kind} {limit.name!r} is per header {name!r}, which 'auth' takes out of requests"
                    reading.error(limit.location, f"{what}: use 'per: key'")


def check_conversations(rules: RulesSpec, reading: Reading) -> None:
    """Without a verified caller, whoever names a session and a tenant reads and replaces its conversation."""
    if rules.auth is not None or rules.identity.trust_header:
        return
    for route in rules.routes:
        if route.session.history is not None:
            assert route.location is not None
            header = rules.identity.tenant_header
            what = f"route {route.name!r} keeps conversations, and anybody who names a session gets it: add 'auth', or"
            cure = f"'identity: {{trust_header: true}}' where a proxy in front sets {header} and the session"
            reading.error(route.location, f"{what} {cure}")


def _jwks(node: Node, reading: Reading) -> JwksSpec | None:
    if scalar(str)(node, reading) is None or not isinstance(node, Scalar):
        return None
    scheme, separator, rest = node.text.partition("://")
    if separator:
        host = urlsplit(node.text).hostname
        if rest and (scheme == "https" or (scheme == "http" and host in ("localhost", "127.0.0.1", "::1"))):
            return JwksSpec(url=node.text)
        reading.error(node.location, f"{node.text!r} is no https URL: who answers it decides who may call")
        return None
    path = confined_path(node, reading)
    if path is None:
        return None
    try:
        return JwksSpec(path=str(path), text=read_settled(path)[0].decode("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        reading.error(node.location, f"the key set {node.text!r} cannot be read: {why}")
        return None


def _jwt(node: Node, reading: Reading) -> JwtSpec | None:
    spec = _JWT(node, reading)
    if spec is None:
        return None
    if find_spec("jwt") is None or find_spec("cryptography") is None:
        what = "tokens need PyJWT and cryptography, which are not installed: pip install 'pointsman[jwt]'"
        reading.error(node.location, what)
    elif spec.jwks.path:
        try:
            read_key_set(spec.jwks.text, spec.algorithms)
        except ValueError as error:
            reading.error(node.location, f"the key set {spec.jwks.path} cannot be used: {error}")
    return spec


def _certificate(node: Node, reading: Reading) -> CertificateSpec | None:
    spec = _CERTIFICATE(node, reading)
    if spec is None:
        return None
    if len(spec.kinds) != 1:
        reading.error(node.location, "a certificate has one name: of 'uri', 'dns', 'email' and 'subject'")
    elif (num_tenants := spec.name.count("{tenant}")) + bool(spec.tenant) != 1:
        cure = "write 'tenant', or '{tenant}' once for a part of the name"
        what = "several tenants" if num_tenants else "no tenant"
        reading.error(node.location, f"certificates with the name {spec.name!r} have {what}: {cure}")
    else:
        return spec
    return None


_JWT = record_of("an issuer", JwtSpec, jwks=_jwks)
_CERTIFICATE = record_of("a certificate", CertificateSpec)
_AUTH = record_of(
    "auth",
    AuthSpec,
    keys=one_or_many(_key_file),
    jwt=one_or_many(_jwt),
    certificates=one_or_many(_certificate),
)


def read_auth(node: Node, reading: Reading) -> AuthSpec | None:
    """Read the section with the files that it names."""
    auth = _AUTH(node, reading)
    if auth is None:
        return None
    if not auth.reads_credentials and not auth.certificates:
        needed = "it needs 'keys', 'redis_keys', 'jwt' or 'certificates'"
        reading.error(node.location, f"auth names nothing that a caller could be known by: {needed}")
    for spec in auth.jwt:
        assert spec.location is not None
        reading.declare("issuer", spec.issuer, spec.location)
    return auth
