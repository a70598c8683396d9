"""Removes from a Python on Linux what macOS lacks. Python imports this module at its start if this folder is on
PYTHONPATH.

Functions and constants are removed, so that code that checks for them finds none; functions that behave differently on
macOS are replaced. `sys.platform` stays, and with it what packages assume on Linux (the constants of `socket`);
Pointsman's modules that decide by it are set directly. test_emulation.py tests this module.
"""

import errno
import importlib.abc
import importlib.machinery
import os
import sys
from types import ModuleType

# CPython's posixmodule.c: macOS has waitid since 3.13, the others never.
_GONE_FROM_OS = {
    *("waitid", "memfd_create", "pipe2", "eventfd", "eventfd_read", "eventfd_write", "pidfd_open", "splice"),
    *("copy_file_range", "fdatasync", "getrandom", "posix_fadvise", "posix_fallocate", "unshare", "setns"),
    *(name for name in dir(os) if name.startswith("sched_") and "priority" not in name and name != "sched_yield"),
}
_GONE = {
    "fcntl": {"F_SETPIPE_SZ", "F_GETPIPE_SZ", "F_OFD_SETLK"},
    "select": {"epoll"},
}
# Pointsman's modules that decide by sys.platform get macOS's values.
_DECIDED = {
    "gateway.supervision.ports": {"WORKERS_BIND": False},
    "gateway.net.sockets": {"BIND_REFUSES_ALL": False},
    "engines.ipc.arena": {"USES_POSIX_SHM": True},
}
SOMAXCONN = 128  # sysctl kern.ipc.somaxconn
NAME_BYTES = 31  # of shared memory: PSHMNAMLEN of <sys/posix_shm.h>

_fstat, _ftruncate = os.fstat, os.ftruncate


def _is_shared_memory(descriptor: int) -> bool:
    return os.readlink(f"/proc/self/fd/{descriptor}").startswith("/dev/shm/")  # noqa: PTH115  # before pathlib is imported


def fstat(descriptor: int) -> os.stat_result:
    """The status of shared memory has neither device nor inode (XNU bsd/kern/posix_shm.c, `pshm_stat`)."""
    found = _fstat(descriptor)
    if not _is_shared_memory(descriptor):
        return found
    return os.stat_result((found.st_mode & 0o777, 0, 0, 0, found.st_uid, found.st_gid, found.st_size, 0, 0, 0))


def ftruncate(descriptor: int, length: int) -> None:
    """The size of a shared memory object can be set once (`pshm_truncate`)."""
    if _is_shared_memory(descriptor) and _fstat(descriptor).st_size:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
    _ftruncate(descriptor, length)


def _change_os() -> None:
    for name in _GONE_FROM_OS & set(dir(os)):
        delattr(os, name)
    os.fstat, os.ftruncate = fstat, ftruncate


def _change_shared_memory(module: ModuleType) -> None:
    real = module.shm_open

    def shm_open(path: str, flags: int, mode: int = 0o777) -> int:
        if len(path) > NAME_BYTES:
            raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), path)
        return int(real(path, flags, mode))

    module.shm_open = shm_open  # type: ignore[attr-defined]


def _change_socket(module: ModuleType) -> None:
    real = module.socket.listen

    def listen(self: object, backlog: int = SOMAXCONN) -> None:
        real(self, min(backlog, SOMAXCONN))

    module.socket.listen = listen


def _change_uvloop(module: ModuleType) -> None:
    real = module.Loop.create_server

    async def create_server(self: object, *arguments: object, backlog: int = SOMAXCONN, **options: object) -> object:
        return await real(self, *arguments, backlog=min(backlog, SOMAXCONN), **options)

    module.Loop.create_server = create_server


_CHANGES = {"_posixshmem": _change_shared_memory, "socket": _change_socket, "uvloop": _change_uvloop}


def change(module: ModuleType) -> None:
    """Change a module to what it is on macOS."""
    for gone in _GONE.get(module.__name__, ()):
        if hasattr(module, gone):
            delattr(module, gone)
    for name, value in _DECIDED.get(module.__name__, {}).items():
        assert hasattr(module, name), f"{module.__name__} has no {name} any more"
        setattr(module, name, value)
    if module.__name__ in _CHANGES:
        _CHANGES[module.__name__](module)


class _Changed(importlib.abc.Loader):
    """Loads a module with another loader, and changes it."""

    def __init__(self, loader: importlib.abc.Loader) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> object:
        return getattr(self._loader, name)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        change(module)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the modules that have to be changed."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> importlib.machinery.ModuleSpec | None:
        if name not in _NAMES:
            return None
        for finder in sys.meta_path:
            if finder is not self:
                spec = finder.find_spec(name, path, target)  # type: ignore[arg-type]
                if spec is not None and spec.loader is not None:
                    spec.loader = _Changed(spec.loader)
                    return spec
        return None


_NAMES = {*_GONE, *_DECIDED, *_CHANGES}
_change_os()
sys.meta_path.insert(0, _Finder())
for _name in _NAMES & set(sys.modules):
    change(sys.modules[_name])
