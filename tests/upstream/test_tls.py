"""TLS contexts, which endpoints share."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
import trustme

from gateway.config.engine_specs import EndpointSpec, EngineSpec, TlsSpec
from gateway.upstream import tls as tls_module
from gateway.upstream.engine import Engine
from gateway.upstream.tls import client_tls, engines_tls


def test_endpoints_of_the_same_settings_share_a_context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many endpoints of many engines read the authorities once for each protocol; other settings are another context,
    and so is a file that has been replaced. A context that no endpoint uses is freed."""
    made: list[str | None] = []
    make = ssl.create_default_context

    def counted(cafile: str | None) -> ssl.SSLContext:
        made.append(cafile)
        return make(cafile=cafile)

    monkeypatch.setattr(tls_module.ssl, "create_default_context", counted)
    ca = tmp_path / "ca.pem"
    trustme.CA().cert_pem.write_to_path(ca)
    spec = TlsSpec(ca=str(ca))
    urls = [EndpointSpec(f"https://e{at}:443", f"e{at}:444") for at in range(10)]
    engines = [Engine(EngineSpec(f"e{at}", tuple(urls), tls=TlsSpec(ca=str(ca)))) for at in range(10)]
    assert made == [str(ca)] * 2  # HTTP/1.1 and HTTP/2
    other = client_tls(TlsSpec(ca=str(ca), verify=False), "h2")
    assert len(made) == 3 and other is not client_tls(spec, "h2")
    first = client_tls(spec, "h2")
    trustme.CA().cert_pem.write_to_path(tmp_path / "new.pem")
    (tmp_path / "new.pem").rename(ca)
    assert client_tls(spec, "h2") is not first
    assert len(made) == 4
    engines.clear()
    del first, other
    assert not [key for key in tls_module._shared if key[0].ca == str(ca)]


def test_contexts_of_engines_are_those_of_encrypted_endpoints() -> None:
    """Engines without an encrypted endpoint need none."""
    assert engines_tls([EngineSpec("a", (EndpointSpec("http://a:1"),))]) == []
    assert len(engines_tls([EngineSpec("a", (EndpointSpec("grpcs://a:1", "a:1"),))])) == 2
