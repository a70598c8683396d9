"""The proxy's side of external processing, by grpcio: one message after the other, and the answers to each."""

import queue
from collections.abc import Iterator, Sequence
from typing import Any, Self

import grpc

from gateway.protocol.ext_proc import PROCESS_PATH, BodyMode, message

DESTINATION = "x-gateway-destination-endpoint"
FULL_DUPLEX, BUFFERED, NONE = BodyMode.FULL_DUPLEX_STREAMED, BodyMode.BUFFERED, BodyMode.NONE


class Stream:
    """One request of a proxy at a picker."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._sent: queue.Queue[Any] = queue.Queue()
        call = channel.stream_stream(
            PROCESS_PATH.decode(),
            request_serializer=lambda request: request.SerializeToString(),
            response_deserializer=message("ProcessingResponse").FromString,
        )
        self.call = call(iter(self._sent.get, None), timeout=120)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._sent.put(None)
        self.call.cancel()

    def head(
        self,
        path: str,
        *,
        method: str = "POST",
        ended: bool = False,
        modes: tuple[BodyMode, BodyMode] | None = (FULL_DUPLEX, NONE),
        fields: Sequence[tuple[str, str]] = (),
        subset: Sequence[str] | None = None,
    ) -> Self:
        request = message("ProcessingRequest")()
        named = [(":method", method), (":path", path), (":authority", "models"), (":scheme", "http"), *fields]
        for name, value in named:
            request.request_headers.headers.headers.add(key=name.encode(), raw_value=value.encode())
        request.request_headers.end_of_stream = ended
        if modes is not None:
            request.protocol_config.request_body_mode, request.protocol_config.response_body_mode = modes
        if subset is not None:
            known = request.metadata_context.filter_metadata["envoy.lb.subset_hint"]
            value = known.fields[f"{DESTINATION}-subset"]
            value.list_value.SetInParent()
            for address in subset:
                value.list_value.values.add(string_value=address)
        return self._send(request)

    def body(self, data: bytes, *, ended: bool = True) -> Self:
        request = message("ProcessingRequest")()
        request.request_body.SetInParent()
        request.request_body.body, request.request_body.end_of_stream = data, ended
        return self._send(request)

    def trailers(self) -> Self:
        request = message("ProcessingRequest")()
        request.request_trailers.SetInParent()
        return self._send(request)

    def reply_head(
        self, status: int, *, ended: bool = False, served: str | None = None, details: str | None = "via_upstream"
    ) -> Self:
        request = message("ProcessingRequest")()
        request.response_headers.headers.headers.add(key=b":status", raw_value=b"%d" % status)
        request.response_headers.end_of_stream = ended
        if served is not None:
            known = request.metadata_context.filter_metadata["envoy.lb"]
            known.fields[f"{DESTINATION}-served"].string_value = served
        if details is not None:
            request.attributes["envoy.filters.http.ext_proc"].fields["response.code_details"].string_value = details
        return self._send(request)

    def reply_body(self, data: bytes, *, ended: bool = True) -> Self:
        request = message("ProcessingRequest")()
        request.response_body.SetInParent()
        request.response_body.body, request.response_body.end_of_stream = data, ended
        return self._send(request)

    def close(self) -> None:
        """End the stream, and wait until the picker has."""
        self._sent.put(None)
        assert list(self.call) == []
        assert self.call.code() is grpc.StatusCode.OK

    def _send(self, request: Any) -> Self:
        self._sent.put(request)
        return self

    def answer(self) -> Any:
        return next(self.call)

    def destination(self) -> str:
        """The endpoints in the next answer, which must be a choice, the same in header and metadata."""
        response = self.answer()
        assert not response.HasField("immediate_response"), refusal(response)
        return destination_of(response)

    def refusal(self) -> tuple[int, bytes]:
        """Status and body of the next answer, which must refuse the request."""
        return refusal(self.answer())

    def pieces(self) -> Iterator[Any]:
        """Pieces of a body, up to its end."""
        while True:
            response = self.answer()
            part = response.request_body if response.HasField("request_body") else response.response_body
            yield (piece := part.response.body_mutation.streamed_response)
            if piece.end_of_stream:
                return


def destination_of(response: Any) -> str:
    common = (response.request_headers if response.HasField("request_headers") else response.request_body).response
    fields = fields_of(common)
    chosen = fields[DESTINATION.encode()].decode()
    metadata = response.dynamic_metadata.fields["envoy.lb"].struct_value.fields[DESTINATION]
    assert metadata.string_value == chosen
    return chosen


def fields_of(common: Any) -> dict[bytes, bytes]:
    return {option.header.key: option.header.raw_value for option in common.header_mutation.set_headers}


def refusal(response: Any) -> tuple[int, bytes]:
    assert response.HasField("immediate_response"), response
    return response.immediate_response.status.code, response.immediate_response.body
