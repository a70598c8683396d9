"""Prometheus' text format, from counters made by hand."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gateway.observability.exposition import render
from gateway.observability.exposition_state import ExpositionState
from gateway.observability.metrics import LATENCY_BOUNDS, Metrics, SeriesKey
from gateway.observability.stats import CacheEvents, PrefixUse, SessionUse, StoreUse
from gateway.protocol.engine_load import Load, Readiness

SPLIT = SeriesKey("split", "new", "mac", "http://c:1")
SPLIT_LABELS = {"route": "split", "arm": "new", "engine": "mac", "endpoint": "http://c:1"}

QUIET = ExpositionState(
    series={},
    connections=7,
    health={("mac", "http://c:1"): Readiness.READY, ("mac", "http://d:1"): Readiness.UNREADY},
    breakers_open={("mac", "http://c:1"): False, ("mac", "http://d:1"): True},
    rules_number=3,
    reloads_ok=1,
    reloads_refused=2,
    workers=4,
    worker_restarts=5,
    version="9",
    loads={("mac", "http://c:1"): Load(3, 1, 0.5), ("mac", "http://d:1"): Load(2, 0)},
    drained=frozenset({("mac", "http://d:1")}),
    store=StoreUse(
        calls=11,
        late=1,
        failed=2,
        refused=3,
        skipped=4,
        dropped=5,
        seconds=0.5,
        received=6,
        gaps=7,
        available=3,
        live=2,
    ),
    redis_restarts=8,
)


def busy() -> ExpositionState:
    """Two replies of 1 ms and of an hour, one of them retried; a refusal; a stream's messages."""
    metrics = Metrics()
    series = metrics.series(SPLIT)
    series.count(200, total=0.001, first_byte=0.0004, upstream=0.0009)
    series.count(200, total=3600.0, first_byte=0.2, upstream=3599.0)
    series.count_failure(503, 0.0002)
    series.count_error("overloaded")
    series.retries, series.in_flight, series.request_bytes, series.response_bytes = 1, 2, 300, 4000
    series.messages_sent, series.messages_received = 5, 60
    return replace(QUIET, series=metrics.by_key)


def scrape(state: ExpositionState) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """The samples that a Prometheus server reads, by name and labels."""
    families = text_string_to_metric_families(render(state).decode())
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }


@pytest.mark.parametrize(
    "name, labels, value",
    [
        ("pointsman_requests_total", {**SPLIT_LABELS, "status": "200"}, 2),
        ("pointsman_requests_total", {**SPLIT_LABELS, "status": "503"}, 1),
        ("pointsman_errors_total", {**SPLIT_LABELS, "reason": "overloaded"}, 1),
        ("pointsman_retries_total", SPLIT_LABELS, 1),
        ("pointsman_request_bytes_total", SPLIT_LABELS, 300),
        ("pointsman_response_bytes_total", SPLIT_LABELS, 4000),
        ("pointsman_request_messages_total", SPLIT_LABELS, 5),
        ("pointsman_response_messages_total", SPLIT_LABELS, 60),
        ("pointsman_in_flight", SPLIT_LABELS, 2),
        ("pointsman_connections", {}, 7),
        ("pointsman_endpoint_healthy", {"engine": "mac", "endpoint": "http://c:1"}, 1),
        ("pointsman_endpoint_healthy", {"engine": "mac", "endpoint": "http://d:1"}, 0),
        ("pointsman_breaker_open", {"engine": "mac", "endpoint": "http://c:1"}, 0),
        ("pointsman_breaker_open", {"engine": "mac", "endpoint": "http://d:1"}, 1),
        ("pointsman_endpoint_draining", {"engine": "mac", "endpoint": "http://c:1"}, 0),
        ("pointsman_endpoint_draining", {"engine": "mac", "endpoint": "http://d:1"}, 1),
        ("pointsman_engine_running", {"engine": "mac", "endpoint": "http://c:1"}, 3),
        ("pointsman_engine_running", {"engine": "mac", "endpoint": "http://d:1"}, 2),
        ("pointsman_engine_waiting", {"engine": "mac", "endpoint": "http://c:1"}, 1),
        ("pointsman_engine_kv_use", {"engine": "mac", "endpoint": "http://c:1"}, 0.5),
        ("pointsman_redis_calls_total", {}, 11),
        ("pointsman_redis_failures_total", {"reason": "late"}, 1),
        ("pointsman_redis_failures_total", {"reason": "failed"}, 2),
        ("pointsman_redis_failures_total", {"reason": "refused"}, 3),
        ("pointsman_redis_failures_total", {"reason": "skipped"}, 4),
        ("pointsman_redis_dropped_total", {}, 5),
        ("pointsman_redis_seconds_total", {}, 0.5),
        ("pointsman_redis_available", {}, 3),
        ("pointsman_redis_restarts_total", {}, 8),
        ("pointsman_news_heard_total", {}, 6),
        ("pointsman_news_gaps_total", {}, 7),
        ("pointsman_news_live", {}, 2),
        ("pointsman_rules_number", {}, 3),
        ("pointsman_rules_reloads_total", {"result": "ok"}, 1),
        ("pointsman_rules_reloads_total", {"result": "refused"}, 2),
        ("pointsman_workers", {}, 4),
        ("pointsman_worker_restarts_total", {}, 5),
        ("pointsman_info", {"version": "9"}, 1),
    ],
)
def test_what_is_told(name: str, labels: Mapping[str, str], value: float) -> None:
    """Every metric has this name, these labels and this value."""
    assert scrape(busy())[name, frozenset(labels.items())] == value


@pytest.mark.parametrize(
    "name, count, total",
    [
        ("pointsman_request_seconds", 3, 3600.0012),  # a refusal has a duration too
        ("pointsman_upstream_seconds", 2, 3599.0009),
        ("pointsman_first_byte_seconds", 2, 0.2004),
    ],
)
def test_histograms_count_and_sum(name: str, count: int, total: float) -> None:
    """The three latencies have a bucket for each bound and one for +Inf, and buckets are cumulative."""
    text = scrape(busy())

    def bucket(bound: str) -> float:
        return text[f"{name}_bucket", frozenset({**SPLIT_LABELS, "le": bound}.items())]

    buckets = [bucket(str(bound)) for bound in LATENCY_BOUNDS] + [bucket("+Inf")]
    assert buckets == sorted(buckets)
    assert buckets[-1] == count == text[f"{name}_count", frozenset(SPLIT_LABELS.items())]
    assert text[f"{name}_sum", frozenset(SPLIT_LABELS.items())] == pytest.approx(total)


def test_a_latency_on_a_bound_is_within_it() -> None:
    """`le` is inclusive: a reply of exactly 1 ms is in the bucket of 0.001, and an hour only in the last."""
    text = scrape(busy())
    where = "pointsman_request_seconds_bucket"
    assert text[where, frozenset({**SPLIT_LABELS, "le": "0.0005"}.items())] == 1
    assert text[where, frozenset({**SPLIT_LABELS, "le": "0.001"}.items())] == 2
    assert text[where, frozenset({**SPLIT_LABELS, "le": "120.0"}.items())] == 2


def test_a_gateway_without_redis_says_nothing_of_it() -> None:
    """Without Redis there are no Redis metrics, which could look like an outage."""
    assert b"pointsman_redis" not in render(replace(QUIET, store=None))


def test_sessions_are_told_by_where_they_went_from() -> None:
    """Session counters have labels for the endpoint that was left and for the reason."""
    use = SessionUse(
        1, 2, 3, 4, {("gpu", "http://a", "drained"): 5}, {("gpu", "http://b"): 6}, 7, {("gpu", "http://a", "lost"): 8}
    )
    text = scrape(replace(QUIET, sessions=use))
    place = {"engine": "gpu", "endpoint": "http://a", "reason": "drained"}
    assert text["pointsman_sessions_moved_total", frozenset(place.items())] == 5
    lost = {"engine": "gpu", "endpoint": "http://b"}
    assert text["pointsman_sequences_lost_total", frozenset(lost.items())] == 6
    assert text["pointsman_sequences_moved_total", frozenset({**place, "reason": "lost"}.items())] == 8
    names = ("read", "unread", "created", "shed")
    assert [text[f"pointsman_sessions_{name}_total", frozenset()] for name in names] == [1, 2, 3, 4]
    assert text["pointsman_sessions_known", frozenset()] == 7


def test_prefix_routing_is_counted() -> None:
    """Requests and blocks that followed a prompt's prefix, and the engine's events, are counted by engine; without such
    engines there is none of them."""
    state = replace(
        QUIET, prefixes={"gpu": PrefixUse(10, 8, 100, 60)}, cache_events={"gpu": CacheEvents(7, 1, 5, 2, 300)}
    )
    text, gpu = scrape(state), frozenset({("engine", "gpu")})
    names = ("requests", "followed", "blocks", "followed_blocks")
    assert [text[f"pointsman_prefix_{name}_total", gpu] for name in names] == [10, 8, 100, 60]
    names = ("events", "event_gaps", "prompts", "unplaced_blocks")
    assert [text[f"pointsman_kv_{name}_total", gpu] for name in names] == [7, 1, 5, 2]
    assert text["pointsman_kv_blocks", gpu] == 300
    assert b"pointsman_prefix" not in render(QUIET) and b"pointsman_kv" not in render(QUIET)


def test_names_are_escaped() -> None:
    """Quotes, backslashes and line ends in a name are escaped."""
    odd = 'a "b" \\ c\nd'
    metrics = Metrics()
    metrics.series(SeriesKey(odd)).count_failure(404, 0.001)
    text = scrape(replace(QUIET, series=metrics.by_key))
    labels = {"route": odd, "arm": "", "engine": "", "endpoint": "", "status": "404"}
    assert text["pointsman_requests_total", frozenset(labels.items())] == 1


def test_scrapes_do_not_add_up() -> None:
    """Each scrape reports only the state that it was given; nothing remains from the one before."""
    assert render(busy()) == render(busy())
    assert ("pointsman_retries_total", frozenset(SPLIT_LABELS.items())) not in scrape(QUIET)


def test_a_share_that_nobody_told_is_not_zero() -> None:
    """An engine that does not report its memory has no gauge of it."""
    where = frozenset({"engine": "mac", "endpoint": "http://d:1"}.items())
    assert ("pointsman_engine_kv_use", where) not in scrape(QUIET)


def test_arms_of_experiments_are_told() -> None:
    """Experiments' own counters are exported beside the request series."""
    metrics = Metrics()
    meter = metrics.arms.meter("x", "new").of_bucket(0)
    meter.answered(b"r", 500, 1, 0.1)
    meter.rated("thumb", 1.0, "up")
    meter.crossed()
    metrics.arms.meter("x", "new", is_forced=True).answered(b"r", 200, 1, 0.1)
    text = scrape(replace(QUIET, arms=metrics.arms.counted()))
    labels = {"experiment": "x", "arm": "new"}
    for name in ("requests", "errors", "crossed", "forced"):
        assert text[f"pointsman_arm_{name}_total", frozenset(labels.items())] == 1
    named = frozenset((labels | {"name": "thumb"}).items())
    assert text["pointsman_arm_feedback_values_total", named] == 1
    assert text["pointsman_arm_feedback_labels_total", named] == 1
