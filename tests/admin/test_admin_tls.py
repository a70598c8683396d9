"""TLS on the admin port, its certificates, and commands that use it."""

import socket
import ssl
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import trustme

from tests.support.command_line import pointsman
from tests.support.servers import GatewayProcess
from tests.support.waiting import eventually

RULES = "{version: 1, engines: {it: {endpoints: ['http://127.0.0.1:1']}}, routes: [{name: all, engine: it}]}"


@dataclass
class Site:
    """A gateway whose admin port has TLS and asks for certificates, and the files of its authority."""

    gateway: GatewayProcess
    authority: trustme.CA
    folder: Path

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.gateway.admin_port}"

    def run(self, *options: str) -> subprocess.CompletedProcess[str]:
        return pointsman("engines", "--admin", self.url, *options)

    def context(self) -> ssl.SSLContext:
        trusting = ssl.create_default_context()
        self.authority.configure_trust(trusting)
        trusting.load_cert_chain(self.folder / "me.pem")
        return trusting


def issue(authority: trustme.CA, folder: Path) -> None:
    issued = authority.issue_cert("127.0.0.1")
    issued.private_key_pem.write_to_path(folder / "key.pem")
    issued.cert_chain_pems[0].write_to_path(folder / "cert.pem")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder, authority = tmp_path_factory.mktemp("tls"), trustme.CA()
    issue(authority, folder)
    authority.cert_pem.write_to_path(folder / "ca.pem")
    authority.issue_cert("me").private_key_and_cert_chain_pem.write_to_path(folder / "me.pem")
    options = [f"--admin-tls-{option}={folder}/{option}.pem" for option in ("cert", "key")]
    options.append(f"--admin-tls-client-ca={folder}/ca.pem")
    gateway = GatewayProcess.start(RULES, folder / "g", extra_args=options).wait_ready()
    yield Site(gateway, authority, folder)
    gateway.stop()


def test_the_admin_port_has_tls(site: Site) -> None:
    """Calls go by HTTPS, and need the key as before; plain HTTP and callers without a certificate get nothing."""
    auth = ("any", site.gateway.admin_key)
    with httpx.Client(verify=site.context(), trust_env=False, timeout=120) as client:
        assert client.get(f"{site.url}/engines", auth=auth).status_code == 200
        assert client.get(f"{site.url}/engines").status_code == 401
        assert client.get(f"{site.url}/metrics").status_code == 200
    unknown = ssl.create_default_context()
    site.authority.configure_trust(unknown)
    for url in (site.url, site.gateway.page_url):
        with httpx.Client(verify=unknown, trust_env=False, timeout=120) as client, pytest.raises(httpx.TransportError):
            client.get(f"{url}/engines", auth=auth)
    assert f"page       {site.url}/" in site.gateway.log()


def test_commands_reach_it(site: Site) -> None:
    """`--ca` and `--cert` are for https:// addresses; without the authority the certificate is refused, in a line. The
    Unix socket needs neither."""
    files = ["--ca", str(site.folder / "ca.pem"), "--cert", str(site.folder / "me.pem")]
    key = ["--key", site.gateway.admin_key]
    assert "127.0.0.1:1" in site.run(*files, *key).stdout
    refused = site.run(*key)
    assert (refused.returncode, "CERTIFICATE_VERIFY_FAILED" in refused.stderr) == (1, True)
    absent = site.run("--ca", "nowhere.pem", *key)
    assert (absent.returncode, "Traceback" in absent.stderr) == (1, False)
    assert "127.0.0.1:1" in site.run("--data-dir", str(site.gateway.data_dir)).stdout


def test_a_new_certificate_is_used_without_a_restart(site: Site) -> None:
    """Connections that come after the file has changed get the new certificate."""

    def shown() -> bytes | None:
        with (
            socket.create_connection(("127.0.0.1", site.gateway.admin_port), 60) as plain,
            site.context().wrap_socket(plain, server_hostname="127.0.0.1") as connection,
        ):
            return connection.getpeercert(True)

    before = shown()
    issue(site.authority, site.folder)
    eventually(lambda: shown() != before)
