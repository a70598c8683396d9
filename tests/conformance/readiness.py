"""That a gateway knows as much as Triton does, before the two are compared."""

from gateway.demo.triton import TritonProcess, is_ready
from tests.support.servers import GatewayProcess
from tests.support.waiting import eventually


def hears_of(triton: TritonProcess, gateway: GatewayProcess) -> None:
    """A load that fails, as some calls provoke it, makes Triton unready until another model is loaded; the gateway
    hears of either by its probes."""
    eventually(lambda: is_ready(gateway.http_url) == is_ready(triton.http_url))
