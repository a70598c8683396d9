"""Applications with the OpenFeature SDK on real gateways: the arm that they show is the one that requests get."""

from __future__ import annotations

import json
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest
from openfeature import api
from openfeature.client import OpenFeatureClient
from openfeature.contrib.provider.ofrep import OFREPProvider
from openfeature.evaluation_context import EvaluationContext
from openfeature.exception import ErrorCode
from openfeature.flag_evaluation import FlagEvaluationDetails, Reason

from gateway.auth.api_keys import make_key
from tests.support import plain_http
from tests.support.canned_engine import CannedEngine
from tests.support.redis_server import RedisServer
from tests.support.servers import GatewayProcess
from tests.support.waiting import eventually
from tests.support.wire import send

INFER = "/v2/models/m/infer"


@pytest.fixture(scope="module")
def engines() -> Iterator[tuple[CannedEngine, CannedEngine]]:
    with CannedEngine("old") as old, CannedEngine("new") as new:
        yield old, new


def rules(engines: tuple[CannedEngine, CannedEngine]) -> str:
    old, new = engines
    return f"""
version: 1
auth: {{keys: keys.yaml}}
engines:
  old: {{endpoints: ['{old.url}']}}
  new: {{endpoints: ['{new.url}']}}
routes: [{{name: all, experiment: x}}]
layers: {{l: {{holdout: 10%}}}}
experiments:
  x:
    layer: l
    share: 90%
    arms: [{{name: old, engine: old, weight: 90}}, {{name: new, engine: new, weight: 10}}]
    ramp: {{steps: [10%, 30%, 60%, 90%], min_time: 1h}}
forcing: {{keys: {sha256(b"swordfish").hexdigest()}}}
"""


class Application:
    """A web application: it shows the arm of a user, and sends the user's requests, each to another worker."""

    def __init__(self, gateways: list[GatewayProcess], key: str) -> None:
        self._gateways, self._key, self._turn = gateways, key, 0
        self._clients = [self._client(number, gateway) for number, gateway in enumerate(gateways)]

    def _client(self, number: int, gateway: GatewayProcess) -> OpenFeatureClient:
        provider = OFREPProvider(
            f"http://127.0.0.1:{gateway.http_port}",
            headers_factory=lambda: {"authorization": f"Bearer {self._key}", "connection": "close"},
            timeout=120,
        )
        api.set_provider_and_wait(provider, f"gateway-{number}")
        return api.get_client(f"gateway-{number}")

    def details(self, session: str, flag: str = "x") -> FlagEvaluationDetails[str]:
        self._turn += 1
        client = self._clients[self._turn % len(self._clients)]
        return client.get_string_details(flag, "default", EvaluationContext(targeting_key=session))

    def requested(self, session: str) -> str | None:
        """The arm that answers a request of the session, None where it is in no experiment."""
        self._turn += 1
        gateway = self._gateways[self._turn % len(self._gateways)]
        headers = {"authorization": f"Bearer {self._key}", "x-session-id": session}
        reply = send(gateway.http_port, "POST", INFER, b"{}", headers)
        assert reply.status == 200, reply.body
        arm = reply.headers.get("x-pointsman-arm")
        assert json.loads(reply.body)["served_by"] == (arm or "old")
        return arm


def test_requests_get_the_arm_that_the_sdk_was_told(engines: tuple[CannedEngine, CannedEngine], tmp_path: Path) -> None:
    """Over 240 sessions on two gateways of two workers, while a ramp grows, with sessions that an operator assigns and
    with a holdout: before the first request, at it, and after it."""
    key, id, digest = make_key()
    for number in range(2):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "keys.yaml").write_text(f"- {{id: {id}, tenant: acme, hash: {digest}}}\n")
    patience = ["--redis-deadline", "5s"]  # nobody gets another arm because this machine is busy
    with RedisServer(tmp_path / "redis") as redis:
        gateways = [
            GatewayProcess.start(
                rules(engines), tmp_path / str(n), workers=2, redis=redis.url, extra_args=patience
            ).wait_ready()
            for n in range(2)
        ]
        try:
            application = Application(gateways, key)
            admin = f"{gateways[0].admin_url}/experiments/x"
            plain_http.post(f"{admin}/start", json={})
            told: dict[str, FlagEvaluationDetails[str]] = {}
            reasons: set[str] = set()
            for step in range(1, 5):
                plain_http.post(f"{admin}/ramp", json={"step": step})
                share = (0.1, 0.3, 0.6, 0.9)[step - 1]
                for gateway in gateways:
                    eventually(lambda gateway=gateway, share=share: _share(gateway) == share)
                for number in range(60):  # half of them send their first request after the next step
                    session = f"s{step}-{number}"
                    told[session] = application.details(session)
                    assert told[session].error_code is None, told[session].error_message
                    reasons.add(str(told[session].reason))
                    if number % 2:
                        _assert_agreed(application, session, told[session])
            for session, details in told.items():
                _assert_agreed(application, session, details)
            assert {details.value for details in told.values()} == {"old", "new"}
            outside = [details for details in told.values() if not details.flag_metadata["inExperiment"]]
            assert outside and len(outside) < 60  # in the holdout
            assert Reason.SPLIT in reasons
            # An operator assigns a session that has its arm by the hash
            session = next(session for session, each in told.items() if each.value == "old" and each not in outside)
            pin = {"unit": session, "tenant": "acme", "arm": "new"}
            plain_http.post(f"{admin}/force", json=pin)
            eventually(lambda: application.details(session).value == "new")
            pinned = application.details(session)
            assert application.requested(session) == "new"
            assert (pinned.value, pinned.variant) == ("new", "new")
            # What the SDK makes of errors
            unknown = application.details("s", "y")
            assert (unknown.value, unknown.error_code) == ("default", ErrorCode.FLAG_NOT_FOUND)
            nobody = application.details("")
            assert (nobody.value, nobody.error_code) == ("default", ErrorCode.TARGETING_KEY_MISSING)
            stranger = Application(gateways[:1], "pk-wrong").details("s")
            assert (stranger.value, stranger.error_code) == ("default", ErrorCode.GENERAL)
        finally:
            api.clear_providers()
            for gateway in gateways:
                gateway.stop()


def _share(gateway: GatewayProcess) -> float:
    arms = plain_http.get(f"{gateway.admin_url}/experiments/x").json()["arms"]
    return float(next(arm["share"] for arm in arms if arm["name"] == "new"))


def _assert_agreed(application: Application, session: str, details: FlagEvaluationDetails[str]) -> None:
    got = application.requested(session)
    assert details.value == (got or "old"), (session, details, got)
    assert details.flag_metadata["inExperiment"] == (got is not None)
