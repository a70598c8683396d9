"""The registries of engine protocols are complete."""

import pytest

from gateway.dataplane.translation.model_description import DESCRIBERS
from gateway.dataplane.translation.translators import TRANSLATORS
from gateway.protocol.engine_protocols import EngineProtocol, protocols_with


@pytest.mark.parametrize("protocol", EngineProtocol)
def test_every_protocol_is_registered(protocol: EngineProtocol) -> None:
    """Every protocol has translators and valid readiness paths, and a model description if it is not V2."""
    assert None in TRANSLATORS[protocol]
    assert protocol.is_v2 != (protocol in DESCRIBERS)
    assert all(path.startswith(("/", "{base}/")) for path in protocol.traits.ready_paths)


def test_a_rule_key_names_its_protocols() -> None:
    """A rule key for some protocols lists those; other keys apply to all."""
    assert protocols_with("envelope") == [EngineProtocol.TORCHSERVE]
    assert protocols_with("timeout") is None
