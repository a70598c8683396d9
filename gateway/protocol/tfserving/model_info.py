"""A model as TF Serving names it: by its name, and a version's number or label.

V2 knows numbers alone, so a label is told in one of these ways: as the model's name at the engine (`half:stable`, in a
route's `model` or by the client itself; TF Serving's own names have no colon), as the request parameter
`version_label`, or, by gRPC, as a version that is no number.
Source: TF Serving `model_servers/http_rest_api_util.cc` (its paths), `apis/model.proto`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from gateway.protocol.conversion import triton_json
from gateway.protocol.conversion.errors import refusing
from gateway.protocol.datatypes import DATATYPES
from gateway.protocol.errors import ErrorKind, GatewayError, bad_request
from gateway.protocol.protobuf import Message
from gateway.protocol.tfserving.messages import of_name, of_number, parse

_MAX_VERSION = 2**63 - 1


@dataclass(frozen=True, slots=True)
class ModelPath:
    """A model; of its latest version where neither `version` nor `label` is told."""

    name: str
    version: str = ""  # digits
    label: str = ""

    @property
    def path(self) -> str:
        """Where REST has it; `:predict` or `/metadata` follow, and its status stands at the path itself."""
        path = f"/v1/models/{_segment(self.name)}"
        if self.version:
            return f"{path}/versions/{self.version}"
        return f"{path}/labels/{_segment(self.label)}" if self.label else path

    @property
    def metadata_path(self) -> str:
        return f"{self.path}/metadata"


def target(model: str, version: str = "", label: str = "") -> ModelPath:
    """The model that a V2 request means. `model` is the name at the engine, with or without `:label`. Raises:
    GatewayError(BAD_REQUEST) where it names no model, several versions, or one that is too large."""
    name, _, own = model.partition(":")
    numeric = version.isascii() and version.isdigit()
    labels = {found for found in (own, label, "" if numeric else version) if found}
    if not name:
        raise bad_request("the request names no model")
    if len(labels) + numeric > 1:
        versions = ", ".join(sorted(labels) + [version] * numeric)
        raise bad_request(f"model '{name}' is asked for in several versions: {versions}")
    if numeric and (len(version) > 40 or int(version) > _MAX_VERSION):
        raise bad_request(f"failed to get model version from specified version string '{version[:80]}'")
    return ModelPath(name, str(int(version)) if numeric else "", labels.pop() if labels else "")


def _segment(name: str) -> str:
    return quote(name, safe="!$&'()*+,;=@")


DEFAULT_SIGNATURE = "serving_default"
PLATFORM = "tensorflow_savedmodel"  # Triton's word for what TF Serving loads

_AVAILABLE = "AVAILABLE"
_AVAILABLE_STATE = 30  # GetModelStatusResponse's ModelVersionStatus.State


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A tensor of a signature. `datatype` is V2's, or TensorFlow's where V2 has none; -1 in `shape` is any size, and a
    shape of None any rank."""

    datatype: str
    shape: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class ServingSignature:
    """One way to ask a model. `method` is the last word of its method name: predict, classify, regress."""

    method: str = "predict"
    inputs: Mapping[str, TensorInfo] = field(default_factory=dict)
    outputs: Mapping[str, TensorInfo] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Signatures:
    """All ways to ask a version of a model; an empty `version` where it is not told."""

    version: str
    by_name: Mapping[str, ServingSignature]

    def find(self, name: str) -> ServingSignature | None:
        """The one that a request names, or the default where it names none."""
        return self.by_name.get(name or DEFAULT_SIGNATURE)

    @property
    def default(self) -> tuple[str, ServingSignature]:
        """The name of the one that V2 metadata tells of, and itself; an empty one where there is none."""
        name = DEFAULT_SIGNATURE if DEFAULT_SIGNATURE in self.by_name else min(self.by_name, default="")
        return name, self.by_name.get(name, ServingSignature())


def read_signatures(body: bytes) -> Signatures:
    """What `GET /v1/models/M/metadata` answers. Raises: GatewayError(UPSTREAM_PROTOCOL)."""
    with refusing(ErrorKind.UPSTREAM_PROTOCOL):
        content = triton_json.read(body)
        try:
            version = content["model_spec"].get("version", "")
            signatures = content["metadata"]["signature_def"]["signature_def"]
            return Signatures(str(version or ""), {name: _signature_of_json(each) for name, each in signatures.items()})
        except (KeyError, TypeError, AttributeError, OverflowError) as error:
            raise ValueError(f"the model's metadata cannot be understood: {error!r}") from None


def read_signatures_message(message: bytes) -> Signatures:
    """What PredictionService.GetModelMetadata answers. Raises: GatewayError(UPSTREAM_PROTOCOL)."""
    with refusing(ErrorKind.UPSTREAM_PROTOCOL):
        content = parse("GetModelMetadataResponse", message)
        version = content.model_spec.version.value if content.model_spec.HasField("version") else ""
        signatures = parse("SignatureDefMap", content.metadata["signature_def"].value).signature_def
        return Signatures(str(version), {name: _signature_of_message(each) for name, each in signatures.items()})


def read_versions(body: bytes) -> list[str]:
    """The versions that can be asked, of what `GET /v1/models/M` answers; newest first. Raises:
    GatewayError(UPSTREAM_PROTOCOL)."""
    with refusing(ErrorKind.UPSTREAM_PROTOCOL):
        content = triton_json.read(body)
        try:
            statuses = content["model_version_status"]
            found = [int(each["version"]) for each in statuses if each["state"] == _AVAILABLE]
        except (KeyError, TypeError, AttributeError, OverflowError) as error:
            raise ValueError(f"the model's status cannot be understood: {error!r}") from None
        return [str(version) for version in sorted(found, reverse=True)]


def read_versions_message(message: bytes) -> list[str]:
    """The same of what ModelService.GetModelStatus answers. Raises: GatewayError(UPSTREAM_PROTOCOL)."""
    with refusing(ErrorKind.UPSTREAM_PROTOCOL):
        statuses = parse("GetModelStatusResponse", message).model_version_status
        found = [each.version for each in statuses if each.state == _AVAILABLE_STATE]
        return [str(version) for version in sorted(found, reverse=True)]


def ready_of(status: int, body: bytes) -> bool:
    """Whether a model is ready, by the reply to `GET /v1/models/M[/versions/N|/labels/L]`: where one of the versions
    that were asked for is available. An unknown model is not ready, nor is one whose server says nonsense."""
    if status != 200:
        return False
    try:
        return bool(read_versions(body))
    except GatewayError:
        return False


def metadata_of(model: str, signatures: Signatures, versions: list[str] | None = None) -> dict[str, Any]:
    """V2's model metadata; of `versions` the one that the signatures are of is told where none are given."""
    _, signature = signatures.default
    if versions is None:
        versions = [signatures.version] if signatures.version else []
    return {
        "name": model,
        "versions": versions,
        "platform": PLATFORM,
        "inputs": [_tensor_metadata(name, signature.inputs[name]) for name in sorted(signature.inputs)],
        "outputs": [_tensor_metadata(name, signature.outputs[name]) for name in sorted(signature.outputs)],
    }


def config_of(model: str, signatures: Signatures) -> dict[str, Any]:
    """V2's model configuration, with the members of Triton's ModelConfig. `max_batch_size` is 0: every axis stands in
    `dims`, the first one too."""
    name, signature = signatures.default
    return {
        "name": model,
        "platform": PLATFORM,
        "backend": "tensorflow",
        "max_batch_size": 0,
        "input": [_tensor_config(each, signature.inputs[each]) for each in sorted(signature.inputs)],
        "output": [_tensor_config(each, signature.outputs[each]) for each in sorted(signature.outputs)],
        "parameters": {"TF_SIGNATURE_DEF": {"string_value": name}},  # as Triton's TensorFlow backend calls it
    }


def _tensor_metadata(name: str, info: TensorInfo) -> dict[str, Any]:
    return {"name": name, "datatype": info.datatype, "shape": list(_axes(info))}


def _tensor_config(name: str, info: TensorInfo) -> dict[str, Any]:
    datatype = info.datatype if info.datatype in DATATYPES else "INVALID"
    word = "STRING" if datatype == "BYTES" else datatype
    return {"name": name, "data_type": f"TYPE_{word}", "dims": list(_axes(info))}


def _axes(info: TensorInfo) -> tuple[int, ...]:
    return (-1,) if info.shape is None else info.shape


def _signature_of_json(content: Any) -> ServingSignature:
    inputs, outputs = (
        {name: _info_of_json(info) for name, info in (content.get(side) or {}).items()}
        for side in ("inputs", "outputs")
    )
    return ServingSignature(_method(content.get("method_name", "")), inputs, outputs)


def _info_of_json(content: Any) -> TensorInfo:
    dtype = content.get("dtype", "DT_INVALID")
    shape = content.get("tensor_shape") or {}
    axes = None if shape.get("unknown_rank") else tuple([int(dim["size"]) for dim in shape.get("dim") or ()])
    return TensorInfo(of_number(dtype) if isinstance(dtype, int) else of_name(dtype), axes)


def _signature_of_message(content: Message) -> ServingSignature:
    inputs, outputs = (
        {name: _info_of_message(info) for name, info in side.items()} for side in (content.inputs, content.outputs)
    )
    return ServingSignature(_method(content.method_name), inputs, outputs)


def _info_of_message(content: Message) -> TensorInfo:
    shape = content.tensor_shape
    return TensorInfo(of_number(content.dtype), None if shape.unknown_rank else tuple([dim.size for dim in shape.dim]))


def _method(method_name: str) -> str:
    return method_name.rpartition("/")[2] or "predict"
