"""The classification extension: the best classes of an output instead of its values.

Source: Triton server `classification.cc`, and InferResponseCompleteCommon in `grpc/infer_handler.h`.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import nlargest
from math import prod

from engines.core.errors import invalid
from engines.core.messages import SharedMemory, TensorData
from engines.host.model import HostedModel
from gateway.protocol.conversion.tensors import CODES, join_elements, numbers


def classify(output: TensorData, num_classes: int, model: HostedModel) -> TensorData:
    """The `num_classes` highest values of each batch element, as BYTES "value:index" or "value:index:label", the
    highest first; of equal ones, the first. The shape is [classes], behind the batch's axis if there is one. With 0
    classes the output stays as it is.

    Raises: EngineError(INVALID_ARG) where the values cannot be compared.
    """
    if not num_classes:
        return output
    if output.datatype not in CODES:
        raise invalid(f"class result not available for output due to unsupported type '{output.datatype}'")
    assert not isinstance(output.data, SharedMemory)
    values = numbers(output.datatype, output.data)
    batch_size = output.shape[0] if model.has_batches and output.shape else 0
    num_values = prod(output.shape[1:] if batch_size else output.shape)
    labels = model.labels(output.name)
    texts: list[bytes] = []
    for start in range(0, max(1, batch_size) * num_values, num_values or 1):
        row = values[start : start + num_values]
        best = nlargest(num_classes, range(len(row)), key=row.__getitem__)
        texts += [_class(row[index], index, labels) for index in best]
    num_best = min(num_classes, num_values)
    shape = (batch_size, num_best) if batch_size else (num_best,)
    return TensorData(output.name, "BYTES", shape, join_elements(texts))


def _class(value: float, index: int, labels: Sequence[str]) -> bytes:
    number = f"{value:f}" if isinstance(value, float) else str(value)
    label = labels[index] if index < len(labels) else ""
    return (f"{number}:{index}:{label}" if label else f"{number}:{index}").encode("utf-8", "surrogateescape")
