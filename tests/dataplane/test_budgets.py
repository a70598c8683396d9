"""Budgets on the data plane: verified callers, streams, failed requests, the end of a window."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest
import tritonclient.grpc as triton_grpc
from tritonclient.utils import InferenceServerException

from gateway.limits.budget import BudgetAccount
from tests.dataplane.authenticated import CHAT, Keys, Served, bearer, engines, infer
from tests.support.waiting import eventually

RULES = """
version: 1
auth: {{keys: keys.yaml}}
engines:
  rest: {{endpoints: ["http://{rest}"]}}
  chat: {{protocol: openai, endpoints: ["http://{rest}"]}}
  by-grpc: {{endpoints: ["grpc://{grpc}"]}}
  gone: {{endpoints: ["http://127.0.0.1:9"]}}
routes:
  - {{name: grpc, match: {{model: g}}, engine: by-grpc}}
  - {{name: chat, match: {{model: chat}}, engine: chat}}
  - {{name: gone, match: {{model: gone}}, engine: gone}}
  - {{name: renamed, match: {{model: dear}}, engine: rest, model: cheap}}
  - {{name: others, engine: rest}}
prices:
  - {{models: cheap, request: 0.5}}
  - {{models: "*", request: 2, input: 1000000}}
budgets:
  - {{name: keys, per: key, window: day, requests: 2, overrides: {{"{rich}": {{requests: 4}}}}}}
  - {{name: tenants, per: tenant, window: month, spend: 1000}}
"""


class Scene:
    """The data plane, the keys of its callers, and the time of its budgets."""

    def __init__(self, folder: Path, rest: Any, by_grpc: Any) -> None:
        self.keys = Keys(folder)
        for label in ("rich", "poor"):
            self.keys.add("acme", label)
        rules = RULES.format(rest=rest.address, grpc=by_grpc.address, rich=self.keys.ids["rich"])
        self.served = Served(rules, folder)
        self.later = 0.0
        budgets = self.served.plane.budgets
        clock = budgets._clock
        budgets._clock = lambda: clock() + self.later

    def infer(self, caller: str, model: str = "m") -> httpx.Response:
        return infer(self.served, bearer(self.keys.of[caller]), model)

    def account(self, budget: str, *name: str) -> BudgetAccount:
        [found] = [each for each in self.served.plane.budgets.budgets if each.spec.name == budget]
        return found.period.accounts[name]


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with engines() as (rest, by_grpc):
        found = Scene(tmp_path, rest, by_grpc)
        yield found
        found.served.stop()


def test_each_verified_key_has_its_budget(scene: Scene) -> None:
    """A key's budget goes by its id, with its own amount; a header names no other tenant or key."""
    assert [scene.infer("poor").status_code for _ in range(3)] == [200, 200, 429]
    assert [scene.infer("rich").status_code for _ in range(5)] == [200, 200, 200, 200, 429]
    fields = {**bearer(scene.keys.of["poor"]), "x-tenant": "other", "x-pointsman-key": "other"}
    assert infer(scene.served, fields).status_code == 429
    refused = scene.infer("poor")
    assert "requests of 2 a day per key" in refused.json()["error"]
    assert all(secret not in refused.text for secret in scene.keys.of.values())
    assert eventually(lambda: scene.account("keys", scene.keys.ids["rich"]).requests == 4)
    scene.later = 32 * 86_400
    assert scene.infer("poor").status_code == 200


def test_the_price_is_that_of_the_model_at_the_engine(scene: Scene) -> None:
    """A renamed model costs what the engine's model does; tokens are estimated where an engine tells none; a request
    that no engine answers counts without tokens, one that is refused not at all."""
    assert scene.infer("rich", "dear").status_code == 200
    assert eventually(lambda: scene.account("tenants", "acme").spend == 500_000_000)  # counted once the reply has gone
    assert scene.infer("rich", "gone").status_code >= 500
    account = scene.account("tenants", "acme")
    assert eventually(lambda: (account.spend, account.requests, account.tokens) == (2_500_000_000, 2, 0))
    with openai.OpenAI(base_url=f"{scene.served.url}/v1", api_key=scene.keys.of["rich"], max_retries=0) as client:
        client.chat.completions.create(**CHAT)  # type: ignore[call-overload]
        client.chat.completions.create(**CHAT)  # type: ignore[call-overload]
        assert eventually(lambda: account.tokens > 400)  # both replies are counted
        assert 256 * 2 < account.tokens < 400 * 2
        dear, each = 2_500_000_000, 2_000_000_000
        assert eventually(lambda: account.spend == dear + 2 * each + (account.tokens - 512) * 1_000_000_000)
        with pytest.raises(openai.RateLimitError):
            client.chat.completions.create(**CHAT)  # type: ignore[call-overload]
    assert account.requests == 4


def test_each_message_of_a_stream_counts_for_budgets(scene: Scene) -> None:
    """A message of a stream beyond the budget gets an error with the reset, and so does a call."""
    got: queue.Queue[Any] = queue.Queue()
    tensor = triton_grpc.InferInput("i", [1], "BYTES")
    tensor.set_data_from_numpy(np.array([b"x"], dtype=np.object_))
    with triton_grpc.InferenceServerClient(scene.served.address) as client:
        client.start_stream(lambda result, error: got.put(error), headers=bearer(scene.keys.of["poor"]))
        errors = []
        for _ in range(3):
            client.async_stream_infer("g", [tensor])
            errors.append(got.get(timeout=120))
        client.stop_stream()
        assert errors[:2] == [None, None] and "it resets at" in str(errors[2])
        with pytest.raises(InferenceServerException, match="it resets at") as refused:
            client.infer("g", [tensor], headers=bearer(scene.keys.of["poor"]))
    assert refused.value.status() == "StatusCode.RESOURCE_EXHAUSTED"
