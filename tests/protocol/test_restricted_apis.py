"""Restricted APIs, as Triton's options write them."""

import pytest

from gateway.protocol.restricted_apis import grpc_restrictions, http_restrictions


def test_each_category_has_its_header() -> None:
    """One option names several categories; gRPC's headers have a prefix."""
    options = ["health,metadata:key=secret", "trace:other=a=b"]
    assert http_restrictions(options) == {
        "health": ("key", "secret"),
        "metadata": ("key", "secret"),
        "trace": ("other", "a=b"),
    }
    assert grpc_restrictions(options[:1])["health"] == ("triton-grpc-protocol-key", "secret")


WRONG = [
    (["health"], "option format is"),
    (["health:key"], "option format is"),
    (["wealth:key=v"], "unknown restricted api 'wealth'"),
    (["health:a=b", "health:c=d"], "'health' can not be specified in multiple config groups"),
]


@pytest.mark.parametrize("options, text", WRONG)
def test_wrong_options_are_reported(options: list[str], text: str) -> None:
    """The error has the correction."""
    with pytest.raises(ValueError, match=text):
        http_restrictions(options)
