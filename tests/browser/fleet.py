"""The fleet of the browser tests."""

from dataclasses import dataclass

from tests.browser.engines import TensorEngine
from tests.support.servers import GatewayProcess


@dataclass
class Fleet:
    """A gateway, and its engines of tensors: two of `cuda`, one of `mac`."""

    gateway: GatewayProcess
    engines: list[TensorEngine]


def rules_of(one: str, two: str, new: str, texts: str, v2: str) -> str:
    """The rule file: an experiment between two engines, language models, limits."""
    return f"""
version: 1
x-old: {{api_key: hunter2}}
engines:
  cuda:
    endpoints: ["{one}", "{two}"]
  mac:
    endpoints: ["{new}"]
  texts:
    protocol: openai
    endpoints: ["{texts}"]
  triton:
    endpoints: ["{v2}"]
routes:
  - name: chat
    match: {{model: canned}}
    engine: texts
  - name: generate
    match: {{model: [vllm_model, ensemble]}}
    engine: triton
  - name: ranking
    match: {{model: ranker}}
    experiment: ranker-migration
  - name: premium
    match: {{model: plain, header: {{x-tier: premium}}}}
    engine: mac
  - name: everything-else
    engine: cuda
    shadow: {{engine: mac, sample: 100%}}
experiments:
  ranker-migration:
    unit: session
    arms:
      - {{name: control, engine: cuda, weight: 100}}
      - {{name: candidate, engine: mac, weight: 0}}
    ramp: {{arm: candidate, steps: [5%, 25%, 100%], min_requests: 100000, min_time: 1h}}
    guardrails:
      - {{metric: error_rate, max_increase: 5%}}
      - {{metric: latency_p95, max: 5s}}
limits:
  - {{name: per-key, per: key, requests_per_second: 1000}}
budgets:
  - {{name: monthly, routes: premium, per: tenant, window: month, requests: 4}}
"""
