"""Loads hooks: a module's text as it was checked, or an installed package's object, and the object created from it."""

from __future__ import annotations

import importlib
import inspect
import linecache
import sys
import threading
import traceback
from collections.abc import Callable
from hashlib import sha256
from importlib.metadata import entry_points
from types import ModuleType
from typing import Any

from gateway.config.hook_specs import HookSpec
from gateway.yaml.problems import Location, suggest

ENTRY_POINTS = "pointsman.hooks"
METHODS = ("on_request", "on_reply", "on_chunk", "on_error")

# Objects of hooks that rules have named lately: they keep their state over changes of other rules.
_MAX_LOADED = 256
_loaded: dict[tuple[object, ...], Any] = {}
_modules: dict[tuple[str, str], ModuleType] = {}
_lock = threading.RLock()


class HookLoadError(Exception):
    """A hook that cannot be used; `location` is the line of its module where that is known."""

    def __init__(self, message: str, location: Location | None = None) -> None:
        super().__init__(message)
        self.location = location


class FunctionHook:
    """A plain function as a hook."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.on_request = function
        self.inline = getattr(function, "inline", False)


def load_hook(spec: HookSpec) -> Any:
    """The object of a hook, the same for the same code and options.

    Raises: HookLoadError.
    """
    with _lock:
        key = spec.key
        if key not in _loaded:
            made = _created(spec)
            while len(_loaded) >= _MAX_LOADED:
                del _loaded[next(iter(_loaded))]
            _loaded[key] = made
        return _loaded[key]


def _created(spec: HookSpec) -> Any:
    try:
        found = _found(spec)
        if inspect.isclass(found):
            made = found(**spec.options)
        elif spec.options:
            raise HookLoadError("options are for classes, which are called with them")
        else:
            made = FunctionHook(found) if inspect.isfunction(found) else found
    except HookLoadError:
        raise
    except (Exception, SystemExit) as error:  # the operator's code
        raise HookLoadError(f"{type(error).__name__}: {error}", _place_in(spec, error)) from error
    methods = [name for name in METHODS if callable(getattr(made, name, None))]
    if not methods:
        raise HookLoadError(f"it has none of {', '.join(METHODS)}")
    return made


def _found(spec: HookSpec) -> Any:
    """Raises: whatever the operator's code raises; HookLoadError."""
    module_name, colon, path = spec.use.partition(":")
    if not colon:
        named = {each.name: each for each in entry_points(group=ENTRY_POINTS)}
        if spec.use not in named:
            what = f"no installed package has an entry point {spec.use!r} in the group '{ENTRY_POINTS}'"
            raise HookLoadError(what + (suggest(spec.use, named) if named else "; or write module:object"))
        return named[spec.use].load()
    module: Any
    if spec.file is not None and spec.source is not None:
        module = _module_of(spec.file, spec.source)
    else:
        try:
            module = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            if error.name is None or not (module_name + ".").startswith(error.name + "."):
                raise  # what it imports is missing
            what = f"neither the rule file's folder nor an installed package has a module {module_name!r}"
            raise HookLoadError(what) from error
    for name in path.split("."):
        try:
            module = getattr(module, name)
        except AttributeError:
            raise HookLoadError(f"{module_name!r} has no {name!r}{suggest(name, _public(module))}") from None
    return module


def _module_of(file: str, source: str) -> ModuleType:
    """The module of a text, under a name of its own: a changed text is another module."""
    digest = sha256(source.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    known = _modules.get((file, digest))
    if known is not None:
        return known
    name = f"pointsman_hooks_{sha256(file.encode(errors='surrogateescape')).hexdigest()[:8]}_{digest}"
    module = ModuleType(name)
    module.__file__ = file
    # dataclasses and pickle look a module up by its name; tracebacks show its lines
    sys.modules[name] = module
    linecache.cache[file] = len(source), None, source.splitlines(keepends=True), file
    try:
        exec(compile(source, file, "exec", dont_inherit=True), module.__dict__)
    except BaseException:
        del sys.modules[name]
        raise
    for earlier in [key for key in _modules if key[0] == file]:  # what still uses them has their globals
        sys.modules.pop(_modules.pop(earlier).__name__, None)
    _modules[file, digest] = module
    return module


def _public(module: object) -> list[str]:
    return [name for name in vars(module) if not name.startswith("_")] if hasattr(module, "__dict__") else []


def _place_in(spec: HookSpec, error: BaseException) -> Location | None:
    """The last line of the hook's module that the error has passed."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == spec.file]
    return Location(spec.file, lines[-1] or 1, 1) if lines and spec.file is not None else None
