"""Declarations of `auth:`, and of who may use a route: created by `config.auth` and `config.routes`, immutable."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from ipaddress import IPv4Network, IPv6Network, ip_network
from math import inf
from typing import Annotated

from gateway.config.value_parsers import Glob, Text
from gateway.yaml import values
from gateway.yaml.problems import Location

_HASH = re.compile(r"sha256:([0-9a-f]{64})")


# Where clients send what they are known by: OpenAI's and others, Anthropic's, Azure's.
CREDENTIAL_HEADERS = frozenset({"authorization", "x-api-key", "api-key"})


def key_hash(text: str) -> bytes:
    """A key's SHA-256. Secrets have 256 random bits, so a slow or salted hash would add nothing. Errors do not quote
    the text: it may be the key itself."""
    found = _HASH.fullmatch(text)
    if found is None:
        raise ValueError("not a hash that `pointsman keys client add` has written: sha256: and 64 hexadecimal digits")
    return bytes.fromhex(found[1])


def moment(text: str) -> float:
    """A time in seconds since 1970: `2027-01-31`, `2027-01-31T12:00:00Z`; without a zone it is UTC."""
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a time: write 2027-01-31 or 2027-01-31T12:00:00Z") from None
    return (parsed if parsed.tzinfo is not None else parsed.replace(tzinfo=UTC)).timestamp()


key_id = values.matching(
    r"[0-9a-f]{12}", str, "{text!r} is not a key's id: 12 hexadecimal digits, as `pointsman keys client add` writes it"
)


@dataclass(frozen=True, slots=True)
class ApiKeySpec:
    """An entry of a file of API keys."""

    id: Annotated[str, key_id]  # public: logs, limits and rules name the key by it
    tenant: Text
    hash: Annotated[bytes, key_hash] = field(repr=False)
    name: Text = ""  # whose key it is, for people
    expires: Annotated[float, moment] = inf  # from then on it is refused
    location: Location | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class KeyFileSpec:
    """A file of API keys."""

    path: str
    keys: tuple[ApiKeySpec, ...]


@dataclass(frozen=True, slots=True)
class JwksSpec:
    """Where the public keys of an issuer are: at a URL, or in a file with this text."""

    url: str = ""
    path: str = ""
    text: str = ""


# Symmetric algorithms are not among them: their key would let the gateway sign.
ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "EdDSA")


@dataclass(frozen=True, slots=True)
class JwtSpec:
    """An issuer of JSON web tokens."""

    issuer: Text  # the claim `iss`
    audience: tuple[Text, ...]  # the claim `aud` has one of these
    jwks: JwksSpec  # its public keys: an https URL, or a file as `keys` has it
    # Of signatures that are accepted
    algorithms: tuple[Annotated[str, values.one_of(ALGORITHMS, "algorithm")], ...] = ("RS256",)
    tenant: Text = "tenant"  # the claim with the tenant
    leeway: Annotated[float, values.between(0.0, 300.0, values.duration)] = 30.0  # between the clocks of two machines
    refresh: Annotated[float, values.at_least(1.0, values.duration)] = 300.0  # the age at which keys are fetched again
    # Seconds between two fetches, however many tokens have an unknown key
    refresh_at_most: Annotated[float, values.at_least(0.1, values.duration)] = 10.0
    location: Location | None = field(default=None, compare=False)


# What separates the parts of a certificate's names of each kind: `*` matches within one part.
_SEPARATORS = {"uri": "/", "dns": ".", "email": "@", "subject": ","}
_WILDCARDS = re.compile(r"(\*\*|\*|\{tenant\})")


@dataclass(frozen=True, slots=True)
class CertificateSpec:
    """Client certificates that have a name: one of the first four, a text with `*` for any characters of one part,
    `**` for any, and `{tenant}` for one part that is the tenant."""

    uri: Text = ""  # a URI of the certificate's alternative names, as SPIFFE's
    dns: Text = ""  # a DNS name of these
    email: Text = ""  # an address of mail of these
    subject: Text = ""  # as RFC 4514 writes it: `CN=batch,O=Acme`
    tenant: Text = ""  # needed without `{tenant}`
    location: Location | None = field(default=None, compare=False)

    @property
    def kinds(self) -> list[str]:
        """Those of the names that are given; one, where it is valid."""
        return [kind for kind in _SEPARATORS if getattr(self, kind)]

    @property
    def kind(self) -> str:
        return self.kinds[0]

    @property
    def name(self) -> str:
        name: str = getattr(self, self.kind)
        return name.lower() if self.kind == "dns" else name

    @property
    def expression(self) -> str:
        """The regular expression of the name, as a whole."""
        part = f"[^{_SEPARATORS[self.kind]}]"
        wildcards = {"**": ".*", "*": f"{part}*", "{tenant}": rf"(?P<tenant>(?!\s){part}+(?<!\s))"}
        return "".join(wildcards.get(piece) or re.escape(piece) for piece in _WILDCARDS.split(self.name))


@dataclass(frozen=True, slots=True)
class AuthSpec:
    """`auth:`: who may call the inference ports."""

    keys: tuple[KeyFileSpec, ...] = ()  # named by their paths, relative to the rule file's folder and inside of it
    required: bool = True  # false: a request without a credential goes on without a principal
    jwt: tuple[JwtSpec, ...] = ()  # issuers whose tokens are taken
    certificates: tuple[CertificateSpec, ...] = ()  # clients' certificates, which the listener has verified
    # true: `x-forwarded-client-cert` of trusted proxies has the names of a certificate that the proxy has verified
    forwarded_certificates: bool = False
    redis_keys: bool = False  # true: API keys in Redis are valid, too
    # How long keys that were read from Redis stay valid while it cannot be read
    redis_outage: Annotated[float, values.between(0.0, 30 * 86400.0, values.duration)] = 3600.0
    forward: bool = False  # true: engines receive the credential that the gateway has verified
    location: Location | None = field(default=None, compare=False)

    @property
    def reads_credentials(self) -> bool:
        """Whether callers are known by a header, which is the gateway's then."""
        return bool(self.keys or self.jwt or self.redis_keys)


def network(text: str) -> IPv4Network | IPv6Network:
    """Addresses of peers: `10.0.0.0/8`, or one address."""
    try:
        return ip_network(text)
    except ValueError as error:
        raise ValueError(f"{text!r} is not an address or a network, as 10.0.0.0/8: {error}") from None


Network = Annotated[IPv4Network | IPv6Network, network]


@dataclass(frozen=True, slots=True)
class AccessSpec:
    """Callers; all keys must hold, and within one a list means any of. Texts are globs, case-sensitive."""

    tenant: tuple[Glob, ...] = ()  # of the caller
    key: tuple[Glob, ...] = ()  # ids of API keys, `sub:` and the subjects of tokens, `cert:` and names
    claim: Mapping[Text, tuple[Glob, ...]] = field(default_factory=dict)  # of a claim that is a list, any value
