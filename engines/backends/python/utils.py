"""The module that models import as `triton_python_backend_utils`."""

from __future__ import annotations

from typing import Any

from engines.backends.python.errors import TritonError, TritonModelException
from engines.backends.python.host_services import (
    Logger,
    Metric,
    MetricFamily,
    is_model_ready,
    load_model,
    session,
    unload_model,
)
from engines.backends.python.model_config import ModelConfig
from engines.backends.python.requests import (
    MEMORY_CPU as TRITONSERVER_MEMORY_CPU,
)
from engines.backends.python.requests import (
    MEMORY_GPU as TRITONSERVER_MEMORY_GPU,
)
from engines.backends.python.requests import (
    RELEASE_ALL as TRITONSERVER_REQUEST_RELEASE_ALL,
)
from engines.backends.python.requests import (
    RELEASE_RESCHEDULE as TRITONSERVER_REQUEST_RELEASE_RESCHEDULE,
)
from engines.backends.python.requests import (
    SEQUENCE_END as TRITONSERVER_REQUEST_FLAG_SEQUENCE_END,
)
from engines.backends.python.requests import (
    SEQUENCE_START as TRITONSERVER_REQUEST_FLAG_SEQUENCE_START,
)
from engines.backends.python.requests import (
    InferenceRequest,
    InferenceTrace,
    PreferredMemory,
)
from engines.backends.python.responses import (
    RESPONSE_COMPLETE_FINAL as TRITONSERVER_RESPONSE_COMPLETE_FINAL,
)
from engines.backends.python.responses import (
    InferenceResponse,
    InferenceResponseSender,
)
from engines.backends.python.tensor import (
    TRITON_STRING_TO_NUMPY,
    Tensor,
    deserialize_bytes_tensor,
    numpy_to_triton_type,
    serialize_byte_tensor,
    triton_string_to_numpy,
    triton_to_numpy_type,
)

__all__ = [
    "TRITONSERVER_MEMORY_CPU",
    "TRITONSERVER_MEMORY_GPU",
    "TRITONSERVER_REQUEST_FLAG_SEQUENCE_END",
    "TRITONSERVER_REQUEST_FLAG_SEQUENCE_START",
    "TRITONSERVER_REQUEST_RELEASE_ALL",
    "TRITONSERVER_REQUEST_RELEASE_RESCHEDULE",
    "TRITONSERVER_RESPONSE_COMPLETE_FINAL",
    "TRITON_STRING_TO_NUMPY",
    "InferenceRequest",
    "InferenceResponse",
    "InferenceResponseSender",
    "InferenceTrace",
    "Logger",
    "Metric",
    "MetricFamily",
    "ModelConfig",
    "PreferredMemory",
    "Tensor",
    "TritonError",
    "TritonModelException",
    "deserialize_bytes_tensor",
    "get_input_config_by_name",
    "get_input_tensor_by_name",
    "get_model_dir",
    "get_output_config_by_name",
    "get_output_tensor_by_name",
    "is_model_ready",
    "load_model",
    "numpy_to_triton_type",
    "serialize_byte_tensor",
    "triton_string_to_numpy",
    "triton_to_numpy_type",
    "unload_model",
    "using_decoupled_model_transaction_policy",
]


def get_model_dir() -> str:
    """The directory of the model's version, with its `model.py`."""
    return session.model_directory


def get_input_tensor_by_name(inference_request: InferenceRequest, name: str) -> Tensor | None:
    """A request's input; None if it has none of this name."""
    for tensor in inference_request._inputs:
        if tensor._name == name:
            return tensor
    return None


def get_output_tensor_by_name(inference_response: InferenceResponse, name: str) -> Tensor | None:
    """A response's output; None if it has none of this name."""
    for tensor in inference_response._output_tensors:
        if tensor._name == name:
            return tensor
    return None


def get_input_config_by_name(model_config: dict[str, Any], name: str) -> dict[str, Any] | None:
    """The fields of an input in a model's configuration; None if there is none of this name."""
    return _by_name(model_config.get("input", ()), name)


def get_output_config_by_name(model_config: dict[str, Any], name: str) -> dict[str, Any] | None:
    """The fields of an output in a model's configuration; None if there is none of this name."""
    return _by_name(model_config.get("output", ()), name)


def using_decoupled_model_transaction_policy(model_config: dict[str, Any]) -> bool:
    """Whether a model is decoupled."""
    return bool(model_config.get("model_transaction_policy", {}).get("decoupled", False))


def _by_name(tensors: Any, name: str) -> dict[str, Any] | None:
    tensor: dict[str, Any] | None = next((each for each in tensors if each["name"] == name), None)
    return tensor
