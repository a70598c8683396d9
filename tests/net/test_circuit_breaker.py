"""The circuit breaker, with a clock moved by hand."""

import pytest

from gateway.config.engine_specs import EndpointSpec, EngineSpec
from gateway.net.circuit_breaker import CircuitBreaker, store_breaker
from gateway.upstream.endpoint import Endpoint

CASES = [
    # events: f(ailed), s(ucceeded), t(rial sent), a(bandoned), a number: seconds pass;  allows afterwards
    ("", True),
    ("ff", True),
    ("fff", False),
    ("ffsff", True),  # failures must be in a row
    ("fff 4", False),
    ("fff 5", True),  # the pause is over: a trial may be sent
    ("fff 5 t", False),  # only one trial
    ("fff 5 ts", True),
    ("fff 5 tf", False),
    ("fff 5 tf 5", False),  # the second pause is twice as long
    ("fff 5 tf 10", True),
    ("fff 5 ta", True),  # an abandoned trial is repeated
    ("fff 5 ta t", False),
    ("fff 5 ts ff", True),  # a success resets all failures
    ("fff 5 tf 10 ts fff 4", False),  # and the length of the pause
    ("fff 5 tf 10 ts fff 5", True),
    ("fff 3 ff 2", True),  # a request sent earlier that fails later does not extend the pause
    ("fff 3 s", True),  # a request sent earlier that succeeds shows that the endpoint works
    ("fff 3 a", False),  # an abandoned request that was sent earlier shows nothing
    ("fff 3 t 2", True),  # sent during the pause, for lack of another endpoint: not the trial
    ("fff" + " 60 tf" * 9 + " 59", False),
    ("fff" + " 60 tf" * 9 + " 60", True),  # no pause is longer than twelve times the first
]


@pytest.mark.parametrize("events, allows", CASES)
def test_the_breaker(events: str, allows: bool) -> None:
    """Three failures in a row exclude an endpoint for five seconds; then one trial decides."""
    breaker, now = CircuitBreaker(3, 5.0, 60.0), 100.0
    for word in events.split():
        if word.isdigit():
            now += int(word)
            continue
        for event in word:
            if event == "f":
                breaker.failed(now)
            elif event == "t":
                breaker.sent(now)
            else:
                {"s": breaker.succeeded, "a": breaker.abandoned}[event]()
    assert breaker.allows(now) is allows
    assert breaker.is_closed or not breaker.is_spotless


def test_what_counts_as_a_failure() -> None:
    """Only a proxy's 502 and 504 count as failures: a 503 or a 500 mostly concerns one model."""
    endpoint = Endpoint(EngineSpec("it", ()), EndpointSpec("http://e:80"), None)
    assert [status for status in range(100, 600) if endpoint.counts_as_failure(status)] == [502, 504]


def test_its_repr_tells_its_state() -> None:
    """A breaker's repr shows its state and the number of failures."""
    breaker = CircuitBreaker(2, 5.0, 60.0)
    breaker.failed(1.0)
    assert repr(breaker) == "<CircuitBreaker closed, 1 failures>"
    breaker.failed(2.0)
    assert repr(breaker) == "<CircuitBreaker open, 2 failures>"
    breaker.sent(7.0)
    assert repr(breaker) == "<CircuitBreaker trial, 2 failures>"
    breaker.succeeded()
    assert repr(breaker) == "<CircuitBreaker closed, 0 failures>"


def test_the_breaker_can_be_off() -> None:
    """With `failures: 0` the breaker never opens."""
    breaker = CircuitBreaker(0, 5.0, 60.0)
    for _ in range(100):
        breaker.failed(0.0)
    assert breaker.allows(0.0)


def test_a_trial_is_one_request_and_its_result_is_reported_once() -> None:
    """`try_send` allows one caller after the pause; opening and closing return True once, and pauses have jitter."""
    breaker = store_breaker()
    assert [breaker.failed(0.0, 1.0) for _ in range(4)] == [False, False, True, False]
    assert not breaker.try_send(0.6)  # 0.5 s and up to a quarter of jitter
    assert [breaker.try_send(0.7), breaker.try_send(0.7)] == [True, False]
    assert not breaker.failed(0.7, 0.0)
    assert [breaker.try_send(1.6), breaker.try_send(1.8)] == [False, True]
    assert [breaker.succeeded(), breaker.succeeded(), breaker.is_closed] == [True, False, True]
