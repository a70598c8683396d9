"""`hedging:` of engines: what is read, and what is refused, with the place."""

import pytest

from gateway.config.hedging_specs import HedgingDelay, HedgingSpec
from gateway.config.rules import load_texts

RULES = """version: 1
engines:
  e:
    endpoints: [http://a:8000, http://b:8000]
    retry: {idempotent: infer}
    hedging: %s
routes: [{name: all, engine: e}]
"""


def loaded(hedging="{}", rules=RULES):
    return load_texts({"rules.yaml": rules % hedging})


def test_an_empty_section_is_enough():
    assert loaded().rules.engines["e"].hedging == HedgingSpec()
    assert not loaded().problems
    text = "{delay: p99.9, min_delay: 5ms, budget: 10%, burst: 3}"
    assert loaded(text).rules.engines["e"].hedging == HedgingSpec(HedgingDelay(percentile=0.999), 0.005, 0.1, 3)
    assert loaded("{delay: 50ms}").rules.engines["e"].hedging.delay == HedgingDelay(seconds=0.05)


@pytest.mark.parametrize(
    ("hedging", "message"),
    [
        (
            "{delay: p100}",
            "'p100' is neither a percentile from p50 to p99.99 nor a duration above 0: write p95 or 50ms",
        ),
        ("{delay: 0s}", "'0s' is neither"),
        ("{delay: soon}", "'soon' is neither"),
        ("{delay: p20}", "p20 is out of range: p50 to p99.99"),
        ("{budget: 1.5}", "1.5 is out of range: 0 to 1"),
        ("{burst: 0}", "0 is too small"),
        ("{delays: p95}", "unknown key 'delays'"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(hedging, message):
    problems = [problem for problem in loaded(hedging).errors if message in problem.message]
    assert problems, loaded(hedging).problems
    assert problems[0].location.line == 6


def test_inferences_must_be_declared_idempotent():
    errors = loaded(rules=RULES.replace("infer}", "safe}")).errors
    assert "sends inferences twice: declare that this does no harm, by retry: {idempotent: infer}" in errors[0].message
    assert errors[0].location.line == 6


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (("[http://a:8000, http://b:8000]", "http://a:8000"), "there is no second endpoint"),
        (("    retry", "    protocol: openai\n    retry"), "it is for V2's inferences, and this engine speaks openai"),
    ],
)
def test_hedging_without_effect_is_a_warning(change, why):
    found = loaded(rules=RULES.replace(*change))
    assert found.rules is not None
    assert any(why in problem.message for problem in found.problems)
