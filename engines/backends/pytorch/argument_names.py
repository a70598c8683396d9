"""The argument of a model for each input, and the part of its result for each output.

The name of a tensor in a configuration is one of (pytorch_backend, README):
  1. an argument of the forward function, or a path into the arguments: `image`, `ARGS[2][key]`, `KWARGS[mask]`;
  2. `<name>__<index>`: the argument with that index;
  3. anything else: tensors are passed in the order of the configuration.
A single argument that is a dictionary takes all inputs by their names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engines.core.errors import internal, invalid

_INDEXED = re.compile(r".+__(\d+)$")
_PART = re.compile(r"\[([^\[\]]*)\]")


@dataclass(frozen=True, slots=True)
class Arguments:
    """A model's arguments: `names[i]` are the names of the i-th one (or leaf), the keyword first; `optional` holds the
    indices of those with a default."""

    names: tuple[tuple[str, ...], ...]
    takes_dict: bool = False
    optional: frozenset[int] = frozenset()


def input_positions(names: Sequence[str], arguments: Arguments, model: str) -> dict[str, int]:
    """The argument of each input, by index. Raises: EngineError if there are more or fewer inputs than arguments."""
    indices = {alias: index for index, aliases in enumerate(arguments.names) for alias in aliases}
    if all(name in indices for name in names):
        positions = {name: indices[name] for name in names}
    elif names and all(_INDEXED.match(name) for name in names):
        positions = {name: _index(name) for name in names}
    else:
        positions = {name: index for index, name in enumerate(names)}
    expected = set(range(len(arguments.names)))
    used = set(positions.values())
    if len(used) < len(names):
        raise invalid(f"unable to load model '{model}', two inputs are the same argument: {', '.join(names)}")
    if not (expected - arguments.optional <= used <= expected):
        arguments_text = ", ".join(aliases[0] for aliases in arguments.names)
        raise invalid(
            f"unable to load model '{model}', configuration expects {len(names)} inputs ({', '.join(names)}), "
            f"model provides {len(expected)} ({arguments_text})"
        )
    return positions


def outputs_of(result: Any, names: Sequence[str]) -> dict[str, Any]:
    """Find the outputs in a model's result. Raises: EngineError if one is missing."""
    if isinstance(result, Mapping) and all(name in result for name in names):
        return {name: result[name] for name in names}
    if any(name == "RESULT" or name.startswith("RESULT[") for name in names):
        return {name: _at_path(result, name) for name in names}
    leaves = _leaves(result)
    indexed = bool(names) and all(_INDEXED.match(name) for name in names)
    outputs = {}
    for position, name in enumerate(names):
        index = _index(name) if indexed else position
        if index >= len(leaves):
            raise invalid(
                f"The output {name} in the model configuration refers to an output index which doesn't exist. "
                f"This model has {len(leaves)} outputs"
            )
        outputs[name] = leaves[index]
    return outputs


def _index(name: str) -> int:
    match = _INDEXED.match(name)
    assert match is not None
    return int(match[1])


def _leaves(result: Any) -> list[Any]:
    if isinstance(result, Mapping):
        return [leaf for value in result.values() for leaf in _leaves(value)]
    if isinstance(result, (tuple, list)) and not (result and all(isinstance(item, str) for item in result)):
        return [leaf for value in result for leaf in _leaves(value)]
    return [result]


def _at_path(result: Any, name: str) -> Any:
    """The value at a path such as `RESULT[AAA][0]`."""
    value = result
    for part in _PART.findall(name):
        try:
            value = value[part] if isinstance(value, Mapping) else value[int(part)]
        except (KeyError, IndexError, ValueError, TypeError) as error:
            raise internal(f"output tensor '{name}' is not found in what the model returned") from error
    return value
