"""The example rule files, and the page that explains them."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from gateway.config.engine_specs import (
    BreakerSpec,
    ConnectionSpec,
    EndpointSpec,
    EngineSpec,
    HealthSpec,
    KvEventsSpec,
    LoadSpec,
    PrefixSpec,
    RetrySpec,
    TlsSpec,
)
from gateway.config.experiment_specs import (
    BanditSpec,
    ExperimentSpec,
    ForcingSpec,
    FuseSpec,
    LayerSpec,
    RampSpec,
    ShadowSpec,
    ToleranceSpec,
)
from gateway.config.limit_specs import BudgetSpec, LimitSpec, PriceSpec
from gateway.config.rules import load_rules
from gateway.config.source_specs import KubernetesSpec, SourceSpec
from gateway.config.specs import ExpectSpec, HistorySpec, IdentitySpec, ReplaySpec, RequestSpec, RulesSpec, TensorSpec
from gateway.dry_run import rule_tests
from gateway.dry_run.rule_tests import failed_tests
from gateway.protocol.operations import Operation
from gateway.protocol.v2_facts import NO_BODY, BodyFacts, InputFacts
from gateway.routing.decision import Decision, Facts
from gateway.routing.table import Table

RULES = Path(__file__).parents[2] / "routing_rules"
IMAGE = InputFacts("image", "FP32", (1, 3, 224, 224), 602112)


def chat(model: str, *, has_image: bool = False) -> Facts:
    return Facts(model, protocol="openai", operation=Operation.CHAT, body=BodyFacts(has_image=has_image))


DECISIONS = [
    ("single-triton.yaml", Facts("any"), "triton"),
    ("canary.yaml", Facts("text", headers={"x-session-id": "s1"}), "stable"),
    ("canary.yaml", Facts("text", headers={"x-session-id": "s25"}), "candidate"),
    ("canary.yaml", Facts("other"), "stable"),
    ("by-tensor.yaml", Facts("resnet", body=BodyFacts(inputs=(IMAGE,))), "accelerator"),
    ("by-tensor.yaml", Facts("resnet", body=BodyFacts(inputs=(InputFacts("x", "FP32", (4,), 1 << 24),))), "big"),
    ("by-tensor.yaml", Facts("resnet", body=NO_BODY), "cpu"),
    ("tenants.yaml", Facts("chat", headers={"x-tenant": "acme"}), "acme"),
    ("tenants.yaml", Facts("chat", headers={"x-tier": "gold"}), "pool"),
    ("tenants.yaml", Facts("chat", body=BodyFacts({"priority": 1})), "pool"),
    ("tenants.yaml", Facts("chat", body=NO_BODY), "shared"),
    ("language-models.yaml", chat("chat", has_image=True), "vllm"),
    ("language-models.yaml", chat("chat"), "vllm"),
    ("language-models.yaml", chat("code"), "ollama"),
    ("language-models.yaml", Facts("code", protocol="openai", operation=Operation.COMPLETION, body=NO_BODY), "ollama"),
    ("conversations.yaml", chat("chat"), "vllm"),
    ("conversations.yaml", Facts("story", operation=Operation.GENERATE, body=NO_BODY), "writer"),
    ("conversations.yaml", chat("assistant"), "assistant"),
    ("limits.yaml", chat("chat"), "vllm"),
    ("budgets.yaml", chat("gpt-4o"), "openai"),
    ("budgets.yaml", chat("llama"), "vllm"),
    ("limits.yaml", Facts("resnet", body=NO_BODY), "vision"),
    ("availability.yaml", chat("chat"), "pool"),
    ("availability.yaml", chat("other"), "started-on-demand"),
    ("ramp.yaml", Facts("ranker-v2", headers={"x-session-id": "s1"}), "old"),
    ("ramp.yaml", Facts("other"), "old"),
    ("experiment.yaml", Facts("search", headers={"x-user-id": "u23"}), "candidate"),
    ("experiment.yaml", Facts("search", headers={"x-user-id": "u0"}), "triton"),
    ("experiment.yaml", Facts("ads"), "triton"),
    ("shadow.yaml", Facts("resnet50", body=NO_BODY), "old"),
    ("shadow.yaml", chat("chat"), "old"),
    ("tested.yaml", Facts("classifier", body=BodyFacts(inputs=(IMAGE,))), "vision"),
    ("tested.yaml", Facts("text", headers={"x-tenant": "acme"}, body=NO_BODY), "pool"),
    ("sessions.yaml", Facts("counter", body=BodyFacts({"sequence_id": 7})), "stateful"),
]


def load(path: Path) -> RulesSpec:
    loaded = load_rules([path], {})
    assert loaded.problems == ()
    assert loaded.rules is not None
    return loaded.rules


@pytest.mark.parametrize("name, facts, engine", DECISIONS)
def test_an_example_does_what_it_says(name: str, facts: Facts, engine: str) -> None:
    """Each example loads without error, warning or environment, and sends these requests there."""
    decision = Table(load(RULES / name)).decide(facts, lambda: 0.5)
    assert isinstance(decision, Decision)
    assert decision.target.engine == engine


@pytest.mark.parametrize("path", sorted(RULES.glob("*.yaml")), ids=lambda path: path.stem)
def test_the_tests_of_an_example_hold(path: Path) -> None:
    """The tests in each example file pass."""
    assert failed_tests(load(path)) == []


def test_every_example_is_tried() -> None:
    """Each example file has a request above and a link in the page."""
    names = {path.name for path in RULES.glob("*.yaml")}
    assert names == {name for name, _, _ in DECISIONS}
    assert names == set(re.findall(r"\]\(([^/)]+\.yaml)\)", (RULES / "README.md").read_text()))


def test_the_example_in_the_page_loads(tmp_path: Path) -> None:
    """The rules in the page load."""
    found = re.search(r"```yaml\n(.*?)```", (RULES / "README.md").read_text(), re.DOTALL)
    assert found is not None
    (tmp_path / "rules.yaml").write_text(found[1])
    assert [route.name for route in load(tmp_path / "rules.yaml").routes] == ["llama", "everything-else"]


@pytest.mark.parametrize(("pages", "least"), [("README.md", 2), ("gateway/guides/*.md", 6)])
def test_the_rules_in_the_readme_load(tmp_path: Path, pages: str, least: int) -> None:
    """The rules in the README and in the guides load, each block as a file of its own, and their tests pass."""
    texts = [path.read_text() for path in sorted(RULES.parent.glob(pages))]
    blocks = [block for text in texts for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)]
    files = [block for block in blocks if "\nversion: 1\n" in block]
    assert len(files) >= least
    for number, text in enumerate(files):
        (path := tmp_path / f"{number}.yaml").write_text(text)
        assert rule_tests.tested(load_rules([path], {"VLLM_API_KEY": "k", "OPENAI_API_KEY": "k"})).problems == ()


SECTIONS = [
    ("", EngineSpec),
    ("health.", HealthSpec),
    ("breaker.", BreakerSpec),
    ("retry.", RetrySpec),
    ("connections.", ConnectionSpec),
    ("tls.", TlsSpec),
    ("", EndpointSpec),
    ("", SourceSpec),
    ("", KubernetesSpec),
    ("load.", LoadSpec),
    ("prefix.", PrefixSpec),
    ("prefix.events.", KvEventsSpec),
    ("history.", HistorySpec),
    ("sequences.", ReplaySpec),
    ("", ExperimentSpec),
    ("", LayerSpec),
    ("", ForcingSpec),
    ("ramp.", RampSpec),
    ("ramp.fuse.", FuseSpec),
    ("bandit.", BanditSpec),
    ("", IdentitySpec),
    ("", LimitSpec),
    ("", BudgetSpec),
    ("", PriceSpec),
    ("", RequestSpec),
    ("", TensorSpec),
    ("", ExpectSpec),
    ("shadow.", ShadowSpec),
    ("shadow.tolerance.", ToleranceSpec),
]
NOT_KEYS = {"name", "location", "health", "breaker", "retry", "connections", "tls", "load", "prefix", "sources"}


@pytest.mark.parametrize("prefix, spec", SECTIONS)
def test_the_page_names_every_key(prefix: str, spec: type) -> None:
    """The rule language's page names every key."""
    page = (RULES / "README.md").read_text()
    spare = {"location"} if prefix else NOT_KEYS
    names = [field.name for field in fields(spec) if field.name not in spare]
    assert [name for name in names if f"`{prefix}{name}`" not in page] == []
