"""Budgets as clients' libraries, the admin API and metrics report them."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime
from typing import Any

import anthropic
import httpx
import numpy as np
import openai
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from tests.support import plain_http
from tests.support.canned_llm import MODEL, CannedLLM
from tests.support.llm import rules_of
from tests.support.servers import GatewayProcess

TURNS: list[Any] = [{"role": "user", "content": "hi"}]


def budgeted(canned: CannedLLM, *budgets: dict[str, Any]) -> str:
    engines = {"it": {"protocol": "openai", "endpoints": [canned.http_url], "dialects": ["chat", "messages"]}}
    prices = [{"models": MODEL, "input": 1000, "output": 3000}, {"models": "*", "request": 1}]
    routes = [{"name": "all", "engine": "it"}]
    return rules_of(engines, routes, budgets=[{"per": "tenant", **each} for each in budgets], prices=prices)


def chat(client: openai.OpenAI, tenant: str, **options: Any) -> Any:
    return client.chat.completions.create(model=MODEL, messages=TURNS, extra_headers={"x-tenant": tenant}, **options)


def refusal(client: openai.OpenAI, tenant: str) -> openai.RateLimitError:
    """The refusal of an exhausted budget, which all workers know a moment later."""
    for _ in range(1000):
        try:
            chat(client, tenant)
        except openai.RateLimitError as error:
            return error
    raise AssertionError("no request is refused")


def accounts(api: httpx.Client, name: str) -> dict[str, Any]:
    [budget] = api.get("/budgets", params={"name": name}).json()["budgets"]
    return {each["who"]: each for each in budget["shown"]}


def test_clients_read_an_exhausted_budget_as_their_libraries_tell_it(
    start_gateway: Callable[..., GatewayProcess], canned: CannedLLM
) -> None:
    """Beyond a budget OpenAI's and Anthropic's libraries raise RateLimitError with the reset and do not try again, and
    tritonclient RESOURCE_EXHAUSTED; both workers know, and counts survive a restart."""
    rules = budgeted(canned, {"name": "monthly", "window": "month", "requests": 3, "spend": 100})
    gateway = start_gateway(rules, workers=2)
    api = httpx.Client(base_url=gateway.admin_url, timeout=120)
    with openai.OpenAI(base_url=f"{gateway.http_url}/v1", api_key="a") as client:
        used = [chat(client, "acme").usage for _ in range(2)]
        streamed = list(chat(client, "acme", stream=True, stream_options={"include_usage": True}))[-1].usage
        account = accounts(api, "monthly")["tenant acme"]
        assert account["spent"]["requests"] == 3 and account["remaining"]["requests"] == 0 and account["used"] == 1
        tokens = [(each.prompt_tokens, each.completion_tokens) for each in (*used, streamed)]
        assert account["spent"]["tokens"] == sum(map(sum, tokens))
        assert account["spent"]["spend"] == pytest.approx(sum(1000 * one + 3000 * other for one, other in tokens) / 1e6)
        refused = refusal(client, "acme")
        assert (refused.code, refused.type) == ("insufficient_quota", "insufficient_quota")
        headers = refused.response.headers
        told = re.search(r"it resets at (\S+Z)", str(refused))
        assert told is not None
        reset = datetime.fromisoformat(told[1])
        assert (reset.day, reset.hour, reset.minute) == (1, 0, 0)
        assert int(headers["retry-after"]) > 0 and headers["x-pointsman-reason"] == "budget_exhausted"
        if headers.get("x-should-retry") == "false":  # all but the last minute of the month
            assert refused.request.headers["x-stainless-retry-count"] == "0"
        assert chat(client, "other").choices
    with (
        anthropic.Anthropic(base_url=gateway.http_url, api_key="b") as other,
        pytest.raises(anthropic.RateLimitError, match="budget 'monthly' is exhausted"),
    ):
        other.messages.create(model=MODEL, messages=TURNS, max_tokens=9, extra_headers={"x-tenant": "acme"})
    text = triton.InferInput("text_input", [1], "BYTES")
    text.set_data_from_numpy(np.array([b"hi"], dtype=np.object_))
    with (
        triton.InferenceServerClient(gateway.grpc_url) as third,
        pytest.raises(InferenceServerException, match="it resets at") as exhausted,
    ):
        third.infer(MODEL, [text], headers={"x-tenant": "acme"})
    assert exhausted.value.status() == "StatusCode.RESOURCE_EXHAUSTED"
    generate = f"{gateway.http_url}/v2/models/{MODEL}/generate"
    v2 = plain_http.post(generate, headers={"x-tenant": "acme"}, json={"text_input": "hi"})
    assert v2.status_code == 429 and "it resets at" in v2.json()["error"] and int(v2.headers["retry-after"]) > 0
    assert "account=" not in api.get("/metrics").text  # which needs no key here
    with httpx.Client(
        transport=httpx.HTTPTransport(uds=str(gateway.data_dir / f"admin-{gateway.admin_port}.sock"))
    ) as own:
        metrics = own.get("http://localhost/metrics").text
    assert 'pointsman_budget_refused_total{budget="monthly"} 4' in metrics
    assert 'pointsman_budget_accounts{budget="monthly"} 2' in metrics
    assert 'pointsman_budget_exhausted{budget="monthly"} 1' in metrics
    assert re.search(r'pointsman_budget_used_ratio{account="acme",budget="monthly"} [1-9]', metrics)
    assert re.search(r'pointsman_budget_spent{budget="monthly",unit="spend"} 0\.[0-9]', metrics)
    gateway.stop()
    again = start_gateway(rules, data_dir=gateway.data_dir)
    with openai.OpenAI(base_url=f"{again.http_url}/v1", api_key="a") as client, pytest.raises(openai.RateLimitError):
        chat(client, "acme")


def test_an_operator_resets_an_account(start_gateway: Callable[..., GatewayProcess], canned: CannedLLM) -> None:
    """A reset lets a tenant go on, is audited, and needs a known account. A failed request costs no tokens, an estimate
    stands for an engine that tells no usage."""
    gateway = start_gateway(
        budgeted(
            canned, {"name": "few", "window": "day", "requests": 1}, {"name": "free", "window": "day", "tokens": 9999}
        )
    )
    api = httpx.Client(base_url=gateway.admin_url, timeout=120)
    with openai.OpenAI(base_url=f"{gateway.http_url}/v1", api_key="a", max_retries=0) as client:
        assert len(list(chat(client, "a", stream=True))) > 1
        with pytest.raises(openai.RateLimitError):
            chat(client, "a")
        account = accounts(api, "free")["tenant a"]
        assert account["spent"]["requests"] == 1 and 0 < account["spent"]["tokens"] < 200
        reset = api.post("/budgets/few/reset", json={"account": ["a"], "reason": "paid"})
        assert reset.status_code == 200 and reset.json()["spent"]["requests"] == 1
        assert chat(client, "a").choices
    for path, body, status in (("no", {}, 404), ("few", {"account": ["x"]}, 404), ("few", {"acount": []}, 422)):
        assert api.post(f"/budgets/{path}/reset", json=body).status_code == status
    entry = next(each for each in api.get("/audit").json()["audit"] if each["status"] == 200)
    assert entry["path"] == "/budgets/few/reset" and "paid" in str(entry["body"])
