"""Reads a folder's tensors in the decoder's form: checked, of the right shape and dtype, quantized where requested."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from engines.core.errors import EngineError, invalid
from engines.paged.model.config import QuantizationSpec
from engines.paged.ops.interface import Dense, Quantized, Weight
from engines.paged.weights.files import TensorFiles
from engines.paged.weights.quantization import Loss, quantize, regroup_bits

FLOATS = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
Progress = Callable[[int, int], None]


class WeightReader:
    """Reads tensors by module, and records which were read and the losses of quantization.

    Raises: EngineError that names file and tensor: missing, of another shape, of an unsupported dtype, with NaN or
    infinity, or with numbers that `dtype` cannot hold.
    """

    def __init__(
        self,
        files: TensorFiles,
        dtype: torch.dtype,
        stored: QuantizationSpec | None = None,
        scheme: QuantizationSpec | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.files = files
        self.dtype = dtype
        self.losses: dict[str, Loss] = {}
        self.left_dense: list[str] = []  # not quantized, as their rows are no multiple of the group
        self._stored = stored
        self._scheme = scheme
        self._progress = progress
        self._used: set[str] = set()
        self._total_bytes = files.num_bytes
        self._read_bytes = 0

    @property
    def unused(self) -> list[str]:
        return sorted(set(self.files) - self._used)

    def first_of(self, *names: str) -> str:
        """The first of these modules or tensors in the files, with or without `.weight`."""
        for name in names:
            if name in self.files or f"{name}.weight" in self.files:
                return name
        raise self._missing(*names)

    def vector(self, name: str, size: int) -> Tensor:
        return self._dense(name, (size,))

    def matrix(self, module: str, rows: int, columns: int, is_quantizable: bool = True) -> Weight:
        """One module's `weight`, with `scales` and `biases` beside it where it is stored quantized."""
        return self.matrices(module, (rows, columns), f"{module}.weight", is_quantizable)[0]

    def stacked(self, module: str, count: int, rows: int, columns: int) -> Sequence[Weight]:
        """The matrices of all experts in one tensor [count, rows, columns], with or without `.weight`."""
        name = f"{module}.weight" if f"{module}.weight" in self.files else module
        return self.matrices(module, (count, rows, columns), name)

    def halves(self, name: str, count: int, rows: int, columns: int) -> tuple[Sequence[Weight], Sequence[Weight]]:
        """Two stacked matrices for each of `count`: [count, 2 * rows, columns]."""
        both = self.matrices(name, (count, 2 * rows, columns), name)
        return [each.map(lambda t: t[:rows]) for each in both], [each.map(lambda t: t[rows:]) for each in both]

    def matrices(self, module: str, shape: tuple[int, ...], name: str, is_quantizable: bool = True) -> Sequence[Weight]:
        """The matrices of a tensor [.., rows, columns], as a list."""
        columns = shape[-1]
        if f"{module}.scales" in self.files:
            return self._stored_quantized(module, shape)
        weights = self._dense(name, shape).view(-1, *shape[-2:])
        if self._scheme is None or not is_quantizable:
            return [Dense(weight) for weight in weights]
        if columns % self._scheme.group_size:
            self.left_dense.append(module)
            return [Dense(weight) for weight in weights]
        quantized = []
        for at, weight in enumerate(weights):
            one, loss = quantize(weight, self._scheme.bits, self._scheme.group_size)
            self.losses[module if len(shape) == 2 else f"{module}.{at}"] = loss
            quantized.append(one)
        return quantized

    def _stored_quantized(self, module: str, shape: tuple[int, ...]) -> Sequence[Weight]:
        name, columns = f"{module}.weight", shape[-1]
        spec = self._stored
        if spec is None:
            raise self.files.wrong(f"{module}.scales", "it is quantized, but config.json has no quantization")
        bits, group_size = spec.overrides.get(module) or (spec.bits, spec.group_size)
        if columns % group_size:
            raise self.files.wrong(name, f"rows of {columns} are no multiple of the group, {group_size}")
        packed = self._take(name, (*shape[:-1], columns * bits // 32), ("U32", "I32")).view(torch.int32)
        of_groups = (*shape[:-1], columns // group_size)
        scales, biases = (self._dense(f"{module}.{part}", of_groups) for part in ("scales", "biases"))
        weights = []
        for one, scale, bias in zip(
            packed.view(-1, *packed.shape[-2:]),
            scales.view(-1, *of_groups[-2:]),
            biases.view(-1, *of_groups[-2:]),
            strict=True,
        ):
            regrouped, wider = regroup_bits(one, bits)
            weights.append(Quantized(regrouped.clone() if wider == bits else regrouped, scale, bias, wider, group_size))
        return weights

    def _dense(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """A copy in `dtype`, checked to be finite."""
        stored = self._take(name, shape, tuple(FLOATS))
        tensor = stored.to(self.dtype, copy=True)
        # A sum is not finite where a number is not, and is read at once; it may also overflow, so look again.
        if not torch.isfinite(tensor.sum()) and not torch.isfinite(tensor).all():
            if not torch.isfinite(stored).all():
                raise self.files.wrong(name, "there is NaN or infinity in it: the weights are damaged")
            raise self.files.wrong(name, f"numbers up to {float(stored.abs().max()):g} do not fit {self.dtype}")
        return tensor

    def _take(self, name: str, shape: tuple[int, ...], dtypes: tuple[str, ...]) -> Tensor:
        if name not in self.files:
            raise self._missing(name)
        if (seen := self.files.shape(name)) != shape:
            raise self.files.wrong(name, f"its shape is {list(seen)}; by config.json it should be {list(shape)}")
        if (dtype := self.files.dtype(name)) not in dtypes:
            raise self.files.wrong(name, f"its dtype {dtype} is not supported; {', '.join(dtypes)} are")
        tensor = self.files.read(name)
        self._used.add(name)
        self._read_bytes += tensor.nbytes
        if self._progress is not None:
            self._progress(self._read_bytes, self._total_bytes)
        return tensor

    def _missing(self, *names: str) -> EngineError:
        folder = self.files.paths[0].parent
        return invalid(f"{folder}: {' or '.join(names)} is in none of its {len(self.files.paths)} safetensors files")
