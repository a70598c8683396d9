"""Triton's metrics on the gateway's metrics port."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Callable

import numpy as np
import pytest
import tritonclient.http as http_client
from tritonclient.utils import InferenceServerException

from gateway.demo.triton import TritonProcess
from tests.conftest import everything_to
from tests.support.servers import GatewayProcess

pytestmark = pytest.mark.triton

_COUNTS = re.compile(r"^nv_inference_(?:request_success|request_failure|count|exec_count)\{.*$", re.MULTILINE)


def scraped(url: str) -> str:
    with urllib.request.urlopen(url) as reply:
        return str(reply.read().decode())


def test_counts_of_inferences(triton: TritonProcess, start_gateway: Callable[..., GatewayProcess]) -> None:
    """The lines of `nv_inference_...` are Triton's own, to the byte; with two engines for one server, too, and without
    the key `metrics` there are none."""
    port = triton.metrics_url.rsplit(":", 1)[1].partition("/")[0]
    plain = everything_to(triton)
    with_metrics = plain.replace("protocol: kserve", f'protocol: kserve\n    metrics: {{path: ":{port}/metrics"}}')
    gateway = start_gateway(with_metrics)
    with http_client.InferenceServerClient(f"127.0.0.1:{gateway.http_port}") as client:
        values = http_client.InferInput("INPUT0", [1, 2], "FP32")
        values.set_data_from_numpy(np.ones((1, 2), dtype=np.float32))
        client.infer("identity_fp32", [values])
        with pytest.raises(InferenceServerException):
            client.infer("failer", [values])
    # Triton counts a request after its reply; other tests may use the server: the two are compared where it rests.
    for _ in range(100):
        before = _COUNTS.findall(scraped(triton.metrics_url))
        through = _COUNTS.findall(scraped(f"http://127.0.0.1:{gateway.admin_port}/metrics"))
        if before == _COUNTS.findall(scraped(triton.metrics_url)):
            break
    assert any(line.startswith('nv_inference_count{model="identity_fp32",version="1"} ') for line in through)
    assert sorted(through) == sorted(before)
    without = start_gateway(plain)
    assert "nv_" not in scraped(f"http://127.0.0.1:{without.admin_port}/metrics")
