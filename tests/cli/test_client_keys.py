"""`pointsman keys client`, and a gateway that applies changes of the file."""

import contextlib
from collections.abc import Callable
from pathlib import Path

import httpx
from typer.testing import CliRunner

from gateway.cli.client_keys import app
from gateway.config.auth import read_key_file
from gateway.yaml.readers import Reading
from tests.support import plain_http
from tests.support.command_line import pointsman
from tests.support.redis_server import RedisServer
from tests.support.servers import GatewayProcess
from tests.support.shared_redis import redis_server, shared_server
from tests.support.waiting import eventually

__all__ = ["redis_server", "shared_server"]

RULES = (
    "{version: 1, auth: {keys: keys/clients.yaml}, engines: {it: {endpoints: ['http://127.0.0.1:1']}},"
    " routes: [{name: all, engine: it}]}"
)


def test_keys_of_clients(tmp_path: Path) -> None:
    """A key is printed once, alone on stdout; a name may have two; comments stay; the id removes one."""
    runner, file = CliRunner(), tmp_path / "clients.yaml"
    more = ["--tenant", "Acme Corp: 1", "--file", str(file)]
    made = runner.invoke(app, ["add", "batch", *more])
    assert made.exit_code == 0, made.output
    key = made.stdout.strip()
    assert key.startswith("pmi-") and key[17:] not in file.read_text()
    file.write_text("# who may\n" + file.read_text())
    assert runner.invoke(app, ["add", "batch", *more, "--expires", "90d"]).exit_code == 0
    assert runner.invoke(app, ["add", "ci", *more, "--expires", "2031-01-31"]).exit_code == 0
    entry = runner.invoke(app, ["add", "by hand", "--tenant", "zen", "--file", "-"])
    file.write_text(file.read_text() + entry.stdout)
    reading = Reading()
    keys = read_key_file(file, reading)
    assert not reading.problems
    assert [(each.tenant, each.name) for each in keys] == [
        *[("Acme Corp: 1", "batch")] * 2,
        ("Acme Corp: 1", "ci"),
        ("zen", "by hand"),
    ]
    listed = runner.invoke(app, ["list", "--file", str(file)])
    assert all(each.id in listed.stdout for each in keys)
    removed = runner.invoke(app, ["remove", keys[0].id, "--file", str(file)])
    assert removed.exit_code == 0
    assert file.read_text().startswith("# who may")
    assert len(read_key_file(file, Reading())) == 3
    assert runner.invoke(app, ["remove", keys[0].id, "--file", str(file)]).exit_code == 1
    wrong = runner.invoke(app, ["add", "x", *more, "--expires", "soon"])
    assert (wrong.exit_code, "is not a time" in wrong.output) == (2, True)


def test_a_gateway_applies_changes_of_the_file(tmp_path: Path, start_gateway: Callable[..., GatewayProcess]) -> None:
    """A key that is added while the gateway serves opens it; after its removal it does not; no secret is logged."""
    file = tmp_path / "gateway-0" / "keys" / "clients.yaml"

    def run(*arguments: str) -> str:
        done = pointsman("keys", "client", *arguments, "--file", str(file))
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    file.parent.mkdir(parents=True)
    file.write_text("# nobody yet\n")
    gateway = start_gateway(RULES)
    url = f"http://127.0.0.1:{gateway.http_port}/v2"

    def status(key: str) -> int:
        return plain_http.get(url, headers={"x-api-key": key}).status_code

    key = run("add", "ci", "--tenant", "acme")
    eventually(lambda: status(key) == 200)
    run("remove", key[4:16])
    eventually(lambda: status(key) == 401)
    assert key[17:] not in gateway.log()


def test_a_gateway_applies_changes_in_redis(
    tmp_path: Path, redis_server: RedisServer, start_gateway: Callable[..., GatewayProcess]
) -> None:
    """The same for keys in Redis, in all workers: a change reaches new connections and open ones."""
    runner, at = CliRunner(), ["--redis", redis_server.url]
    rules = RULES.replace("keys: keys/clients.yaml", "redis_keys: true")
    first = runner.invoke(app, ["add", "ci", "--tenant", "acme", *at]).stdout.strip()
    gateway = start_gateway(rules, redis=redis_server.url, workers=2)
    with contextlib.ExitStack() as stack:
        base = f"http://127.0.0.1:{gateway.http_port}"
        clients = [stack.enter_context(httpx.Client(base_url=base, timeout=120)) for _ in range(8)]

        def statuses(key: str) -> set[int]:
            return {client.get("/v2", headers={"x-api-key": key}).status_code for client in clients}

        eventually(lambda: statuses(first) == {200})
        second = runner.invoke(app, ["add", "ci", "--tenant", "acme", *at]).stdout.strip()
        eventually(lambda: statuses(second) == {200})
        assert runner.invoke(app, ["remove", first[4:16], *at]).exit_code == 0
        eventually(lambda: statuses(first) == {401})
        assert statuses(second) == {200}
