"""llama.cpp's server in the package xllamacpp, until the process is ended.

    python -m bench.llm_xllamacpp GGUF PORT SLOTS CONTEXT_TOKENS THREADS CACHE_TYPE

Its wheel is built for AVX2 alone. If a llama-server built for this processor is found, that one is measured.
"""

import signal
import sys


def main() -> None:
    import xllamacpp

    path, port, slots, context, threads, cache = sys.argv[1:]
    cache_type = xllamacpp.ggml_type[f"GGML_TYPE_{cache.upper()}"]
    parameters = xllamacpp.CommonParams()
    parameters.model.path = path
    parameters.model_alias = {"bench"}
    parameters.port = int(port)
    parameters.n_parallel = int(slots)
    parameters.n_ctx = int(context)
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = int(threads)
    parameters.cache_type_k = parameters.cache_type_v = cache_type
    parameters.cache_ram_mib = 0
    server = xllamacpp.Server(parameters)
    signal.pause()
    del server


if __name__ == "__main__":
    main()
