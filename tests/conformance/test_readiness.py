"""What Triton's own readiness means for the traffic that goes through the gateway."""

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
    health: {{interval: 20ms, unhealthy_after: 1}}
routes:
  - {{name: everything, engine: triton}}
"""


def test_a_model_that_does_not_load_costs_no_other_model_its_traffic(
    tmp_path: Path, start_gateway: Callable[..., GatewayProcess]
) -> None:
    """Triton is not ready while one model loads, and for good where one has failed to; its other models serve on."""
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
        statuses, end = set(), time.monotonic() + 1.0  # fifty probes
        while time.monotonic() < end:
            statuses.add(send(gateway.http_port, "POST", "/v2/models/text/generate", b'{"text_input":"x"}').status)
        gateway.stop()  # first, because Triton does not end before its idle connections do, or its 30 s are over
        assert statuses == {200}
