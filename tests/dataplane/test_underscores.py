"""Names with underscores, which servers of WSGI and CGI take for the same with hyphens."""

from __future__ import annotations

from pathlib import Path

import httpx

from tests.dataplane.authenticated import INFER, Keys, Served, bearer, engines
from tests.dataplane.grpc.peers import UNARY
from tests.dataplane.grpc.stage import grpc_stage, request
from tests.dataplane.stage import Engine, post, run

RULES = """version: 1
engines:
  it: {{endpoints: ["{url}"], health: {{interval: 0}}, strip: [x-user-id], headers: {{x-team: of-the-rules}}}}
routes:
  - {{name: tier, match: {{header: {{x-tier: gold}}}}, engine: it}}
  - {{name: declared, match: {{header: {{with_one: gold}}}}, engine: it}}
  - {{name: rest, engine: it}}
limits:
  - {{name: each, per: ["header:x-org-id"], requests_per_second: 1000}}
"""
DROPPED = ["X_Tier", "x_org-id", "x_org_id", "x_user_id", "x_team", "x_forwarded_for", "content_length"]
PASSED = [("with_one", "bronze"), ("x_other", "1"), ("x-other", "2")]


def test_names_that_an_engine_may_take_for_a_deciding_field_are_dropped(tmp_path: Path) -> None:
    """Fields that rules, limits, engines and the gateway itself go by reach an engine under their own names alone, by
    HTTP/1.1, HTTP/2 and gRPC; a name with an underscore that rules read, or that nothing goes by, passes."""

    async def scene() -> None:
        engine = Engine()
        await engine.start()
        async with grpc_stage(RULES.format(url=engine.url), tmp_path) as it:
            client, peer = await it.client(), await it.grpc()
            fields = [(name.lower(), "evil") for name in DROPPED] + PASSED
            lines = [f"{name}: {value}" for name, value in [*((name, "evil") for name in DROPPED), *PASSED]]
            for more in ((), ("connection: x-hop",)):  # the latter is read strictly
                for _ in range(3):  # read, and known
                    assert (await client.ask(post("/v2/models/m/infer", b"{}", *lines, *more))).status == 200
            call = peer.request("POST", "/v2/models/m/infer", *fields, ("content-length", "2"))
            await call.send_raw(b"{}", ended=True)
            assert (await call.over()).value(":status") == "200"
            for _ in range(3):
                await peer.ask(request("m"), path=UNARY, metadata=fields)
            assert len(engine.received) == 10
            for received in engine.received:
                head = received.head.lower()
                assert b"evil" not in head
                assert all(f"{name}: {value}".encode() in head for name, value in PASSED)
        engine.stop()

    run(scene())


def test_the_tenant_and_credentials_have_one_name(tmp_path: Path) -> None:
    """With `auth:` an engine reads the verified tenant and no other, and no credential."""
    with engines() as (rest, _):
        keys = Keys(tmp_path)
        key = keys.add("acme")
        rules = (
            f'version: 1\nauth: {{keys: keys.yaml}}\nengines: {{it: {{endpoints: ["http://{rest.address}"]}}}}\n'
            "routes: [{name: all, engine: it}]\n"
        )
        served = Served(rules, tmp_path)
        try:
            headers = {**bearer(key), "x_tenant": "evil", "x_api_key": "evil", "x_other": "1"}
            assert httpx.post(f"{served.url}/v2/models/m/infer", json=INFER, headers=headers, timeout=60).is_success
            received = rest.received[-1]
            assert (received["x-tenant"], received["x_other"]) == ("acme", "1")
            assert not {"x_tenant", "x_api_key"} & received.keys()
        finally:
            served.stop()
