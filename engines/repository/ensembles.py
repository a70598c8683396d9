"""Ensembles: the models that they depend on, and the check of their tensors against those models.

Source: Triton core `model_repository_manager.cc` DependencyGraph, ValidateEnsembleConfig.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

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


@dataclass(slots=True, eq=False)
class _Tensor:
    """A tensor of the ensemble, with the properties in the first model that has it. `origin` numbers the decoupled step
    from which it comes, 0 if there is none."""

    model: str
    datatype: str
    shape: tuple[int, ...]
    is_batched: bool
    step: int | None = None
    is_decoupled: bool = False
    origin: int = 0
    is_reached: bool = False
    before: list[_Tensor] = field(default_factory=list)
    after: list[_Tensor] = field(default_factory=list)

    @property
    def full_shape(self) -> tuple[int, ...]:
        return (ANY, *self.shape) if self.is_batched else self.shape


def check_mapping(config: Message, models: Mapping[str, Message]) -> bool:
    """Check an ensemble against the completed configurations of its models, by name. Returns whether it is decoupled.
    Raises: ConfigError."""
    tensors = {
        tensor.name: _tensor(tensor, config, tensor.reshape.shape if tensor.HasField("reshape") else tensor.dims)
        for tensor in (*config.input, *config.output)
    }
    for number, step in enumerate(config.ensemble_scheduling.step):
        model = models[step.model_name]
        _require(
            not 0 < model.max_batch_size < config.max_batch_size,
            f"ensemble {config.name} allows maximum batch size {config.max_batch_size}, but it contains model "
            f"{step.model_name} which only allows maximum batch size to be {model.max_batch_size}",
            "max_batch_size",
        )
        _check_names(config, step, model)
        _link(config, step, model, tensors, number)
    return _find_origins(config, tensors)


def _tensor(tensor: Message, config: Message, shape: Sequence[int]) -> _Tensor:
    datatype = tensor.DESCRIPTOR.fields_by_name["data_type"].enum_type.values_by_number[tensor.data_type].name
    return _Tensor(config.name, datatype, tuple(shape), config.max_batch_size > 0)


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


def _link(config: Message, step: Message, model: Message, tensors: dict[str, _Tensor], number: int) -> None:
    """Compare the model's tensors with the mapped ones, and link each to its sources."""
    for tensor_spec in model.input:
        if tensor_spec.name in step.input_map:
            _meet(config, step.input_map[tensor_spec.name], _tensor(tensor_spec, model, tensor_spec.dims), tensors)
    before = [tensors[name] for _, name in sorted(step.input_map.items())]
    for output in model.output:
        if output.name in step.output_map:
            tensor = _meet(config, step.output_map[output.name], _tensor(output, model, output.dims), tensors)
            tensor.step, tensor.is_decoupled = number, model.model_transaction_policy.decoupled
            tensor.before += before
            for needed in before:
                needed.after.append(tensor)


def _meet(config: Message, name: str, of_model: _Tensor, tensors: dict[str, _Tensor]) -> _Tensor:
    tensor = tensors.setdefault(name, of_model)
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
    return tensor


def _fit(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    return len(one) == len(other) and all(a == b or ANY in (a, b) for a, b in zip(one, other, strict=True))


def _shape_text(shape: tuple[int, ...]) -> str:
    return f"[{','.join(map(str, shape))}]"


def _find_origins(config: Message, tensors: dict[str, _Tensor]) -> bool:
    """Follow the tensors from the inputs: inputs of a step come from one decoupled step, or from none."""
    queue = [tensors[tensor_spec.name] for tensor_spec in config.input]
    for tensor in queue:
        tensor.is_reached = True
    origin_of_step: dict[int | None, int] = {}
    while queue:
        for tensor in queue.pop(0).after:
            if tensor.is_reached or not all(needed.is_reached for needed in tensor.before):
                continue
            origins = {needed.origin for needed in tensor.before}
            model = config.ensemble_scheduling.step[tensor.step].model_name
            text = f"step of model '{model}' receives inputs originated from different decoupled models"
            _require(len(origins) == 1, f"in ensemble {config.name}, {text}", model)
            if tensor.step not in origin_of_step:
                is_new = tensor.is_decoupled
                origin_of_step[tensor.step] = max(origin_of_step.values(), default=0) + 1 if is_new else origins.pop()
            tensor.origin = origin_of_step[tensor.step]
            tensor.is_reached = True
            queue.append(tensor)
    return any(tensor.origin for tensor in tensors.values())


def _require(holds: object, text: str, word: str) -> None:
    require(holds, text, "ensemble_scheduling", word)
