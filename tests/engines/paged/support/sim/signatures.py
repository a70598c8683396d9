"""The kernels of a Metal source, and the attribute of each argument, which C++ cannot inspect.

Types are not read, since the host's compiler knows them. Only the contents of `[[...]]` are read, in the order of the
arguments.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

MAX_BUFFERS = 31
_BUFFER = re.compile(r"buffer\(\s*(\d+)\s*\)")
_KERNEL = re.compile(r"\bkernel\s+void\s+(\w+)\s*\(")
_INSTANTIATE = re.compile(r'\bINSTANTIATE\(\s*"([^"]+)"\s*,\s*(\w+)\s*,')
_MAX_THREADS = re.compile(r"\[\[\s*max_total_threads_per_threadgroup\(\s*(\d+)\s*\)\s*\]\]\s*$")
_ATTRIBUTE = re.compile(r"\[\[\s*([^\]]+?)\s*\]\]")

# Metal's attributes of a kernel's arguments that the simulation knows (include/sim/entry.h has the same names).
POSITIONS = frozenset({
    "thread_position_in_grid", "thread_position_in_threadgroup", "threadgroup_position_in_grid", "threads_per_grid",
    "threads_per_threadgroup", "dispatch_threads_per_threadgroup", "threadgroups_per_grid",
})  # fmt: skip
INDICES = frozenset({
    "thread_index_in_threadgroup", "thread_index_in_simdgroup", "simdgroup_index_in_threadgroup",
    "simdgroups_per_threadgroup", "threads_per_simdgroup",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class KernelSignature:
    """One kernel: its name in the library, its function (or template with its arguments), and per argument a buffer's
    index or an attribute."""

    name: str
    function: str
    arguments: tuple[int | str, ...]
    max_threads: int

    @property
    def buffers(self) -> tuple[int, ...]:
        return tuple(argument for argument in self.arguments if isinstance(argument, int))


def without_comments(source: str) -> str:
    """The text with comments and directives blanked, and the same lines."""
    source = re.sub(r"//[^\n]*", "", source)
    source = re.sub(r"/\*.*?\*/", lambda match: "\n" * match.group().count("\n"), source, flags=re.DOTALL)
    return re.sub(
        r"^[ \t]*#(?:[^\n\\]|\\\n|\\.)*", lambda match: "\n" * match.group().count("\n"), source, flags=re.MULTILINE
    )


def _closing(text: str, start: int) -> int:
    """The index of the parenthesis that closes the one before `start`."""
    depth = 1
    for i in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[i], 0)
        if depth == 0:
            return i
    raise SyntaxError("a kernel's argument list has no end")


def split_arguments(text: str) -> list[str]:
    """Split at the commas outside of brackets."""
    parts, depth, start = [], 0, 0
    for i, sign in enumerate(text):
        depth += {"(": 1, "[": 1, "<": 1, ")": -1, "]": -1, ">": -1}.get(sign, 0)
        if sign == "," and depth == 0:
            parts.append(text[start:i])
            start = i + 1
    return [part.strip() for part in [*parts, text[start:]] if part.strip()]


def _argument(kernel: str, text: str) -> int | str:
    found: list[str] = _ATTRIBUTE.findall(text)
    if len(found) != 1:
        raise SyntaxError(f"kernel {kernel}: argument '{text}' needs one attribute, such as [[buffer(0)]]")
    if buffer := _BUFFER.fullmatch(found[0]):
        index = int(buffer.group(1))
        if index >= MAX_BUFFERS:
            raise SyntaxError(
                f"kernel {kernel}: 'buffer' attribute parameter is out of bounds: must be between 0 and 30"
            )
        return index
    if found[0] not in POSITIONS | INDICES:
        raise SyntaxError(f"kernel {kernel}: attribute {found[0]} is not known here (torch.mps has no such arguments)")
    return found[0]


def read_signatures(source: str) -> tuple[KernelSignature, ...]:
    """All kernels of a source, templates once per instantiation. Raises: SyntaxError."""
    text = without_comments(source)
    plain: list[KernelSignature] = []
    templates: dict[str, KernelSignature] = {}
    for match in _KERNEL.finditer(text):
        name = match.group(1)
        arguments = tuple(
            _argument(name, part) for part in split_arguments(text[match.end() : _closing(text, match.end())])
        )
        buffers = [argument for argument in arguments if isinstance(argument, int)]
        if len(set(buffers)) != len(buffers):
            raise SyntaxError(f"kernel {name}: two arguments share one buffer index")
        before = text[: match.start()].rstrip()
        limit = _MAX_THREADS.search(before)
        signature = KernelSignature(name, name, arguments, int(limit.group(1)) if limit else 1024)
        before = before[: limit.start()].rstrip() if limit else before
        if re.search(r"\btemplate\s*<[^;{}]*>$", before):
            templates[name] = signature
        else:
            plain.append(signature)
    for match in _INSTANTIATE.finditer(text):
        host, function = match.groups()
        if function not in templates:
            raise SyntaxError(f"INSTANTIATE of {host}: there is no kernel template {function}")
        values = text[match.end() : _closing(text, match.end())].strip()
        template = templates[function]
        plain.append(KernelSignature(host, f"{function}<{values}>", template.arguments, template.max_threads))
    names = [signature.name for signature in plain]
    if twice := {name for name in names if names.count(name) > 1}:
        raise SyntaxError(f"kernels of one name: {', '.join(sorted(twice))}")
    return tuple(plain)
