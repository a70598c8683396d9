"""`pointsman check` says which guardrails a ramp's `min_requests` cannot make known, by the statistics of ramps."""

from __future__ import annotations

import re

import pytest

from gateway.config.experiment_specs import GuardrailSpec
from gateway.config.rules import load_texts
from gateway.dry_run.guardrail_samples import smallest_sample, with_samples

RULES = """\
version: 1
engines: {a: {endpoints: ["http://a"]}, b: {endpoints: ["http://b"]}}
routes: [{name: all, experiment: x}]
experiments:
  x:
    arms: [{name: old, engine: a, weight: 1}, {name: new, engine: b, weight: 0}]
    guardrails:
      - {metric: error_rate, max_increase: 1%}
      - {metric: latency_p95, max_ratio: 1.5}
    ramp:
      steps: [STEPS]
      min_requests: MIN
"""


def warnings(steps: str, min_requests: int, more: str = "") -> list[str]:
    text = RULES.replace("STEPS", steps).replace("MIN", str(min_requests)) + more
    loaded = with_samples(load_texts({"rules.yaml": text}))
    assert loaded.rules is not None
    return [f"{problem.location}: {problem.message}" for problem in loaded.problems]


def test_too_few_requests_are_a_warning_with_the_number_that_it_takes() -> None:
    """The warning stands at `min_requests`, names the guardrail and its line, and the number that it takes; with that
    number there is none."""
    (warning,) = warnings("5%, 50%", 500)
    found = re.fullmatch(
        r"rules.yaml:12:21: min_requests 500 cannot make guardrail error_rate max_increase 0.01 of experiment 'x' "
        r"\(line 8\) known: at 0.05 of the units it takes (\d+) of arm 'new' in the best case, for which the ramp "
        r"waits",
        warning,
    )
    assert found is not None, warning
    assert 1000 < int(found[1]) < 3000
    assert warnings("5%, 50%", int(found[1])) == []
    assert warnings("5%, 50%", 500, "      require: unbreached\n") == []


def test_a_first_step_without_a_control_decides_nothing() -> None:
    """At 100 % the control has no requests to compare with, however many there are."""
    found = warnings("100%", 1_000_000)
    assert len(found) == 2
    assert all("no number of requests at 1 of the units makes" in warning for warning in found)


@pytest.mark.parametrize(
    "guardrail",
    [
        GuardrailSpec("error_rate", max=0.02),
        GuardrailSpec("error_rate", max_ratio=1.5),
        GuardrailSpec("latency", max_ratio=1.2),
        GuardrailSpec("latency_p99", max=2.0),
        GuardrailSpec("first_token_p90", max_ratio=1.3),
        GuardrailSpec("output_tokens", max_increase=20.0),
        GuardrailSpec("feedback:stars", min_ratio=0.9),
    ],
    ids=str,
)
def test_each_kind_of_guardrail_can_be_known(guardrail: GuardrailSpec) -> None:
    """Each kind has a sample that decides it; a tighter alpha takes at least as many."""
    need = smallest_sample(guardrail, 0.1, 0.05)
    tighter = smallest_sample(guardrail, 0.1, 0.0005)
    assert need is not None
    assert tighter is not None
    assert 1 < need <= tighter
