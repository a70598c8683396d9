"""Metrics under Triton's names, as Prometheus reads them."""

import asyncio
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from engines.host import metrics
from engines.host.exchange import Exchange, Fields
from engines.host.metrics import metrics_app
from engines.host.metrics_config import MetricsConfig
from gateway.protocol import prometheus_text
from tests.engines.host.parts import config_of, ints
from tests.engines.host.test_model import ECHO, Stage

# The metrics of models in Triton 2.51, and their types.
TRITONS = {
    "nv_inference_request_success": "counter",
    "nv_inference_request_failure": "counter",
    "nv_inference_count": "counter",
    "nv_inference_exec_count": "counter",
    "nv_inference_request_duration_us": "counter",
    "nv_inference_queue_duration_us": "counter",
    "nv_inference_compute_input_duration_us": "counter",
    "nv_inference_compute_infer_duration_us": "counter",
    "nv_inference_compute_output_duration_us": "counter",
    "nv_inference_pending_request_count": "gauge",
}


def reported(text: str) -> dict[str, Any]:
    return {family.name: family for family in text_string_to_metric_families(text)}


def test_models_are_reported_under_triton_s_names() -> None:
    """Each metric has the model, its version and the tags of the configuration; failures also have their reason."""

    async def scenario() -> str:
        stage = Stage(config_of(ECHO + 'metric_tags { key: "team" value: "a" }'))
        stage.send_request(ints("x", 1, 2, shape=(2, 1)))
        stage.instance.run()
        stage.send_request(ints("x", 1))
        stage.send_request(ints("x", 1))  # waits for the one before it
        return prometheus_text.write(f for f in metrics.families([stage.model]) if f.samples).decode()

    text = asyncio.run(scenario())
    families = reported(text)
    for name, kind in TRITONS.items():
        assert f"# TYPE {name} {kind}\n" in text
        assert families[name].samples[0].labels.items() >= {"model": "echo", "version": "1", "_team": "a"}.items()
    assert {
        name: families[name].samples[0].value
        for name in ("nv_inference_count", "nv_inference_pending_request_count", "pointsman_requests_in_flight")
    } == {
        "nv_inference_count": 2,
        "nv_inference_pending_request_count": 1,
        "pointsman_requests_in_flight": 2,
    }
    reasons = [sample.labels["reason"] for sample in families["nv_inference_request_failure"].samples]
    assert reasons == ["REJECTED", "CANCELED", "BACKEND", "OTHER"]
    assert families["pointsman_host_memory_bytes"].samples[0].value > 1e6
    assert "nv_cache_num_hits_per_model" not in families  # it has no cache


def test_latencies_are_chosen() -> None:
    """Without counters of latencies the counts stay; the pinned memory pool is reported with its configured size."""

    async def scenario() -> str:
        stage = Stage(config_of(ECHO))
        config = MetricsConfig(counter_latencies=False, pinned_pool_bytes=64)
        return prometheus_text.write(f for f in metrics.families([stage.model], config) if f.samples).decode()

    text = asyncio.run(scenario())
    assert {name for name in TRITONS if name in text} == {name for name in TRITONS if not name.endswith("_us")}
    assert "nv_pinned_memory_pool_total_bytes 64\n" in text and "nv_pinned_memory_pool_used_bytes 0\n" in text


@pytest.mark.parametrize(
    "method, path, status, starts",
    [
        ("GET", "/metrics", 200, b"# HELP a"),
        ("GET", "/metrics/", 200, b"# HELP a"),
        ("HEAD", "/metrics", 200, b"# HELP a"),
        ("GET", "/other", 200, b""),
        ("POST", "/metrics", 405, b'{"error":"Method Not Allowed"}'),
    ],
)
def test_the_metrics_port_has_one_page(method: str, path: str, status: int, starts: bytes) -> None:
    """Other paths have an empty reply, as in Triton."""

    class Connection:
        """Stores one reply."""

        status, body = 0, b""

        def begin_reply(self, status: int, fields: Fields) -> None:
            self.status = status

        def write_body(self, data: bytes, *, is_last: bool) -> None:
            self.body += data

        async def drained(self) -> None:
            pass

        def expect_body(self) -> None:
            raise AssertionError

        break_off = expect_body

    connection = Connection()
    app = metrics_app(lambda: [prometheus_text.gauge("a", "A", value=1)])
    asyncio.run(Exchange(connection, method, path, {}).run(app))
    assert (connection.status, connection.body[: len(starts)]) == (status, starts)
    if not starts:
        assert not connection.body
