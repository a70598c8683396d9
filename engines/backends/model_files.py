"""A backend's library and its model's file."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from typing import Any

from engines.core.errors import EngineError, ErrorCode, internal, unavailable


def library(module: str, extra: str) -> Any:
    """Import a framework's module. Raises: EngineError, which names the pip extra that installs it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module.partition(".")[0]:
            raise internal(f"unable to import '{module}': {error}") from error
        package = error.name
        raise EngineError(
            ErrorCode.UNSUPPORTED, f"'{package}' is not installed here: pip install \"pointsman[{extra}]\""
        ) from None
    except (ImportError, OSError) as error:
        raise internal(f"unable to import '{module}': {error}") from error


def model_file(config: Any, version_directory: Path, *names: str) -> Path:
    """The model's file or directory: `default_model_filename` if set, else the first of `names` that exists.

    Raises: EngineError with Triton's text.
    """
    candidates = [config.default_model_filename] if config.default_model_filename else list(names)
    for name in candidates:
        if (path := version_directory / name).exists():
            return path
    paths = "', '".join(str(version_directory / name) for name in candidates)
    raise unavailable(f"unable to find '{paths}' for model '{config.name}'")


def python_module(path: Path, name: str) -> Any:
    """Import a Python file; it can import the files beside it. Raises: whatever the file raises."""
    directory = str(path.parent)
    if directory not in sys.path:
        sys.path.insert(0, directory)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def last_version(directory: Path) -> Path:
    """The directory of a model's highest version; the directory of a version is returned as it is.

    Raises: EngineError if there is no version.
    """
    versions = [path for path in directory.iterdir() if path.is_dir() and path.name.isdecimal()]
    if not versions and directory.name.isdecimal():
        return directory
    if not versions:
        raise unavailable(f"no version of model '{directory.name}' is in '{directory}'")
    return max(versions, key=lambda path: int(path.name))
