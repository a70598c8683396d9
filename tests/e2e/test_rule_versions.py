"""Rules activated by the admin API of real gateways: stored, rolled back, superseded, shared."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.canned_engine import CannedEngine
from tests.support.redis_server import RedisServer, program
from tests.support.servers import GatewayProcess
from tests.support.waiting import eventually

StartGateway = Callable[..., GatewayProcess]

CLIENT = httpx.Client(headers={"connection": "close"}, timeout=120, trust_env=False)


@pytest.fixture
def engines() -> Iterator[dict[str, str]]:
    with CannedEngine("one") as one, CannedEngine("other") as other, CannedEngine("third") as third:
        yield {"one": one.url, "other": other.url, "third": third.url}


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    program()
    with RedisServer(tmp_path / "redis") as server:
        yield server


def rules(engines: dict[str, str], to: str) -> str:
    """Rules that send everything to one of the engines; the rules of two engines differ in one line."""
    return (
        "version: 1\n"
        "engines:\n"
        f"  it: {{endpoints: ['{engines[to]}'], health: {{interval: 0}}}}  # {to}\n"
        "routes: [{name: all, engine: it}]\n"
    )


def served_by(gateway: GatewayProcess) -> set[str]:
    """Which engines answer twelve requests, so that every worker gets some."""
    answers = [CLIENT.post(gateway.http_url + "/v2/models/m/infer", content=b"{}") for _ in range(12)]
    assert {answer.status_code for answer in answers} == {200}
    return {answer.json()["served_by"] for answer in answers}


def post(gateway: GatewayProcess, path: str, status: int = 200, **body: Any) -> Any:
    answer = CLIENT.post(gateway.admin_url + path, json=body)
    assert answer.status_code == status, answer.text
    return answer.json()


def get(gateway: GatewayProcess, path: str) -> Any:
    answer = CLIENT.get(gateway.admin_url + path)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_activated_compared_refused_and_rolled_back(start_gateway: StartGateway, engines: dict[str, str]) -> None:
    """When the call returns, an activation is in force in all workers. Rules with a mistake change nothing, and the
    error names the line. One call rolls an activation back. The file on disk does not change."""
    gateway = start_gateway(rules(engines, "one"), workers=2)
    reply = post(gateway, "/rules/activate", files={"rules.yaml": rules(engines, "other")}, reason="faster")
    assert served_by(gateway) == {"other"}
    assert (reply["version"]["number"], reply["version"]["author"], reply["version"]["reason"]) == (
        2,
        "local",
        "faster",
    )
    assert (reply["shared"], reply["version"]["exported"]) == (False, False)

    bad = rules(engines, "third").replace("engine: it", "engine: its")
    refused = post(gateway, "/rules/activate", 422, files={"rules.yaml": bad})
    (problem,) = [each for each in refused["problems"] if each["severity"] == "error"]
    assert (problem["file"], problem["line"], problem["column"]) == ("rules.yaml", 4, 30)
    assert problem["message"] == "unknown engine 'its': did you mean 'it'?"
    assert served_by(gateway) == {"other"}

    diff = get(gateway, "/rules/diff?from=1")
    lines = diff["diff"].splitlines()
    assert [line[0] for line in lines if line[0] in "+-"] == ["-", "+", "-", "+"]
    assert lines[:2] == ["--- rules.yaml (1)", "+++ rules.yaml (2)"]

    candidate = post(gateway, "/rules/validate", files={"rules.yaml": rules(engines, "third")})
    assert (candidate["ok"], candidate["problems"]) == (True, [])
    assert f"+  it: {{endpoints: ['{engines['third']}']" in candidate["diff"]

    post(gateway, "/rules/rollback", reason="slower after all")
    assert served_by(gateway) == {"one"}
    versions = get(gateway, "/rules/versions")
    assert (versions["in_force"], [each["number"] for each in versions["versions"]]) == (3, [3, 2, 1])
    assert versions["versions"][0]["of"] == 1
    assert get(gateway, "/rules/versions/2")["texts"] == {"rules.yaml": rules(engines, "other")}
    assert gateway.rules_path.read_text() == rules(engines, "one")
    post(gateway, "/rules/activate", version=2)
    assert served_by(gateway) == {"other"}
    post(gateway, "/rules/activate", 404, version=77)
    post(gateway, "/rules/activate", 400, reason="nothing")
    assert get(gateway, "/rules/export")["files"] == {"rules.yaml": rules(engines, "other")}


def test_a_version_outlives_the_gateway_until_the_files_change(
    start_gateway: StartGateway, engines: dict[str, str], tmp_path: Path
) -> None:
    """After a restart the activated rules are in force; changed files take precedence, at once or at the next start."""
    kept = tmp_path / "kept"
    first = start_gateway(rules(engines, "one"), data_dir=kept)
    post(first, "/rules/activate", files={"rules.yaml": rules(engines, "other")}, reason="mine")
    first.stop()

    second = start_gateway(rules(engines, "one"), data_dir=kept)
    assert served_by(second) == {"other"}
    assert get(second, "/rules")["number"] == 2
    second.rules_path.write_text(rules(engines, "third"))
    eventually(lambda: get(second, "/rules")["number"] == 3)
    assert served_by(second) == {"third"}
    assert "supersedes version 2 by local (mine)" in get(second, "/rules/versions")["versions"][0]["reason"]
    post(second, "/rules/activate", files={"rules.yaml": rules(engines, "other")})
    second.stop()

    third = start_gateway(rules(engines, "one"), data_dir=kept)
    assert served_by(third) == {"one"}
    assert get(third, "/rules")["number"] == 5
    assert "supersede version 4" in third.log()


def test_gateways_of_one_redis_activate_together(
    start_gateway: StartGateway, engines: dict[str, str], redis: RedisServer
) -> None:
    """Rules activated at one gateway apply to all gateways with the same files, also to those that start later. A
    gateway with other files reports the difference. A file that changes everywhere supersedes them."""
    one, other = (start_gateway(rules(engines, "one"), redis=redis.url) for _ in range(2))
    different = start_gateway(rules(engines, "third"), redis=redis.url)
    reply = post(one, "/rules/activate", files={"rules.yaml": rules(engines, "other")}, reason="for all")
    assert reply["shared"] is True
    eventually(lambda: served_by(other) == {"other"})
    assert get(other, "/rules/versions")["versions"][0]["reason"] == "for all"
    eventually(lambda: any("based on other rule files" in line for line in get(different, "/rules")["problems"]))
    assert served_by(different) == {"third"}

    late = start_gateway(rules(engines, "one"), redis=redis.url)
    assert served_by(late) == {"other"}
    late.stop()

    post(other, "/rules/rollback")
    eventually(lambda: served_by(one) == {"one"})
    assert get(one, "/rules")["problems"] == get(other, "/rules")["problems"] == []
    eventually(lambda: get(different, "/rules")["problems"] == [])

    post(one, "/rules/activate", files={"rules.yaml": rules(engines, "other")})
    eventually(lambda: served_by(other) == {"other"})
    for gateway in (one, other):
        gateway.rules_path.write_text(rules(engines, "third"))
    eventually(lambda: served_by(one) == served_by(other) == {"third"})
    again = start_gateway(rules(engines, "third"), redis=redis.url)
    assert served_by(again) == {"third"}


def test_what_was_activated_without_redis_is_told_when_it_is_back(
    start_gateway: StartGateway, engines: dict[str, str], redis: RedisServer, tmp_path: Path
) -> None:
    """An activation during a Redis outage takes effect at once and reports that it is not shared; the others get it
    when Redis is back, signed where they have a secret."""
    (secret := tmp_path / "secret").write_text("s" * 32)
    secret.chmod(0o600)
    signing = ["--shared-secret-file", str(secret)]
    one, other = (start_gateway(rules(engines, "one"), redis=redis.url, extra_args=signing) for _ in range(2))
    redis.kill()
    reply = post(one, "/rules/activate", files={"rules.yaml": rules(engines, "other")})
    assert (reply["shared"], served_by(one), served_by(other)) == (False, {"other"}, {"one"})
    redis.start()
    eventually(lambda: served_by(other) == {"other"})
    eventually(lambda: get(one, "/rules/versions")["shared"])
    (stored,) = redis.client.hgetall("pointsman:1:rules").values()
    assert re.match(r"\d+ [0-9a-f]{64} \{", stored)


def test_other_rules_for_the_same_files_at_two_gateways_end_as_one(
    start_gateway: StartGateway, engines: dict[str, str], redis: RedisServer
) -> None:
    """The last activation wins on both gateways, however quickly one follows the other."""
    one, other = (start_gateway(rules(engines, "one"), redis=redis.url) for _ in range(2))
    for _ in range(3):
        post(one, "/rules/activate", files={"rules.yaml": rules(engines, "other")})
        post(other, "/rules/activate", files={"rules.yaml": rules(engines, "third")})
        eventually(lambda: served_by(one) == served_by(other) == {"third"})
