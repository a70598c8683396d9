"""What the gateway needs to use an engine protocol is registered for each of them."""

import pytest

from gateway.dataplane.translation.model_description import DESCRIBERS
from gateway.dataplane.translation.translators import TRANSLATORS
from gateway.protocol.engine_protocols import EngineProtocol, protocols_with


@pytest.mark.parametrize("protocol", EngineProtocol)
def test_every_protocol_is_registered(protocol: EngineProtocol) -> None:
    """A protocol has translators for every client, a description of its models where it is not V2, and a probe."""
    assert None in TRANSLATORS[protocol]
    assert protocol.is_v2 != (protocol in DESCRIBERS)
    assert all(path.startswith(("/", "{base}/")) for path in protocol.traits.ready_paths)


def test_a_rule_key_names_its_protocols() -> None:
    """A key that only some engines have says which; any other is of all."""
    assert protocols_with("envelope") == [EngineProtocol.TORCHSERVE]
    assert protocols_with("timeout") is None
