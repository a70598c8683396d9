"""What a V2 inference asks of TF Serving.

A request's parameters choose what V2 has no words for:

    method          predict (the default), classify, regress
    signature_name  the signature; TF Serving's default is serving_default
    version_label   a version by its label
    tf_format       how predict's JSON has the tensors: inputs (columns, the default: each tensor whole) or instances
                    (rows along the first axis, which all inputs must share). gRPC has tensors whole

Any other parameter has no place at TF Serving, and is refused by its name, or dropped where the engine is set so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from gateway.protocol.conversion.errors import about, refusing, unsupported
from gateway.protocol.conversion.messages import SHARED_MEMORY, read_tensors
from gateway.protocol.conversion.parameters import json_of
from gateway.protocol.conversion.tensors import RawTensor, check_data
from gateway.protocol.errors import ErrorKind
from gateway.protocol.protobuf import Message
from gateway.protocol.tfserving.model_info import ModelPath, ServingSignature, Signatures, target


class Method(Enum):
    """What is asked, as TF Serving's paths name it."""

    PREDICT = "predict"
    CLASSIFY = "classify"
    REGRESS = "regress"


@dataclass(frozen=True, slots=True)
class TFServingRequest:
    """An inference. `wanted` are the outputs that it names, all where it names none; `signature` is what is known of
    the one that it uses, None where nothing is. `dropped` names what was left out."""

    target: ModelPath
    method: Method
    tensors: tuple[RawTensor, ...]
    wanted: tuple[str, ...] = ()
    signature_name: str = ""
    signature: ServingSignature | None = None
    by_rows: bool = False
    id: str = ""
    dropped: tuple[str, ...] = ()

    def knowing(self, signatures: Signatures) -> TFServingRequest:
        """The same, with the signature that it uses. Raises: GatewayError(BAD_REQUEST) where it is not as that says."""
        known = replace(self, signature=signatures.find(self.signature_name))
        with refusing(ErrorKind.BAD_REQUEST):
            _check_signature(known)
        return known


_OWN = frozenset({"method", "signature_name", "version_label", "tf_format"})
_METHODS = tuple([method.value for method in Method])
_ROWS = "instances"
_FORMATS = ("inputs", _ROWS)


def read_infer_request(message: bytes, *, model: str, version: str = "", drop: bool = False) -> TFServingRequest:
    """What a serialised ModelInferRequest asks. `model` is the name at the engine, with or without `:label`; `drop`:
    whether parameters without a place are dropped.

    Raises: GatewayError, BAD_REQUEST where it is malformed, UNSUPPORTED where TF Serving has no place for what it says.
    """
    with refusing(ErrorKind.BAD_REQUEST):
        request, tensors = read_tensors(message, "TF Serving")
        parameters = json_of(request.parameters)
        others = [name for name in parameters if name not in _OWN]
        for declared, tensor in zip(request.inputs, tensors, strict=True):
            others += declared.parameters.keys()
            with about(f"input '{tensor.name}'"):
                check_data(tensor)
        wanted = tuple([_wanted(output, others) for output in request.outputs])
        found = target(model, version, _text(parameters, "version_label"))
        _check_names([tensor.name for tensor in tensors], found.name)
        others = list(dict.fromkeys(others))
        if others and not drop:
            names = ", ".join([f"'{name}'" for name in others])
            raise unsupported(
                f"{names} cannot be told to TF Serving; leave it out, or set 'unsupported: drop' on the engine"
            )
        return TFServingRequest(
            found,
            Method(_choice(parameters, "method", _METHODS)),
            tuple(tensors),
            wanted,
            signature_name=_text(parameters, "signature_name"),
            by_rows=_choice(parameters, "tf_format", _FORMATS) == _ROWS,
            id=request.id,
            dropped=tuple(others),
        )


def _wanted(declared: Message, others: list[str]) -> str:
    if SHARED_MEMORY in declared.parameters:
        raise unsupported(f"output '{declared.name}' is to be in shared memory, which TF Serving does not write")
    others += declared.parameters.keys()
    return str(declared.name)


def _check_names(names: list[str], model: str) -> None:
    if not names:
        raise ValueError(f"the request for model '{model}' has no inputs")
    if len(set(names)) < len(names):
        raise ValueError("the request has several inputs of one name")


def _check_signature(infer_request: TFServingRequest) -> None:
    """TF Serving's REST takes whatever JSON a datatype can be read from, and leaves unknown inputs out: both are errors
    in V2."""
    signature = infer_request.signature
    if infer_request.method is not Method.PREDICT or signature is None:
        return
    model = infer_request.target.name
    for tensor in infer_request.tensors:
        info = signature.inputs.get(tensor.name)
        if info is None:
            known = ", ".join(sorted(signature.inputs))
            raise ValueError(f"unexpected inference input '{tensor.name}' for model '{model}', which has: {known}")
        if info.datatype != tensor.datatype:
            raise ValueError(
                f"inference input '{tensor.name}' data-type is '{tensor.datatype}', but model '{model}' expects "
                f"'{info.datatype}'"
            )
    for name in infer_request.wanted:
        if name not in signature.outputs:
            raise ValueError(f"unexpected inference output '{name}' for model '{model}'")


def _choice(parameters: Mapping[str, Any], name: str, known: tuple[str, ...]) -> str:
    """What a parameter says, the first of `known` where it is not there."""
    found = _text(parameters, name) or known[0]
    if found not in known:
        raise ValueError(f"parameter '{name}' must be one of {', '.join(known)}, not '{found}'")
    return found


def _text(parameters: Mapping[str, Any], name: str) -> str:
    found = parameters.get(name, "")
    if not isinstance(found, str):
        raise ValueError(f"parameter '{name}' must be a string")
    return found
