"""Envoy's external processing as messages: what a picker reads of requests, and the bytes of its answers."""

import pytest

from gateway.protocol import ext_proc
from gateway.protocol.ext_proc import BodyMode, Mutation, Part, message, parse


def test_messages_have_envoys_field_numbers() -> None:
    """Literal bytes, as Envoy writes them: request_headers is field 2, its headers 1, a header's raw_value 3."""
    header = b"\x0a\x05:path" + b"\x1a\x03/v2"
    headers = b"\x0a" + bytes((len(header),)) + header
    http = b"\x0a" + bytes((len(headers),)) + headers + b"\x18\x01"
    config = b"\x5a\x04\x08\x04\x10\x02"  # protocol_config: FULL_DUPLEX_STREAMED, BUFFERED
    request = parse("ProcessingRequest", b"\x12" + bytes((len(http),)) + http + config)
    found = ext_proc.part_of(request)
    assert found is not None
    part, head = found
    assert part is Part.REQUEST_HEADERS
    assert head.end_of_stream
    assert ext_proc.fields_of(head.headers) == [(b":path", b"/v2")]
    assert ext_proc.modes_of(request) == (BodyMode.FULL_DUPLEX_STREAMED, BodyMode.BUFFERED)


@pytest.mark.parametrize("part", Part)
def test_an_answer_that_changes_nothing(part: Part) -> None:
    """Two bytes say that a part goes on as it is."""
    response = message("ProcessingResponse").FromString(ext_proc.go_on(part))
    assert [field.name for field, _ in response.ListFields()] == [part.name.lower()]


def test_header_and_metadata_name_the_same_endpoints() -> None:
    """A choice stands in the header and under `envoy.lb`, and header values need not be UTF-8."""
    mutation = Mutation([(b"x-key", b"\xff")], [b"authorization"], b"body")
    answer = ext_proc.destined(Part.REQUEST_BODY, "10.0.0.1:80,10.0.0.2:80", mutation)
    response = message("ProcessingResponse").FromString(answer)
    common = response.request_body.response
    fields = {option.header.key: option.header.raw_value for option in common.header_mutation.set_headers}
    assert fields == {b"x-gateway-destination-endpoint": b"10.0.0.1:80,10.0.0.2:80", b"x-key": b"\xff"}
    assert list(common.header_mutation.remove_headers) == [b"authorization"]
    assert common.body_mutation.body == b"body"
    metadata = response.dynamic_metadata.fields["envoy.lb"].struct_value.fields
    assert metadata["x-gateway-destination-endpoint"].string_value == "10.0.0.1:80,10.0.0.2:80"
    assert not response.HasField("mode_override")


@pytest.mark.parametrize("size", [0, 1, 127, 128, 60 * 1024, 60 * 1024 + 1, 200_000])
@pytest.mark.parametrize("ended", [False, True])
def test_long_bodies_go_on_in_pieces(size: int, ended: bool) -> None:
    """The pieces of a body are the body, none is long, and the last one alone ends it."""
    body = bytes(range(256)) * (size // 256 + 1)
    body = body[:size]
    pieces = []
    for answer in ext_proc.pieces(Part.RESPONSE_BODY, body, ended):
        assert len(answer) < 64 * 1024
        response = message("ProcessingResponse").FromString(answer)
        pieces.append(response.response_body.response.body_mutation.streamed_response)
    assert b"".join(piece.body for piece in pieces) == body
    assert [piece.end_of_stream for piece in pieces] == [False] * (len(pieces) - 1) + [ended]


def _with_metadata(namespace: str, key: str) -> tuple[object, object]:
    request = message("ProcessingRequest")()
    return request, request.metadata_context.filter_metadata[namespace].fields[key]


def test_the_subset_of_endpoints_is_a_list() -> None:
    """`x-gateway-destination-endpoint-subset` restricts the choice; an empty list allows none."""
    request, value = _with_metadata("envoy.lb.subset_hint", "x-gateway-destination-endpoint-subset")
    for address in ("10.0.0.1:80", "10.0.0.2:80"):
        value.list_value.values.add(string_value=address)  # type: ignore[attr-defined]
    assert ext_proc.subset_of(request) == {"10.0.0.1:80", "10.0.0.2:80"}
    request, value = _with_metadata("envoy.lb.subset_hint", "x-gateway-destination-endpoint-subset")
    value.string_value = "10.0.0.1:80, 10.0.0.2:80"  # type: ignore[attr-defined]
    assert ext_proc.subset_of(request) == {"10.0.0.1:80", "10.0.0.2:80"}
    request, value = _with_metadata("envoy.lb.subset_hint", "x-gateway-destination-endpoint-subset")
    value.list_value.SetInParent()  # type: ignore[attr-defined]
    assert ext_proc.subset_of(request) == frozenset()
    assert ext_proc.subset_of(message("ProcessingRequest")()) is None


def test_the_endpoint_that_has_served() -> None:
    """The proxy says under `envoy.lb` which endpoint has answered."""
    request, value = _with_metadata("envoy.lb", "x-gateway-destination-endpoint-served")
    value.string_value = "10.0.0.2:80"  # type: ignore[attr-defined]
    assert ext_proc.served_by(request) == "10.0.0.2:80"
    assert ext_proc.served_by(message("ProcessingRequest")()) is None


def test_unknown_modes_are_none_that_is_known() -> None:
    """A mode of a later Envoy does not end the call."""
    request = message("ProcessingRequest")()
    assert ext_proc.modes_of(request) is None
    request.protocol_config.request_body_mode = 9
    assert ext_proc.modes_of(request) is None
