"""llama.cpp's server, built for this processor: wheels are built for any processor, without its fastest instructions.

The source comes with llama-cpp-python's, from the same index as all packages here.
"""

import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from rich.console import Console

from bench.llm_engines import LLAMA_SERVER
from bench.processes import BenchError

SOURCE = "llama-cpp-python"
TOOLS = ("cmake", "ninja", "scikit-build-core")
FLAGS = {
    "CMAKE_BUILD_TYPE": "Release",
    "GGML_NATIVE": "ON",
    "BUILD_SHARED_LIBS": "OFF",
    "LLAMA_BUILD_TESTS": "OFF",
    "LLAMA_BUILD_EXAMPLES": "OFF",
    "LLAMA_BUILD_APP": "OFF",
    "LLAMA_BUILD_UI": "OFF",
    "LLAMA_USE_PREBUILT_UI": "OFF",  # it would be downloaded
    "LLAMA_OPENSSL": "OFF",
}


def build_llama_server(console: Console) -> None:
    """Build it if it is missing. Raises: BenchError with the end of the tools' output."""
    if LLAMA_SERVER.exists():
        return
    home = LLAMA_SERVER.parent.parent
    with tempfile.TemporaryDirectory(prefix="pointsman-llamacpp-") as beside, console.status("") as status:
        folder = Path(beside)

        def run(step: str, *argv: str | Path) -> None:
            status.update(f"llama.cpp: {step}")
            done = subprocess.run([*map(str, argv)], capture_output=True, text=True, check=False)
            if done.returncode:
                raise BenchError(f"llama.cpp: {step} failed: {(done.stdout + done.stderr)[-1500:]}")

        run("the tools", sys.executable, "-m", "venv", folder / "venv")
        bin_folder = folder / "venv" / "bin"
        run("the tools", bin_folder / "pip", "install", "--quiet", *TOOLS)
        download = ("download", "--quiet", "--no-deps", "--no-build-isolation", "--no-binary", ":all:", "-d", folder)
        run("the source", "env", f"PATH={bin_folder}:/usr/bin:/bin", bin_folder / "pip", *download, SOURCE)
        archive = next(iter(folder.glob("llama_cpp_python-*.tar.gz")), None)
        if archive is None:
            raise BenchError("llama.cpp: its source did not come")
        with tarfile.open(archive) as packed:
            packed.extractall(folder, filter="data")
        source = next(folder.glob("llama_cpp_python-*/vendor/llama.cpp"))
        build = folder / "build"
        flags = [f"-D{name}={value}" for name, value in FLAGS.items()]
        cmake = ("env", f"PATH={bin_folder}:/usr/bin:/bin", bin_folder / "cmake")
        run("being configured", *cmake, "-S", source, "-B", build, "-G", "Ninja", *flags)
        run("being built, ten minutes on two cores", *cmake, "--build", build, "--target", "llama-server")
        LLAMA_SERVER.parent.mkdir(parents=True, exist_ok=True)
        (home / ".gitignore").write_text("*\n")
        shutil.copy(build / "bin" / "llama-server", LLAMA_SERVER)
    console.print(f"built {LLAMA_SERVER}")
