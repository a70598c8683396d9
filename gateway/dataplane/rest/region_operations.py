"""Shared memory by REST: regions under the names that their clients have at engines."""

from __future__ import annotations

import re
from typing import Any, NamedTuple
from urllib.parse import unquote

import orjson

from gateway.protocol import protobuf
from gateway.protocol.conversion.control import no_region_name
from gateway.protocol.conversion.control_repository import CUDA_BODY, SYSTEM_BODY
from gateway.protocol.errors import ErrorKind, GatewayError, bad_request
from gateway.protocol.json_bounds import JsonBounds
from gateway.protocol.region_names import RegionNames

_PATH = re.compile(r"(/v2/(?:system|cuda)sharedmemory)(?:/region/([^/?]+))?/(\w+)(.*)")
_FORMS = {
    "/v2/systemsharedmemory": (SYSTEM_BODY, "inference.SystemSharedMemoryRegisterRequest"),
    "/v2/cudasharedmemory": (CUDA_BODY, "inference.CudaSharedMemoryRegisterRequest"),
}


class RegionPath(NamedTuple):
    """The parts of a target that names shared memory; `region` as it stands there, "" for all."""

    memory: str
    region: str
    action: str
    query: str

    @classmethod
    def of(cls, target: bytes) -> RegionPath:
        found = _PATH.fullmatch(target.decode("latin-1"))
        assert found is not None  # the path was read already
        memory, region, action, query = found.groups("")
        return cls(memory, region, action, query)

    def check_region(self) -> None:
        """Raises: GatewayError(BAD_REQUEST) where no region is named, as Triton's REST says whatever the body is."""
        if not self.region:
            raise no_region_name(self.memory.removeprefix("/v2/").removesuffix("sharedmemory"))

    def name(self, *, by_grpc: bool) -> str:
        """The region's name as inferences name it: Triton's REST does not resolve escapes."""
        return unquote(self.region) if by_grpc else self.region

    def target(self, region: str, action: str = "") -> bytes:
        """The target for another region, or another action."""
        name = f"/region/{region}" if region else ""
        return f"{self.memory}{name}/{action or self.action}{self.query}".encode("latin-1")


class OwnRegions:
    """What one client may see of the regions at engines."""

    def __init__(self, names: RegionNames, owner: str) -> None:
        self._names = names
        self._owner = owner

    def code(self, name: str) -> str:
        """What stands behind its name of a region."""
        return self._names.code(self._owner, name)

    def of(self, body: bytes) -> list[Any]:
        """Its regions in an engine's status, by its own names."""
        return [
            {**each, "name": name}
            for each in _regions(body)
            if (name := self._names.of_client(self._owner, each["name"])) is not None
        ]

    def names_at_engine(self, body: bytes) -> list[str]:
        """Its regions in an engine's status, by the engine's names."""
        return [each["name"] + self.code(each["name"]) for each in self.of(body)]

    def is_taken(self, key: str, body: bytes) -> bool:
        """Whether another's region in an engine's status is of this object."""
        return any(
            str(each.get("key", "")).lstrip("/") == key.lstrip("/")
            and self._names.of_client(self._owner, each["name"]) is None
            for each in _regions(body)
        )


def _regions(body: bytes) -> list[dict[str, Any]]:
    """Raises: GatewayError(UPSTREAM_PROTOCOL): whose the objects are is not known without them."""
    try:
        regions = orjson.loads(body.decode("utf-8", "replace"))  # Triton takes names of any bytes
    except orjson.JSONDecodeError:
        regions = None
    if not isinstance(regions, list):
        raise GatewayError(ErrorKind.UPSTREAM_PROTOCOL, "an engine listed its shared memory in no array of JSON")
    return [each for each in regions if isinstance(each, dict) and isinstance(each.get("name"), str)]


class Registration(NamedTuple):
    """A region as a client registers it. `key` names its object, and is "" of memory that is a GPU's; `body` has the
    fields alone, written anew, so that an engine reads what was checked here."""

    key: str
    body: bytes

    @classmethod
    def read(cls, path: RegionPath, body: bytes, bounds: JsonBounds) -> Registration:
        """Raises: GatewayError(BAD_REQUEST) where readers of JSON, or of the key, could differ."""
        form, name = _FORMS[path.memory]
        message = protobuf.message(name)()
        try:
            value = bounds.read(body)
            if not isinstance(value, dict):
                raise ValueError("it is no object")
            form.read(message, value)
        except ValueError as error:
            raise bad_request(f"failed to parse the shared memory register request: {error}") from error
        fields = form.write(message)
        key = fields.get("key", "")
        if "\0" in key:
            raise bad_request("'key' of the shared memory register request has a NUL, where engines end it")
        return cls(key, orjson.dumps(fields))


def without_code(body: bytes, code: str) -> bytes:
    """An engine's reply without the code of a region's name."""
    return body.replace(code.encode(), b"") if code else body
