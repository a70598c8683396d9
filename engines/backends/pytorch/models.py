"""The forms of a torch model, each loaded as a function of leaves with the names of its arguments."""

from __future__ import annotations

import inspect
import json
import logging
import warnings
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engines.backends.framework_values import datatype_of_name
from engines.backends.model_config import FileTensor, FileTensors
from engines.backends.model_files import library, python_module
from engines.backends.pytorch.argument_names import Arguments
from engines.core.errors import EngineError, internal, invalid

_log = logging.getLogger(__name__)
NAMES = ("model.pt", "model.pt2", "model.py")
WEIGHTS = ("model.safetensors", "model.pt", "model.pth")


@dataclass(frozen=True, slots=True)
class TorchModel:
    """`call(by_index)` runs it with the leaves of its arguments by index; arguments with a default may be left out.
    `module` holds the weights, None for a compiled archive."""

    call: Callable[[Mapping[int, Any]], Any]
    arguments: Arguments
    module: Any
    form: str


def load(
    torch: Any, path: Path, device: Any, *, name: str, method: str = "forward", keep_device: bool = False
) -> TorchModel:
    """Load a model onto a device. `keep_device` (KIND_MODEL) leaves it on its own device. Raises: EngineError."""
    try:
        if path.suffix == ".py":
            return _eager(torch, path, device, name, method, keep_device)
        if path.suffix == ".pt2":
            return _archive(torch, path, device)
        return _torchscript(torch, path, device, method, keep_device)
    except EngineError:
        raise
    except Exception as error:
        raise internal(f"failed to load model '{name}': {error}") from error


def _torchscript(torch: Any, path: Path, device: Any, method: str, keep_device: bool) -> TorchModel:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # repositories hold it
        module = torch.jit.load(str(path), map_location=None if keep_device else device)
    if hasattr(module, "training") and module.training:
        module.eval()
    function = getattr(module, method, None)
    if function is None:
        raise invalid(f"the model has no method '{method}'")
    arguments = function.schema.arguments[1:]  # without self
    takes_dict = len(arguments) == 1 and isinstance(arguments[0].type, torch._C.DictType)
    names = [argument.name for argument in arguments]
    optional = frozenset(index for index, argument in enumerate(arguments) if argument.has_default_value())
    return TorchModel(_by_position(function, names), _plain(names, takes_dict, optional), module, "TorchScript")


def _eager(torch: Any, path: Path, device: Any, name: str, method: str, keep_device: bool) -> TorchModel:
    defined = python_module(path, f"_model_{name}")
    classes = [
        value
        for value in vars(defined).values()
        if isinstance(value, type) and issubclass(value, torch.nn.Module) and value.__module__ == defined.__name__
    ]
    # A module may contain others: the model is the class `Model`, or the last one.
    classes.sort(key=lambda cls: cls.__name__ == "Model")
    if not classes:
        raise invalid(f"Cannot find a subclass of torch.nn.Module in '{path}'")
    module = classes[-1]()
    weights = next((path.parent / file for file in WEIGHTS if (path.parent / file).exists()), None)
    if weights is None:
        _log.info("model '%s' has no file of weights beside '%s'", name, path.name)
    elif weights.suffix == ".safetensors":
        module.load_state_dict(library("safetensors.torch", "torch").load_file(str(weights)))
    else:
        module.load_state_dict(torch.load(weights, map_location="cpu", weights_only=True))
    if not keep_device:
        module.to(device)
    module.eval()
    function = module if method == "forward" else getattr(module, method)
    parameters = list(inspect.signature(getattr(module, method)).parameters.values())
    names = [parameter.name for parameter in parameters if parameter.kind not in (2, 4)]
    optional = frozenset(
        i for i, parameter in enumerate(parameters) if parameter.default is not inspect.Parameter.empty
    )
    takes_dict = len(parameters) == 1 and "dict" in str(parameters[0].annotation).lower()
    return TorchModel(_by_position(function, names), _plain(names, takes_dict, optional), module, "eager")


def _plain(names: list[str], takes_dict: bool, optional: frozenset[int]) -> Arguments:
    return Arguments(tuple((name,) for name in names), takes_dict, optional)


def _by_position(function: Any, names: list[str]) -> Callable[[Mapping[int, Any]], Any]:
    def call(by_index: Mapping[int, Any]) -> Any:
        indices = sorted(by_index)
        leading = [index for position, index in enumerate(indices) if position == index]
        rest = {names[index]: by_index[index] for index in indices[len(leading) :]}
        return function(*(by_index[index] for index in leading), **rest)

    return call


def _archive(torch: Any, path: Path, device: Any) -> TorchModel:
    if is_compiled(path):
        package = torch._inductor.aoti_load_package(str(path))
        in_spec = torch.utils._pytree.treespec_loads(package.loader.get_call_spec()[0])
        return TorchModel(_by_tree(torch, package, in_spec), Arguments(_paths(torch, in_spec)), None, "AOTInductor")
    program = torch.export.load(str(path))
    if device.type != "cpu":
        program = torch.export.passes.move_to_device_pass(program, device)
    module = program.module()
    in_spec = program.call_spec.in_spec
    plain_names = list(program.graph_signature.user_inputs)
    names = _paths(torch, in_spec, plain_names)
    return TorchModel(_by_tree(torch, module, in_spec), Arguments(names), module, "torch.export")


def is_compiled(path: Path) -> bool:
    """Whether an archive holds compiled code (AOTInductor), not a graph."""
    with zipfile.ZipFile(path) as archive:
        return any("data/aotinductor/" in name for name in archive.namelist())


def _by_tree(torch: Any, function: Any, in_spec: Any) -> Callable[[Mapping[int, Any]], Any]:
    def call(by_index: Mapping[int, Any]) -> Any:
        args, kwargs = torch.utils._pytree.tree_unflatten([by_index[i] for i in sorted(by_index)], in_spec)
        return function(*args, **kwargs)

    return call


def _paths(torch: Any, in_spec: Any, plain_names: list[str] | None = None) -> tuple[tuple[str, ...], ...]:
    """The names of each leaf: as the graph has it, and its path (`ARGS[2][key]`, `KWARGS[mask]`)."""
    pytree = torch.utils._pytree
    arguments = pytree.tree_unflatten(list(range(in_spec.num_leaves)), in_spec)
    names: list[tuple[str, ...]] = []
    for path, index in pytree.tree_flatten_with_path(arguments)[0]:
        keys = [getattr(part, "idx", getattr(part, "key", None)) for part in path]
        text = ("KWARGS" if keys[0] else "ARGS") + "".join(f"[{key}]" for key in keys[1:])
        plain = [plain_names[index]] if plain_names and index < len(plain_names) else []
        keyword = [str(keys[1])] if keys[0] == 1 and len(keys) == 2 else []
        names.append(tuple(dict.fromkeys([*plain, *keyword, text])))
    return tuple(names)


def compiled(torch: Any, model: TorchModel, options: dict[str, Any]) -> TorchModel:
    """The model, compiled at the first run of each shape. Raises: EngineError for forms that cannot be compiled."""
    if model.form not in ("eager", "torch.export"):
        raise invalid(f"TORCH_COMPILE is for eager and exported models; this one is {model.form}")
    _log.info("compiling with %s", json.dumps(options))
    model.module.compile(**options)
    return model


def file_tensors(path: Path, model: str) -> FileTensors:
    """The names, datatypes and shapes of the inputs and outputs of a torch.export archive.

    Raises: EngineError for any other file.
    """
    if path.suffix != ".pt2" or is_compiled(path):
        raise invalid(
            f"model '{model}' has to say its inputs and outputs in config.pbtxt: of torch's files only a "
            "torch.export archive (model.pt2) tells them"
        )
    torch = library("torch", "torch")
    program = torch.export.load(str(path))
    nodes = {node.name: node for node in program.graph.nodes}
    returned = program.graph_signature.user_outputs
    inputs = [_file_tensor(name, nodes[name]) for name in program.graph_signature.user_inputs if name in nodes]
    outputs = [_file_tensor(f"OUTPUT__{index}", nodes[name]) for index, name in enumerate(returned) if name in nodes]
    return FileTensors(inputs, outputs)


def _file_tensor(name: str, node: Any) -> FileTensor:
    value = node.meta["val"]
    dims = tuple(size if isinstance(size, int) else -1 for size in value.shape)
    return FileTensor(name, datatype_of_name(str(value.dtype).removeprefix("torch.")), dims)
