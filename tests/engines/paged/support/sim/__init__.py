"""Runs Metal's sources on this machine's CPU: `compile_shader` with the calling rules of `torch.mps.compile_shader`.

The host's C++ compiler compiles the same text as a Mac, with our `include/metal_stdlib` in place of Apple's;
each GPU thread is a fiber (include/sim/threads.h). What the simulation shows: index arithmetic, masks, block tables,
barriers and simdgroup exchange, reads of unwritten threadgroup memory (it is NaN), and, built with sanitizers,
every access out of bounds. What it cannot show: speed, registers, and what Apple's compiler alone refuses.

It is stricter than Metal where Metal accepts a mistake: a buffer that is not bound or of another type than the
tensor, a strided tensor, a barrier that some threads do not reach, a write past a threadgroup array all raise.

From the environment: POINTSMAN_SIM_LANES=reversed runs lanes, simdgroups and groups from the last to the first;
POINTSMAN_SIM_MEMORY=zero clears threadgroup memory instead of filling it with NaN; POINTSMAN_SIM_SANITIZE=1 builds with
ASan and UBSan (the process needs libasan preloaded: `sanitizer_environment`); POINTSMAN_SIM_CACHE is where compiled
libraries lie; CXX is the compiler.
"""

from tests.engines.paged.support.sim.build import sanitizer_environment
from tests.engines.paged.support.sim.library import MetalKernel, ShaderLibrary, compile_shader

__all__ = ["MetalKernel", "ShaderLibrary", "compile_shader", "sanitizer_environment"]
