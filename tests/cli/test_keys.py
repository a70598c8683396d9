"""`pointsman keys`, and a gateway that requires keys."""

from collections.abc import Callable
from pathlib import Path

import pytest

from gateway.admin.api_keys import read_keys
from tests.support import plain_http
from tests.support.command_line import pointsman
from tests.support.servers import GatewayProcess

RULES = "{version: 1, engines: {it: {endpoints: ['http://127.0.0.1:1']}}, routes: [{name: all, engine: it}]}"


def test_keys_are_made_listed_and_removed(tmp_path: Path, start_gateway: Callable[..., GatewayProcess]) -> None:
    """A key is printed once, alone on stdout; the file's comments stay, and a running gateway uses the change at
    once."""
    file = tmp_path / "keys.yaml"
    limits = ["--expires", "90d", "--scope", "engine:it", "--scope", "model:llama-*"]
    made = pointsman("keys", "add", "otto", "--role", "operator", "--file", str(file), *limits)
    assert made.returncode == 0, made.stderr
    key = made.stdout.strip()
    assert key.startswith("pm-") and key not in file.read_text()
    file.write_text("# who may\n" + file.read_text())
    assert pointsman("keys", "add", "vera", "--role", "viewer", "--file", str(file)).returncode == 0
    again = pointsman("keys", "add", "vera", "--role", "viewer", "--file", str(file))
    assert (again.returncode, "has a key of 'vera' already" in again.stderr) == (1, True)
    entry = pointsman("keys", "add", "anna", "--role", "admin", "--file", "-")
    file.write_text(file.read_text() + entry.stdout)
    assert {known.name for known in read_keys(file).values()} == {"otto", "vera", "anna"}
    listed = pointsman("keys", "list", "--file", str(file)).stdout
    assert "operator" in listed and "engine:it, model:llama-*" in listed
    for wrong in (["--scope", "it"], ["--expires", "soon"]):
        refused = pointsman("keys", "add", "more", "--role", "viewer", "--file", str(file), *wrong)
        assert (refused.returncode, "Traceback" in refused.stderr) == (2, False)

    gateway = start_gateway(RULES, extra_args=["--admin-keys", str(file), "--admin-host", "0.0.0.0"])
    assert plain_http.get(f"{gateway.admin_url}/engines").status_code == 401
    shown = pointsman("engines", "--admin", gateway.admin_url, "--key", key)
    assert (shown.returncode, "127.0.0.1:1" in shown.stdout) == (0, True), shown.stderr
    assert "asks for a key" in pointsman("engines", "--admin", gateway.admin_url).stderr
    drained = pointsman("drain", "it", "http://127.0.0.1:1", "--admin", gateway.admin_url, "--key", key)
    assert drained.returncode == 0, drained.stderr
    anna = {"authorization": f"Bearer {entry.stderr.strip()}"}
    [output] = plain_http.get(f"{gateway.admin_url}/audit", headers=anna).json()["audit"]
    assert (output["name"], output["role"], output["status"]) == ("otto", "operator", 200)
    assert pointsman("keys", "remove", "otto", "--file", str(file)).returncode == 0
    refused = pointsman("engines", "--admin", gateway.admin_url, "--key", key)
    assert (refused.returncode, "asks for a key" in refused.stderr) == (1, True)
    assert file.read_text().startswith("# who may")
    assert key not in gateway.log()
    gone = pointsman("keys", "remove", "otto", "--file", str(file))
    assert (gone.returncode, "it has vera, anna" in gone.stderr) == (1, True)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])
def test_an_admin_api_for_others_needs_keys(tmp_path: Path, host: str) -> None:
    """An admin API on another address than loopback needs keys: without them the gateway does not start, and the error
    gives the commands."""
    (tmp_path / "rules.yaml").write_text(RULES)
    ports = ["--http-port", "0", "--grpc-port", "0", "--admin-port", "0", "--redis", "off"]
    refused = pointsman("serve", "--rules", str(tmp_path / "rules.yaml"), *ports, "--admin-host", host)
    assert refused.returncode == 1
    assert "pointsman keys add NAME --role admin --file keys.yaml" in refused.stderr
    assert "--admin-keys keys.yaml" in refused.stderr and "Traceback" not in refused.stderr


def test_a_keys_file_with_a_mistake_starts_nothing(tmp_path: Path) -> None:
    """A mistake in the keys file is reported with its place."""
    (tmp_path / "rules.yaml").write_text(RULES)
    (tmp_path / "keys.yaml").write_text("- name: otto\n  role: king\n")
    refused = pointsman("serve", "--rules", str(tmp_path / "rules.yaml"), "--admin-keys", str(tmp_path / "keys.yaml"))
    assert refused.returncode == 1
    assert "keys.yaml:2:9: error: unknown value 'king'; known: viewer, operator, admin" in refused.stderr
