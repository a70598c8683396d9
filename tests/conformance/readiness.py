"""Wait until the gateway's readiness equals Triton's before the two are compared."""

from gateway.demo.triton import TritonProcess, is_ready
from tests.support.servers import GatewayProcess
from tests.support.waiting import eventually


def hears_of(triton: TritonProcess, gateway: GatewayProcess) -> None:
    """A failed load, which some calls cause, makes Triton unready until another model is loaded; the gateway's probes
    detect both."""
    eventually(lambda: is_ready(gateway.http_url) == is_ready(triton.http_url))
