"""Engines that add up the values of each sequence, and refuse a sequence whose start they have not seen."""

from __future__ import annotations

import gzip
import json
from typing import Any

from tritonclient.grpc import service_pb2

from tests.dataplane.grpc.peers import OK, UNARY, Call
from tests.dataplane.stage import Engine, ReceivedRequest, post

INFER = "/v2/models/m/infer"
UNKNOWN = "inference request for sequence 7 to model 'm' must specify the START flag"


class Sums:
    """The sequences of one engine."""

    def __init__(self) -> None:
        self.totals: dict[int, int] = {}
        self.received: list[int] = []  # the values, in order of arrival

    def add(self, reply: dict[str, Any]) -> str:
        """The sum so far.

        Raises: ValueError where the engine refuses.
        """
        sequence, value = reply["sequence_id"], reply["value"]
        if value < 0:
            raise ValueError("the value is negative")
        if not (reply.get("sequence_start") or sequence in self.totals):
            raise ValueError(UNKNOWN)
        self.received.append(value)
        total = value if reply.get("sequence_start") else self.totals[sequence] + value
        self.totals[sequence] = total
        if reply.get("sequence_end"):
            del self.totals[sequence]
        return str(total)

    async def by_rest(self, engine: Engine, received: ReceivedRequest, reader: Any, writer: Any) -> None:
        """A script for a REST engine; the reply's id is the sum."""
        if not received.line.split(" ")[1].endswith("/infer"):  # a request for its metadata or config
            body = json.dumps({"name": "m", "model_transaction_policy": {"decoupled": False}}).encode()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
            return
        data = gzip.decompress(received.body) if received.value("content-encoding") == "gzip" else received.body
        length = received.value("inference-header-content-length")
        status, reply = b"200 OK", dict[str, Any](model_name="m", model_version="1", outputs=[])
        try:
            reply["id"] = self.add(json.loads(data[: int(length)] if length else data)["parameters"])
        except ValueError as error:
            status, reply = b"400 Bad Request", {"error": str(error)}
        body = json.dumps(reply).encode()
        writer.write(b"HTTP/1.1 %b\r\nContent-Length: %d\r\n\r\n%b" % (status, len(body), body))

    async def by_grpc(self, call: Call) -> None:
        """A script for a gRPC engine; the reply's id is the sum."""
        await call.over()
        if call.value(":path") != UNARY:  # a request for its metadata or config
            call.open()
            await call.send(service_pb2.ModelConfigResponse(config={"name": "m"}).SerializeToString())
            call.end(OK)
            return
        message = gzip.decompress(call.messages[0]) if call.compressed[0] else call.messages[0]
        requested = service_pb2.ModelInferRequest.FromString(message)
        kinds = {name: value.WhichOneof("parameter_choice") for name, value in requested.parameters.items()}
        try:
            total = self.add({name: getattr(requested.parameters[name], kind) for name, kind in kinds.items()})
        except ValueError as error:
            call.refuse(3, str(error))
            return
        call.open()
        answer = service_pb2.ModelInferResponse(model_name=requested.model_name, model_version="1", id=total)
        await call.send(answer.SerializeToString())
        call.end(OK)


def parameters(number: int, value: int, *, start: bool = False, end: bool = False) -> dict[str, Any]:
    return {"sequence_id": number, "value": value, "sequence_start": start, "sequence_end": end}


def step(number: int, value: int, *fields: str, more: Any = None, **ends: bool) -> bytes:
    """A REST request of a sequence."""
    body = json.dumps({"parameters": parameters(number, value, **ends), "inputs": [], **(more or {})})
    return post(INFER, body.encode(), *fields)
