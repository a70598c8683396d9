"""TLS on both sides."""

import ssl
from pathlib import Path

import trustme

from gateway.config.settings import ListenerTls
from gateway.worker.process import listener_tls
from tests.dataplane.stage import Engine, post, rules, run, stage


def files(tmp_path: Path, authority: trustme.CA) -> ListenerTls:
    """Write a certificate for 127.0.0.1 and the authority's own certificate to files."""
    issued = authority.issue_cert("127.0.0.1", "localhost")
    issued.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    issued.private_key_pem.write_to_path(tmp_path / "key.pem")
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    return ListenerTls(str(tmp_path / "cert.pem"), str(tmp_path / "key.pem"))


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
    context = listener_tls(ListenerTls(listener.cert, listener.key, str(tmp_path / "ca.pem")))
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
