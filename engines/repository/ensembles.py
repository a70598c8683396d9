"""Ensembles: the models that they depend on, and the check of their tensors against those models.

Source: Triton core `model_repository_manager.cc` DependencyGraph, ValidateEnsembleConfig.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from engines.repository.config.ensembles import tensor_graph, written
from engines.repository.config.parser import require
from gateway.protocol.protobuf import Message

Configs = Mapping[str, Message]


def steps(config: Message) -> dict[str, set[int]]:
    """The models that an ensemble needs, and which versions of each: -1 means any. Empty for any other model."""
    result: dict[str, set[int]] = {}
    for step in config.ensemble_scheduling.step:
        result.setdefault(step.model_name, set()).add(step.model_version)
    return result


def dependents(configs: Configs, names: Iterable[str]) -> set[str]:
    """The ensembles that need one of these models, directly or by other ensembles; not the models themselves."""
    result: set[str] = set()
    reached = set(names)
    while reached:
        reached = {
            name for name, config in configs.items() if name not in result and not reached.isdisjoint(steps(config))
        }
        result |= reached
    return result


def problem(name: str, configs: Configs) -> str | None:
    """The reason why an ensemble cannot be loaded in any state of its models: a missing model, or a circle."""
    missing = sorted(steps(configs[name]).keys() - configs.keys())
    if missing:
        return f"ensemble {name} contains models that are not available or ambiguous: {', '.join(missing)}"
    last = _back_to(name, configs)
    return last and f"circular dependency between ensembles: {name} -> ... -> {last} -> {name}"


def _back_to(name: str, configs: Configs) -> str | None:
    """A model with a step that leads back to the start."""
    waiting, seen = [name], {name}
    while waiting:
        current = waiting.pop()
        for needed in steps(configs[current]) if current in configs else ():
            if needed == name:
                return current
            if needed not in seen:
                seen.add(needed)
                waiting.append(needed)
    return None


ANY = -1


@dataclass(frozen=True, slots=True)
class _TensorType:
    """The properties of a tensor, in the first model that has it."""

    model: str
    datatype: str
    shape: tuple[int, ...]
    is_batched: bool

    @property
    def full_shape(self) -> tuple[int, ...]:
        return (ANY, *self.shape) if self.is_batched else self.shape


def check_mapping(config: Message, models: Mapping[str, Message]) -> bool:
    """Check an ensemble against the completed configurations of its models, by name. Returns whether it is decoupled.
    Raises: ConfigError."""
    types = {
        tensor.name: _type(tensor, config, tensor.reshape.shape if tensor.HasField("reshape") else tensor.dims)
        for tensor in (*config.input, *config.output)
    }
    for step in config.ensemble_scheduling.step:
        model = models[step.model_name]
        _require(
            not 0 < model.max_batch_size < config.max_batch_size,
            f"ensemble {config.name} allows maximum batch size {config.max_batch_size}, but it contains model "
            f"{step.model_name} which only allows maximum batch size to be {model.max_batch_size}",
            "max_batch_size",
        )
        _check_names(config, step, model)
        for tensors, tensor_map in ((model.input, step.input_map), (model.output, step.output_map)):
            for tensor in tensors:
                if tensor.name in tensor_map:
                    _match(config, tensor_map[tensor.name], _type(tensor, model, tensor.dims), types)
    return _check_origins(config, models)


def _type(tensor: Message, config: Message, shape: Sequence[int]) -> _TensorType:
    datatype = tensor.DESCRIPTOR.fields_by_name["data_type"].enum_type.values_by_number[tensor.data_type].name
    return _TensorType(config.name, datatype, tuple(shape), config.max_batch_size > 0)


def _check_names(config: Message, step: Message, model: Message) -> None:
    who = f"in ensemble {config.name}, "
    inputs = {tensor.name: tensor for tensor in model.input}
    outputs = {tensor.name for tensor in model.output}
    for name, tensor in sorted(step.input_map.items()):
        text = f"ensemble tensor {tensor} is mapping to non-existing input {name} in model {step.model_name}"
        _require(name in inputs, who + text, name)
    for name, tensor_spec in inputs.items():
        text = f"input {name} in model {step.model_name} is not mapped to any ensemble tensors"
        _require(name in step.input_map or tensor_spec.optional, who + text, name)
    for name, tensor in sorted(step.output_map.items()):
        text = f"ensemble tensor {tensor} is mapped from non-existing output {name} in model {step.model_name}"
        _require(name in outputs, who + text, name)


def _match(config: Message, name: str, of_model: _TensorType, types: dict[str, _TensorType]) -> None:
    tensor = types.setdefault(name, of_model)
    where = f"in ensemble {config.name}, ensemble tensor {name}: "
    _require(
        tensor.datatype == of_model.datatype,
        f"{where}inconsistent data type: {tensor.datatype} is inferred from model {tensor.model} while "
        f"{of_model.datatype} is inferred from model {of_model.model}",
        name,
    )
    # A model that does not batch may have the batch as its first axis.
    _require(
        _fit(tensor.shape, of_model.shape) or _fit(tensor.full_shape, of_model.full_shape),
        f"{where}inconsistent shape: {_shape_text(tensor.full_shape)} is inferred from model {tensor.model} while "
        f"{_shape_text(of_model.full_shape)} is inferred from model {of_model.model}",
        name,
    )


def _fit(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    return len(one) == len(other) and all(a == b or ANY in (a, b) for a, b in zip(one, other, strict=True))


def _shape_text(shape: tuple[int, ...]) -> str:
    return f"[{','.join(map(str, shape))}]"


def _check_origins(config: Message, models: Mapping[str, Message]) -> bool:
    """Inputs of a step come from one decoupled step, or from none; whether there is a decoupled step."""
    # Of each tensor: the number of the decoupled step from which it comes, else 0.
    origins = {tensor.name: 0 for tensor in config.input}
    numbers: dict[int, int] = {}  # of the decoupled steps
    for tensor in written(config, tensor_graph(config)):
        if tensor.step is None or tensor.name in origins:
            continue
        model = config.ensemble_scheduling.step[tensor.step].model_name
        before = {origins[needed.name] for needed in tensor.before}
        text = f"step of model '{model}' receives inputs originated from different decoupled models"
        _require(len(before) == 1, f"in ensemble {config.name}, {text}", model)
        if models[model].model_transaction_policy.decoupled:
            origins[tensor.name] = numbers.setdefault(tensor.step, len(numbers) + 1)
        else:
            origins[tensor.name] = before.pop()
    return bool(numbers)


def _require(holds: object, text: str, word: str) -> None:
    require(holds, text, "ensemble_scheduling", word)
