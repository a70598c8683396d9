"""TLS files: what is wrong with them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trustme

from gateway.cli.check import check
from gateway.net.listener_tls import ListenerTls, listener_problems
from gateway.yaml.problems import Severity

TODAY = datetime.now(UTC)


def issue(folder: Path, name: str, *, days: float = 365) -> None:
    """Write a certificate that ends in so many days, and its key."""
    issued = trustme.CA().issue_cert(
        f"{name}.test", not_before=TODAY - timedelta(400), not_after=TODAY + timedelta(days)
    )
    (folder / f"{name}.pem").write_bytes(b"".join(pem.bytes() for pem in issued.cert_chain_pems))
    issued.private_key_pem.write_to_path(folder / f"{name}.key")


@pytest.mark.parametrize(
    ("tls", "problem"),
    [
        ("ca: nowhere.pem", "error: engine 'e': tls.ca (nowhere.pem) cannot be read: No such file or directory"),
        ("ca: junk.pem", "error: engine 'e': tls.ca (junk.pem) holds no PEM certificate"),
        ("cert: junk.pem, key: a.key", "error: engine 'e': tls.cert (junk.pem) holds no PEM certificate"),
        (
            "cert: a.pem, key: no.key",
            "error: engine 'e': tls.key (no.key) cannot be read: No such file or directory",
        ),
        ("cert: a.pem, key: b.key", "error: engine 'e': tls.cert (a.pem) and tls.key (b.key) do not fit"),
        ("cert: a.pem", "error: engine 'e': tls.cert (a.pem) and tls.key (a.pem) do not fit"),
        ("cert: old.pem, key: old.key", "warning: engine 'e': the certificate old.pem (tls.cert) expired on "),
        ("cert: soon.pem, key: soon.key", "warning: engine 'e': the certificate soon.pem (tls.cert) expires on "),
        ("cert: a.pem, key: a.key", ""),
    ],
)
def test_check_reads_the_files_of_engines(
    tls: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`pointsman check` names file, line, option and reason; certificates that end soon are warnings."""
    monkeypatch.chdir(tmp_path)
    for name, days in (("a", 365), ("b", 365), ("old", -2), ("soon", 9.5)):
        issue(tmp_path, name, days=days)
    Path("junk.pem").write_text("junk")
    Path("rules.yaml").write_text(
        f"version: 1\nengines: {{e: {{endpoints: 'https://a', tls: {{{tls}}}}}}}\nroutes: [{{name: r, engine: e}}]\n"
    )
    assert check([Path("rules.yaml")]) == (1 if problem.startswith("error") else 0)
    *found, _ = capsys.readouterr().out.splitlines()
    assert [line.startswith(f"rules.yaml:2:11: {problem}") for line in found] == ([True] if problem else [])


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ("activator: {url: 'https://a/', tls: {ca: no.pem}}", "activator.tls.ca (no.pem) cannot be read"),
        ("activator: {url: 'https://a/', tls: {cert: a.pem}}", "activator.tls.cert (a.pem) and activator.tls.key"),
        (
            "endpoints: [{kubernetes: {service: s, namespace: n, api: 'https://a', ca: junk.pem}}]",
            "endpoints.kubernetes.ca (FOLDER/junk.pem) holds no PEM certificate",
        ),
    ],
)
def test_check_reads_the_files_of_activators_and_sources(
    options: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`pointsman check` reads what the control process connects with, too, and names the key by its place."""
    monkeypatch.chdir(tmp_path)
    issue(tmp_path, "a")
    Path("junk.pem").write_text("junk")
    options += "" if "endpoints" in options else ", endpoints: 'http://a', wait_for_endpoint: 1s"
    Path("rules.yaml").write_text(f"version: 1\nengines: {{e: {{{options}}}}}\nroutes: [{{name: r, engine: e}}]\n")
    assert check([Path("rules.yaml")]) == 1
    problem = problem.replace("FOLDER", str(tmp_path))
    assert f"rules.yaml:2:11: error: engine 'e': {problem}" in capsys.readouterr().out


def test_a_listeners_files_are_named_by_their_options(tmp_path: Path) -> None:
    """Problems of a listener name the option of the command line; ciphers that OpenSSL does not know are one."""
    issue(tmp_path, "a")
    cert, key, nowhere = str(tmp_path / "a.pem"), str(tmp_path / "a.key"), str(tmp_path / "nowhere.pem")
    spec = ListenerTls((cert, nowhere), (key, key), nowhere, ciphers="NONE-OF-THESE")
    assert listener_problems(spec) == [
        (Severity.ERROR, f"--tls-cert ({nowhere}) cannot be read: No such file or directory"),
        (Severity.ERROR, f"--tls-client-ca ({nowhere}) cannot be read: No such file or directory"),
        (Severity.ERROR, "--tls-ciphers: OpenSSL knows none of 'NONE-OF-THESE'"),
    ]
    assert listener_problems(ListenerTls((cert,), (key,), ciphers="ECDHE+AESGCM")) == []
