"""The engine's operations in Metal, by `torch.mps.compile_shader`.

A family of kernels has four parts, here of `norm`:

    1. `kernels/norm.metal`: the kernels. Each opens with a card (what it computes, a line of pseudocode a phase, which
       thread does what, its cost). Buffers are numbered in the order of the arguments; T is float, half or bfloat, T2
       and T4 its vectors; sums are float. Numbers become T only as `T(x)`, and float only as `float(x)`. Arrays in
       threadgroup memory are declared at the top of a kernel by TG_ARRAY(float, name, n), at multiples of 16 bytes,
       32 KB in all. A template becomes kernels by INSTANTIATE("name", function, arguments). C++14 without its library,
       no lambdas; each pointer and reference names its address space (device, constant, threadgroup, thread), also in
       helpers and local variables.
    2. `class NormOps(KernelFamily)` with methods of `reference.Ops` (in ops.py, or a module of its own). It loads its
       library by `self.kernels.load("norm", T=x.dtype, WIDTH=x.shape[1])`: sizes come from the tensors and become
       `constant constexpr` declarations before the source; a library is compiled once per set of constants.
       `library.run(name, groups, group_size, *args)` dispatches groups of group_size threads; ints and floats are
       passed as they are (`constant int&`, `constant float&`).
    3. The class among the bases of `MetalOps` (ops.py).
    4. `tests/engines/paged/metal/test_norm.py`: each kernel against plain torch over a table of shapes, by the fixture
       `metal_ops` (conftest.py), which uses a simulator (support/sim there) and, with `-m metal`, a Mac's GPU.

Constants that differ between weights take a compilation each (about a second): a size that unrolls no loop is better an
argument.
"""

from engines.paged.ops.metal.ops import MetalOps

__all__ = ["MetalOps"]
