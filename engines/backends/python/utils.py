"""The module that models import as `triton_python_backend_utils`."""

# ruff: noqa: F401  models use the imported names

from __future__ import annotations

import json
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
from engines.backends.python.requests import MEMORY_CPU as TRITONSERVER_MEMORY_CPU
from engines.backends.python.requests import MEMORY_GPU as TRITONSERVER_MEMORY_GPU
from engines.backends.python.requests import RELEASE_ALL as TRITONSERVER_REQUEST_RELEASE_ALL
from engines.backends.python.requests import RELEASE_RESCHEDULE as TRITONSERVER_REQUEST_RELEASE_RESCHEDULE
from engines.backends.python.requests import SEQUENCE_END as TRITONSERVER_REQUEST_FLAG_SEQUENCE_END
from engines.backends.python.requests import SEQUENCE_START as TRITONSERVER_REQUEST_FLAG_SEQUENCE_START
from engines.backends.python.requests import InferenceRequest, InferenceResponseSender, InferenceTrace, PreferredMemory
from engines.backends.python.responses import RESPONSE_COMPLETE_FINAL as TRITONSERVER_RESPONSE_COMPLETE_FINAL
from engines.backends.python.responses import InferenceResponse
from engines.backends.python.tensor import (
    TRITON_STRING_TO_NUMPY,
    Tensor,
    deserialize_bytes_tensor,
    numpy_to_triton_type,
    serialize_byte_tensor,
    triton_string_to_numpy,
    triton_to_numpy_type,
)

Fields = dict[str, Any]


class ModelConfig:
    """A configuration as the fields of model_config.proto by name."""

    def __init__(self, model_config: str) -> None:
        self._model_config: Fields = json.loads(model_config)

    @property
    def _name(self) -> str:
        return str(self._model_config["name"])

    def as_dict(self) -> Fields:
        """The fields; to be read, not written."""
        return self._model_config

    def set_max_batch_size(self, max_batch_size: int) -> None:
        """Raises: ValueError if the configuration has a larger one."""
        configured = self._model_config["max_batch_size"]
        if configured > max_batch_size:
            raise ValueError(
                f"configuration specified max_batch_size {configured}, but in auto-complete-config function for model "
                f"'{self._name}' specified max_batch_size {max_batch_size}"
            )
        self._model_config["max_batch_size"] = max_batch_size

    def set_dynamic_batching(self) -> None:
        """Raises: ValueError if the configuration has another scheduler."""
        for scheduler in ("sequence_batching", "ensemble_scheduling"):
            if scheduler in self._model_config:
                raise ValueError(
                    f"Configuration specified scheduling_choice as '{scheduler}', but auto-complete-config function "
                    f"for model '{self._name}' tries to set scheduling_choice as 'dynamic_batching'"
                )
        self._model_config.setdefault("dynamic_batching", {})

    def set_model_transaction_policy(self, transaction_policy_dict: Fields) -> None:
        """Raises: ValueError if it contradicts the configuration, or has other keys than `decoupled`."""
        if set(transaction_policy_dict) - {"decoupled"}:
            raise ValueError(
                f"model transaction property in auto-complete-config function for model '{self._name}' contains "
                "property other than 'decoupled'."
            )
        policy = self._model_config.setdefault("model_transaction_policy", {})
        if "decoupled" in transaction_policy_dict:
            wanted = transaction_policy_dict["decoupled"]
            if policy.get("decoupled", wanted) != wanted:
                raise ValueError(
                    f"trying to change decoupled property in auto-complete-config for model '{self._name}', which is "
                    f"already set to '{policy['decoupled']}'."
                )
            policy["decoupled"] = wanted

    def add_input(self, input: Fields) -> None:
        """Add an input of `name`, `data_type`, `dims` and perhaps `optional`, or complete a configured one.

        Raises: ValueError if it contradicts the configuration.
        """
        self._add("input", input, ("name", "data_type", "dims", "optional"))

    def add_output(self, output: Fields) -> None:
        """Add an output of `name`, `data_type` and `dims`, or complete a configured one.

        Raises: ValueError if it contradicts the configuration.
        """
        self._add("output", output, ("name", "data_type", "dims"))

    def _add(self, role: str, tensor: Fields, properties: tuple[str, ...]) -> None:
        where = f"in auto-complete-config function for model '{self._name}'"
        quoted = [f"'{each}'" for each in properties]
        if set(tensor) - set(properties):
            raise ValueError(
                f"{role} '{tensor['name']}' {where} contains property other than "
                f"{', '.join(quoted[:-1])} and {quoted[-1]}."
            )
        for required in ("name", "data_type", "dims"):
            if required not in tensor:
                about = role if required == "name" else f"{role} '{tensor['name']}'"
                raise ValueError(f"{about} {where} is missing '{required}' property.")
        for configured in self._model_config[role]:
            if configured["name"] == tensor["name"]:
                self._check(role, configured, tensor)
                configured.update(tensor)
                return
        self._model_config[role].append(tensor)

    def _check(self, role: str, configured: Fields, tensor: Fields) -> None:
        if configured["data_type"] not in ("TYPE_INVALID", tensor["data_type"]):
            raise ValueError(
                f"unable to load model '{self._name}', configuration expects datatype {configured['data_type']} for "
                f"{role} '{tensor['name']}', model provides {tensor['data_type']}"
            )
        for key, is_open in (("dims", not configured["dims"]), ("optional", "optional" not in configured)):
            if key in tensor and not is_open and configured[key] != tensor[key]:
                raise ValueError(
                    f"model '{self._name}', tensor '{tensor['name']}': the model expects {key} {tensor[key]} but the "
                    f"model configuration specifies {key} {configured[key]}"
                )


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
