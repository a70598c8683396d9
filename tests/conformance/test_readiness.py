"""Triton's readiness and the traffic through the gateway."""

import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gateway.demo.triton import TritonProcess
from tests.support.servers import SAMPLE_MODELS, GatewayProcess
from tests.support.wire import send

pytestmark = pytest.mark.triton

RULES = """
version: 1
engines:
  triton:
    endpoints: ["{url}"]
    health: {{interval: 20ms, timeout: 60s, unhealthy_after: 1}}
routes:
  - {{name: everything, engine: triton}}
"""


def test_a_model_that_does_not_load_costs_no_other_model_its_traffic(
    tmp_path: Path, start_gateway: Callable[..., GatewayProcess]
) -> None:
    """Triton is not ready while a model loads, and permanently after a failed load; its other models still get their
    traffic."""
    models = tmp_path / "models"
    shutil.copytree(SAMPLE_MODELS, models)
    shutil.copytree(models / "text", models / "broken")
    (models / "broken" / "config.pbtxt").write_text(
        (models / "text" / "config.pbtxt").read_text().replace("text", "broken", 1)
    )
    (models / "broken" / "1" / "model.py").write_text("raise RuntimeError('broken')")
    arguments = ["--model-control-mode=explicit", "--load-model=text"]
    with TritonProcess.start(models, extra_args=arguments).wait_ready() as triton:
        gateway = start_gateway(RULES.format(url=triton.http_url))
        assert send(triton.http_port, "POST", "/v2/repository/models/broken/load").status == 400
        assert send(triton.http_port, "GET", "/v2/health/ready").status == 400
        statuses, end = set(), time.monotonic() + 1.0  # at least fifty probes
        while time.monotonic() < end:
            statuses.add(send(gateway.http_port, "POST", "/v2/models/text/generate", b'{"text_input":"x"}').status)
        gateway.stop()  # first, because Triton ends only after its idle connections, or after 30 s
        assert statuses == {200}
