"""The fleet that browser tests look at."""

from dataclasses import dataclass
from pathlib import Path

from tests.support.servers import GatewayProcess


@dataclass
class Fleet:
    """A gateway, and the folder of all that belongs to it."""

    gateway: GatewayProcess
    directory: Path


def rules_of(one: str, two: str, new: str, texts: str, v2: str) -> str:
    """The rule file: an experiment between two engines, language models, limits."""
    return f"""
version: 1
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
limits:
  - {{name: per-key, per: key, requests_per_second: 1000}}
"""
