"""A model's metadata for tests of the generate conversion."""

from __future__ import annotations

from tests.protocol.conversion.inferences import serialised

METADATA = serialised(
    "inference.ModelMetadataResponse",
    """name: "m" inputs {name: "text" datatype: "BYTES" shape: [-1, 1]} inputs {name: "n" datatype: "INT32" shape: 1}
    inputs {name: "open" datatype: "FP32" shape: [-1, -1]} inputs {name: "pairs" datatype: "INT8" shape: [-1, 2, -1]}
    inputs {name: "half" datatype: "FP16" shape: 1} inputs {name: "scalar" datatype: "BOOL"}
    inputs {name: "none" datatype: "INT8" shape: 0}
    outputs {name: "out" datatype: "BYTES" shape: [-1, 1]} outputs {name: "scores" datatype: "FP32" shape: [-1, 2]}""",
)
