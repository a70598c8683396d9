"""Fails as `parameters.how` selects: each way in which a model's response can be invalid."""

import json

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        how = json.loads(requests[0].parameters()).get("how", "right")
        array = pb_utils.get_input_tensor_by_name(requests[0], "INPUT0").as_numpy()
        return WAYS[how](array)


class OwnError(Exception):
    pass


def right(array):
    return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", array)])]


def raises_model_exception(array):
    raise pb_utils.TritonModelException("raised on purpose")


def raises_value_error(array):
    raise ValueError("raised on purpose: ü")


def raises_own_error(array):
    raise OwnError


def raises_from_below(array):
    return array["no such field"]


def answers_error(array):
    return [pb_utils.InferenceResponse(error=pb_utils.TritonError("answered on purpose"))]


def answers_error_beside_tensors(array):
    error = pb_utils.TritonError("answered beside tensors")
    return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", array)], error)]


def answers_nothing(array):
    return None


def answers_none_in_a_list(array):
    return [None]


def answers_no_list(array):
    return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", array)])


def answers_empty_list(array):
    return []


def answers_too_many(array):
    return right(array) * 2


def answers_tensors(array):
    return [pb_utils.Tensor("OUTPUT0", array)]


def answers_text(array):
    return ["text"]


def answers_no_outputs(array):
    return [pb_utils.InferenceResponse([])]


def answers_unknown_output(array):
    return [pb_utils.InferenceResponse([pb_utils.Tensor("OTHER", array), pb_utils.Tensor("OUTPUT0", array)])]


def answers_output_twice(array):
    return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", array)] * 2)]


def answers_wrong_datatype(array):
    return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", array.astype(np.float64))])]


def answers_wrong_rank(array):
    return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", array.reshape(1, -1))])]


def answers_half_floats(array):
    return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", array.astype(np.float16))])]


def answers_text_tensor(array):
    return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", array.astype(str).astype(np.object_))])]


def answers_scalar(array):
    return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", np.array(array.sum(), np.int32))])]


def answers_unknown_dtype(array):
    return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", array.astype(np.complex64))])]


def answers_columns(array):
    """A tensor that is not contiguous: every other element of the input."""
    return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", array[::2])])]


def answers_empty_tensor(array):
    return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", array[:0])])]


def exits(array):
    raise SystemExit(3)


ERRORS = (
    "UNKNOWN",
    "INTERNAL",
    "NOT_FOUND",
    "INVALID_ARG",
    "UNAVAILABLE",
    "UNSUPPORTED",
    "ALREADY_EXISTS",
    "CANCELLED",
)


def coded(name):
    def answer(array):
        error = pb_utils.TritonError(f"asked for {name}", getattr(pb_utils.TritonError, name))
        return [pb_utils.InferenceResponse(error=error)]

    return answer


WAYS = {name: way for name, way in globals().items() if name.startswith(("right", "raises_", "answers_", "exits"))}
WAYS |= {name: coded(name) for name in ERRORS}
