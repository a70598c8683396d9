"""Triton's errors for an ensemble's own configuration; `engines.repository.ensembles` compares it with its models.

Source: Triton core `model_config_utils.cc` ValidateEnsembleSchedulingConfig, BuildEnsembleGraph.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from engines.repository.config.defaults import ENSEMBLE
from engines.repository.config.parser import require
from gateway.protocol.protobuf import Message


@dataclass(slots=True)
class TensorNode:
    """A tensor: the number of the step that writes it, the tensors that are needed before, and those that need it."""

    name: str
    step: int | None = None
    is_ready: bool = False
    before: list[TensorNode] = field(default_factory=list)
    after: list[TensorNode] = field(default_factory=list)


def check_ensemble(config: Message) -> None:
    """Raises: ConfigError if a step, a map or the flow of tensors is wrong: unknown, unused, never written, twice
    written, or going in a circle."""
    name = config.name
    text = f"ensemble scheduling cannot be set for model '{name}' whose platform is not {ENSEMBLE}"
    _require(config.platform == ENSEMBLE, text)
    text = f"instance group should not be specified for ensemble '{name}'"
    require(not config.instance_group, text, "instance_group")
    text = f"optimization should not be specified for ensemble '{name}'"
    require(not config.HasField("optimization"), text, "optimization")
    require(not config.model_warmup, f"model_warmup can not be specified for ensemble '{name}'", "model_warmup")
    _require(config.ensemble_scheduling.step, f"must specify 'step' for ensemble '{name}'")
    tensors = tensor_graph(config)
    for source in config.input:
        text = f"ensemble input '{source.name}' for ensemble {config.name}' is not used"
        require(source.name in tensors, text, "input", source.name)
    written(config, tensors)
    _check_outputs(config, tensors)


def _require(holds: object, text: str, *words: str) -> None:
    require(holds, text, "ensemble_scheduling", *words)


def tensor_graph(config: Message) -> dict[str, TensorNode]:
    """The tensors by name, linked by the steps."""
    tensors: dict[str, TensorNode] = {}
    for number, step in enumerate(config.ensemble_scheduling.step):
        for required in ("model_name", "input_map", "output_map"):
            text = f"must specify '{required}' in step {number} of ensemble '{config.name}'"
            _require(getattr(step, required), text, "step")
        outputs = []
        for name in step.output_map.values():
            tensor = tensors.setdefault(name, TensorNode(name))
            text = f"ensemble tensor '{name}' can appear in an output map only once for ensemble '{config.name}' step"
            _require(tensor.step is None, f"{text} {number}", "output_map", name)
            tensor.step = number
            outputs.append(tensor)
        for name in step.input_map.values():
            source = tensors.setdefault(name, TensorNode(name))
            for output in outputs:
                output.before.append(source)
                source.after.append(output)
    return tensors


def written(config: Message, tensors: Mapping[str, TensorNode]) -> list[TensorNode]:
    """The tensors that can be written, in order, from the ensemble's inputs on; they are marked as ready."""
    queue = [tensors[source.name] for source in config.input]
    for tensor in queue:
        tensor.is_ready = True
    for tensor in queue:  # grows while it is walked
        for output in tensor.after:
            if not output.is_ready and all(needed.is_ready for needed in output.before):
                output.is_ready = True
                queue.append(output)
    return queue


def _check_outputs(config: Message, tensors: dict[str, TensorNode]) -> None:
    outputs = [output.name for output in config.output]
    for name in outputs:
        text = f"ensemble output '{name}' for ensemble {config.name}' is not used"
        require(name in tensors, text, "output", name)
        text = f"output '{name}' for ensemble '{config.name}' is not written"
        source = _not_ready_source(tensors[name])
        if source.name != name:
            text += f": at least one of its depending tensors, '{source.name}', is not connected"
        require(tensors[name].is_ready, text, "output", name)
    for tensor in tensors.values():
        text = f"ensemble tensor '{tensor.name}' is unused in ensemble '{config.name}'"
        _require(tensor.name in outputs or (tensor.is_ready and tensor.after), text, tensor.name)


def _not_ready_source(tensor: TensorNode) -> TensorNode:
    """The first tensor that blocks the flow; in a circle, the last one before it closes."""
    seen: set[str] = set()
    current: TensorNode | None = tensor
    while current is not None:
        tensor = current
        current = next((needed for needed in tensor.before if not needed.is_ready and needed.name not in seen), None)
        if current is not None:
            seen.add(current.name)
    return tensor
