"""TLS on both sides."""

import asyncio
import contextlib
import socket
import ssl
from pathlib import Path

import pytest
import trustme

from gateway.config.engine_specs import TlsSpec
from gateway.net.listener_tls import ListenerTls, listener_tls
from gateway.net.tls_files import reload_changed
from gateway.upstream.tls import client_tls
from tests.dataplane.stage import Engine, post, rules, run, stage


def files(tmp_path: Path, authority: trustme.CA) -> ListenerTls:
    """Write a certificate for 127.0.0.1 and the authority's own certificate to files."""
    issued = authority.issue_cert("127.0.0.1", "localhost")
    issued.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    issued.private_key_pem.write_to_path(tmp_path / "key.pem")
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    return ListenerTls((str(tmp_path / "cert.pem"),), (str(tmp_path / "key.pem"),))


def test_tls_on_the_listener(tmp_path: Path) -> None:
    """The gateway serves clients under TLS, large bodies included; the engine gets `x-forwarded-proto: https`."""
    authority = trustme.CA()
    context = listener_tls(files(tmp_path, authority))
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)

    async def scene() -> None:
        engine = Engine()
        await engine.start()
        async with stage(rules(engine), tmp_path, listener_ssl=context) as it:
            client = await it.client(ssl=trusting)
            for size in (2, 3_000_000):
                assert (await client.ask(post(body=bytes(size)))).status == 200
            assert [len(received.body) for received in engine.received] == [2, 3_000_000]
            assert engine.received[0].value("x-forwarded-proto") == "https"
        engine.stop()

    run(scene())


def test_clients_can_be_asked_for_a_certificate(tmp_path: Path) -> None:
    """With --tls-client-ca only clients that show a certificate of that authority are served."""
    authority = trustme.CA()
    listener = files(tmp_path, authority)
    context = listener_tls(ListenerTls(listener.certs, listener.keys, str(tmp_path / "ca.pem")))
    stranger, member = ssl.create_default_context(), ssl.create_default_context()
    for side in (stranger, member):
        authority.configure_trust(side)
    authority.issue_cert("client").configure_cert(member)

    async def scene() -> None:
        engine = Engine()
        await engine.start()
        async with stage(rules(engine), tmp_path, listener_ssl=context) as it:
            assert (await (await it.client(ssl=member)).ask(post())).status == 200
            try:
                client = await it.client(ssl=stranger)
                await client.send(post())
                assert await client.at_end()
            except (ssl.SSLError, ConnectionError):
                pass
            assert len(engine.received) == 1
        engine.stop()

    run(scene())


def test_tls_to_an_engine(tmp_path: Path) -> None:
    """An https engine is called under TLS if its certificate is trusted; otherwise the client gets 502 with the
    reason."""
    authority = trustme.CA()
    context = listener_tls(files(tmp_path, authority))

    async def scene() -> None:
        engine = Engine()
        await engine.start(ssl=context)
        async with stage(rules(engine, options=f"tls: {{ca: {tmp_path / 'ca.pem'}}}"), tmp_path) as it:
            assert (await it.ask(post(body=bytes(1_000_000)))).status == 200
        async with stage(rules(engine, options="retry: {attempts: 0}"), tmp_path) as it:
            reply = await it.ask(post())
            assert (reply.status, reply.reason) == (502, "upstream_connect")
            assert b"TLS handshake failed" in reply.body
        async with stage(rules(engine, options="tls: {verify: false}"), tmp_path) as it:
            assert (await it.ask(post())).status == 200
        assert len(engine.received) == 2
        engine.stop()

    run(scene())


def issue(folder: Path, authority: trustme.CA, name: str, *names: str) -> tuple[str, str]:
    """Write a certificate for these names, and its key. Returns: their paths."""
    issued = authority.issue_cert(*names)
    cert, key = folder / f"{name}.pem", folder / f"{name}.key"
    cert.write_bytes(b"".join(pem.bytes() for pem in issued.cert_chain_pems))
    issued.private_key_pem.write_to_path(key)
    return str(cert), str(key)


def names_of(context: ssl.SSLContext, trusting: ssl.SSLContext, server_name: str | None) -> set[str]:
    """The names of the certificate that a listener shows to a client that asks for a server name, in memory."""
    sides = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = trusting.wrap_bio(sides[0], sides[1], server_hostname=server_name)
    server = context.wrap_bio(sides[1], sides[0], server_side=True)
    waiting = [client, server]
    while waiting:
        for side in list(waiting):
            with contextlib.suppress(ssl.SSLWantReadError):
                side.do_handshake()
                waiting.remove(side)
    return {value for _, value in client.getpeercert()["subjectAltName"]}  # type: ignore[index, misc]


def trusting_of(authority: trustme.CA) -> ssl.SSLContext:
    trusting = ssl.create_default_context()
    trusting.check_hostname = False
    authority.configure_trust(trusting)
    return trusting


def test_a_certificate_is_chosen_by_its_name(tmp_path: Path) -> None:
    """A client gets the certificate of the name that it asks for, by a wildcard of one label too, and the first one
    where none has it or it asks for none."""
    authority = trustme.CA()
    pairs = [issue(tmp_path, authority, "a", "a.test"), issue(tmp_path, authority, "b", "b.test", "*.c.test")]
    context = listener_tls(ListenerTls(tuple(cert for cert, _ in pairs), tuple(key for _, key in pairs)))
    trusting = trusting_of(authority)
    asked = "a.test", "b.test", "x.c.test", "y.x.c.test", "z.test"
    shown = {name: names_of(context, trusting, name) for name in asked}
    first, second = {"a.test"}, {"b.test", "*.c.test"}
    assert shown == {"a.test": first, "b.test": second, "x.c.test": second, "y.x.c.test": first, "z.test": first}
    assert names_of(context, trusting, None) == first


def test_a_server_name_that_is_not_ascii_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A client that names the server in other bytes gets an alert; the log has a line and no traceback."""
    tracebacks: list[object] = []
    monkeypatch.setattr("sys.unraisablehook", tracebacks.append)
    authority = trustme.CA()
    context = listener_tls(files(tmp_path, authority))
    hello, reply = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = trusting_of(authority).wrap_bio(ssl.MemoryBIO(), hello, server_hostname="name.test")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    received = ssl.MemoryBIO()
    received.write(hello.read().replace(b"name.test", b"n\xe4me.test"))
    with pytest.raises(ssl.SSLError):
        context.wrap_bio(received, reply, server_side=True).do_handshake()
    assert "its server name (SNI) is not ASCII" in caplog.text
    assert reply.pending and not tracebacks


def test_a_replaced_certificate_is_in_use_for_new_connections(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A listener takes a renewed certificate over while an open connection goes on; while only one of the two files is
    replaced, the former pair stays in use."""
    authority = trustme.CA()
    cert, key = issue(tmp_path, authority, "it", "127.0.0.1", "old.test")
    context = listener_tls(ListenerTls((cert,), (key,)))
    trusting = trusting_of(authority)
    renewed = [Path(path).read_bytes() for path in issue(tmp_path, authority, "new", "127.0.0.1", "new.test")]

    async def scene() -> None:
        engine = Engine()
        await engine.start()
        async with stage(rules(engine), tmp_path, listener_ssl=context) as it:
            client = await it.client(ssl=trusting)
            assert (await client.ask(post())).status == 200
            Path(cert).write_bytes(renewed[0])
            reload_changed()
            assert "the former stay in use" in caplog.text
            assert "old.test" in names_of(context, trusting, None)
            Path(key).write_bytes(renewed[1])
            reload_changed()
            assert "new.test" in names_of(context, trusting, None)
            assert (await client.ask(post())).status == 200
            assert (await (await it.client(ssl=trusting)).ask(post())).status == 200
        engine.stop()

    run(scene())


def test_an_authority_that_is_removed_is_not_trusted_any_more(tmp_path: Path) -> None:
    """The authority of client certificates is replaced with its file."""
    before, after = trustme.CA(), trustme.CA()
    cert, key = issue(tmp_path, before, "it", "it.test")
    before.cert_pem.write_to_path(tmp_path / "ca.pem")
    context = listener_tls(ListenerTls((cert,), (key,), str(tmp_path / "ca.pem"), "1.2"))
    sides = {authority: trusting_of(before) for authority in (before, after)}
    for authority, side in sides.items():
        side.maximum_version = ssl.TLSVersion.TLSv1_2  # whose handshake ends after the client's certificate is judged
        authority.issue_cert("client").configure_cert(side)
    assert names_of(context, sides[before], None) == {"it.test"}
    after.cert_pem.write_to_path(tmp_path / "ca.pem")
    reload_changed()
    assert names_of(context, sides[after], None) == {"it.test"}
    with pytest.raises(ssl.SSLError):
        names_of(context, sides[before], None)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_session_does_not_outlive_its_authority(tmp_path: Path, version: ssl.TLSVersion) -> None:
    """A client whose authority was removed is refused when it resumes a session from before, too."""
    before, after = trustme.CA(), trustme.CA()
    cert, key = issue(tmp_path, before, "it", "it.test")
    before.cert_pem.write_to_path(tmp_path / "ca.pem")
    context = listener_tls(ListenerTls((cert,), (key,), str(tmp_path / "ca.pem")))
    trusting = trusting_of(before)
    trusting.minimum_version = trusting.maximum_version = version
    before.issue_cert("client").configure_cert(trusting)

    async def scene() -> None:
        engine = Engine()
        await engine.start()
        async with stage(rules(engine), tmp_path, listener_ssl=context) as it:

            def ask(session: ssl.SSLSession | None) -> ssl.SSLSession | None:
                """Raises: OSError where the client is refused."""
                with (
                    socket.create_connection(("127.0.0.1", it.port), timeout=120) as raw,
                    trusting.wrap_socket(raw, session=session) as client,
                ):
                    client.sendall(b"GET /v2/health/live HTTP/1.1\r\nhost: a\r\n\r\n")
                    reply = client.recv(100)
                    if not reply:
                        raise ConnectionError("closed without a reply")
                    assert reply.startswith(b"HTTP/1.1 200")
                    return client.session

            session = await asyncio.to_thread(ask, None)
            session = await asyncio.to_thread(ask, session)
            after.cert_pem.write_to_path(tmp_path / "ca.pem")
            reload_changed()
            for old in (None, session):
                with pytest.raises(OSError):
                    await asyncio.to_thread(ask, old)
        engine.stop()

    run(scene())


def test_a_replaced_client_certificate_reaches_the_engine(tmp_path: Path) -> None:
    """New connections to an engine show the renewed certificate, and those to an engine whose authority is added to the
    file are trusted."""
    authority, added = trustme.CA(), trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    cert, key = issue(tmp_path, authority, "gateway", "old.test")
    context = client_tls(TlsSpec(ca=str(tmp_path / "ca.pem"), cert=cert, key=key), "http/1.1")
    context.check_hostname = False

    def shown(issuer: trustme.CA) -> set[str]:
        server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        issuer.issue_cert("engine.test").configure_cert(server)
        server.verify_mode = ssl.CERT_REQUIRED
        authority.configure_trust(server)
        sides = ssl.MemoryBIO(), ssl.MemoryBIO()
        one = context.wrap_bio(sides[0], sides[1], server_hostname="engine.test")
        other = server.wrap_bio(sides[1], sides[0], server_side=True)
        waiting = [one, other]
        while waiting:
            for side in list(waiting):
                with contextlib.suppress(ssl.SSLWantReadError):
                    side.do_handshake()
                    waiting.remove(side)
        return {value for _, value in other.getpeercert()["subjectAltName"]}  # type: ignore[index, misc]

    assert shown(authority) == {"old.test"}
    with pytest.raises(ssl.SSLError):
        shown(added)
    for path, renewed in zip((cert, key), issue(tmp_path, authority, "new", "new.test"), strict=True):
        Path(path).write_bytes(Path(renewed).read_bytes())
    (tmp_path / "ca.pem").write_bytes(authority.cert_pem.bytes() + added.cert_pem.bytes())
    reload_changed()
    assert shown(authority) == {"new.test"} == shown(added)
