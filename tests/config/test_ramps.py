"""The keys of an experiment's evaluation and ramp."""

from __future__ import annotations

import pytest

from gateway.config.experiment_specs import BanditSpec, ExperimentSpec, FuseSpec, GuardrailSpec, RampSpec
from tests.config.conftest import Load

HEAD = """\
version: 1
engines: {e: {endpoints: 'http://a'}}
routes: [{name: r, experiment: x}]
experiments:
  x:
    arms: [{name: old, engine: e, weight: 1}, {name: new, engine: e, weight: 0}]
"""


def experiment(load: Load, text: str, head: str = HEAD) -> ExperimentSpec:
    loaded = load(head + "".join(f"    {line}\n" for line in text.splitlines()))
    assert loaded.rules is not None, loaded.problems
    return loaded.rules.experiments["x"]


def test_every_key_is_read(load: Load) -> None:
    """Shares are read as 5% or 0.05, seconds as durations, and each guardrail's bound in its metric's unit."""
    found = experiment(
        load,
        """\
metric: latency_p95
goal: lower
alpha: 1%
guardrails:
  - {metric: error_rate, max_increase: 1%}
  - {metric: latency_p99, max: 800ms}
  - {metric: first_token, max_ratio: 1.2}
  - {metric: 'feedback:rating', max_decrease: 0.1}
ramp:
  steps: [1%, 0.05, 100%]
  arm: new
  min_requests: 50
  min_time: 30s
  auto_start: true
  fuse: {error_rate: 30%, min_requests: 10, window: 5s}
""",
    )
    assert (found.metric, found.goal, found.alpha) == ("latency_p95", "lower", 0.01)
    assert found.guardrails == (
        GuardrailSpec("error_rate", max_increase=0.01),
        GuardrailSpec("latency_p99", max=0.8),
        GuardrailSpec("first_token", max_ratio=1.2),
        GuardrailSpec("feedback:rating", max_decrease=0.1),
    )
    assert str(found.guardrails[1].location) == "rules.yaml:12:9"
    assert found.ramp == RampSpec((0.01, 0.05, 1.0), "new", 50, 30.0, True, FuseSpec(0.3, 10, 5.0))


def test_what_is_left_out_has_a_default(load: Load) -> None:
    """A ramp needs only its steps: with two arms it grows the one that is not the control."""
    assert experiment(load, "ramp: {steps: 10%}").ramp == RampSpec((0.1,), "new")
    assert experiment(load, "bandit: {}").bandit == BanditSpec()


def test_a_bandit_is_read(load: Load) -> None:
    """A bandit's metric, bounds, interval and half-life are read."""
    text = "bandit: {metric: 'feedback:like', min_share: 10%, max_share: 90%, every: 1m, half_life: 2h}"
    assert experiment(load, text).bandit == BanditSpec("feedback:like", 0.1, 0.9, 60.0, 7200.0)


PROBLEMS = [
    ("metric: eror_rate", "7:13: error: unknown metric 'eror_rate': did you mean 'error_rate'?"),
    (
        "metric: happiness",
        "7:13: error: unknown metric 'happiness'; known: error_rate, latency, latency_p95, first_token, per_token, "
        "output_tokens, feedback:NAME",
    ),
    (
        "metric: 'feedback:a b'",
        "7:13: error: 'a b' is not a name: letters, digits, '.', '_', '-', up to 100, a letter or digit first",
    ),
    (
        "metric: 'feedback:like'",
        "7:5: error: experiment 'x' goes by feedback:like: say 'goal: higher' or 'goal: lower'",
    ),
    ("goal: more", "7:11: error: unknown value 'more'; known: lower, higher"),
    ("alpha: 2", "7:12: error: 2 is out of range: more than 0, up to 0.5"),
    ("ramp: {steps: []}", "7:19: error: the list is empty"),
    ("ramp: {arm: new}", "7:11: error: a ramp needs 'steps'"),
    ("ramp: {steps: [5%, 1%]}", "7:24: error: steps grow: 0.01 is not more than 0.05 before it"),
    ("ramp: {steps: [50%, 200%]}", "7:25: error: 200% is more than the whole: at most 100%"),
    ("ramp: {steps: [0, 10%]}", "7:20: error: 0 is too small: more than 0"),
    ("ramp: {steps: [5]}", "7:20: error: 5 is more than the whole: did you mean 5%?"),
    ("ramp: {steps: [5%], arm: nwe}", "7:30: error: experiment 'x' has no arm 'nwe': did you mean 'new'?"),
    (
        "ramp: {steps: [5%], arm: old}",
        "7:30: error: 'old' is the control arm, with which others are compared: a ramp grows one "
        "of the others; known: new",
    ),
    ("ramp: {steps: [5%], min_requests: 0}", "7:39: error: 0 is too small: at least 1"),
    ("ramp: {steps: [5%], fuse: {error_rate: 0}}", "7:44: error: 0 is too small: more than 0"),
    ("ramp: {steps: [5%], fuse: {windw: 1s}}", "7:32: error: unknown key 'windw' in a fuse: did you mean 'window'?"),
    (
        "ramp: {steps: [5%]}\nbandit: {}",
        "8:5: error: experiment 'x' has a ramp and a bandit: one of them moves its weights",
    ),
    (
        "bandit: {metric: latency}",
        "7:22: error: a bandit goes by error_rate, or by feedback:NAME of 0 and 1, not by latency",
    ),
    ("bandit: {min_share: 60%}", "7:5: error: min_share 0.6 of 2 arms: 0 to 0.5 can be had by each"),
    ("bandit: {max_share: 40%}", "7:5: error: max_share 0.4 of 2 arms: less than 0.5 leaves units without one"),
    (
        "guardrails: {metric: latency}",
        "7:17: error: the guardrail on latency needs one of max, max_increase, max_decrease, max_ratio, min_ratio",
    ),
    (
        "guardrails: {metric: latency, max: 1s, max_ratio: 2}",
        "7:17: error: the guardrail on latency has max and max_ratio: it can have one of them",
    ),
    ("guardrails: {max: 1s}", "7:17: error: a guardrail needs 'metric'"),
    (
        "guardrails: {metric: latency, max: fast}",
        "7:40: error: 'fast' is not a duration: write 30s, 500ms, 2m, 1h or a number of seconds",
    ),
    ("guardrails: {metric: latency, max_ratio: 0}", "7:46: error: 0 is too small: more than 0"),
    (
        "guardrails: {metric: error_rate, max_increase: -1%}",
        "7:52: error: -1% is negative: max_increase is 0 at the least",
    ),
]


@pytest.mark.parametrize("text, expected", PROBLEMS)
def test_a_mistake_is_told_where_and_what(load: Load, text: str, expected: str) -> None:
    """Each error is one sentence, at the wrong value or key."""
    loaded = load(HEAD + "".join(f"    {line}\n" for line in text.splitlines()))
    assert [str(problem) for problem in loaded.errors] == [f"rules.yaml:{expected}"]
    assert loaded.rules is None


def test_a_ramp_of_several_arms_says_which(load: Load) -> None:
    """A ramp of three arms must name the arm to grow; a ramp of one arm is an error."""
    three = HEAD.replace("weight: 0}]", "weight: 0}, {name: newer, engine: e, weight: 0}]")
    (problem,) = load(three + "    ramp: {steps: [5%]}\n").errors
    assert (
        str(problem) == "rules.yaml:7:11: error: the ramp of experiment 'x' needs 'arm': which of new, newer is to grow"
    )
    one = HEAD.replace(", {name: new, engine: e, weight: 0}", "")
    (problem,) = load(one + "    ramp: {steps: [5%]}\n").errors
    assert str(problem) == "rules.yaml:7:5: error: experiment 'x' has one arm: a ramp needs two at the least"


def test_a_ramp_without_guardrails_is_warned_of(load: Load) -> None:
    """A ramp without guardrails is a warning: only the fuse can end it."""
    (problem,) = load(HEAD + "    ramp: {steps: [5%]}\n").problems
    what = "experiment 'x' has a ramp and no guardrails: only its fuse can end it"
    assert str(problem) == f"rules.yaml:7:5: warning: {what}"
