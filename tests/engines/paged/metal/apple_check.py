"""Checks a Metal source for errors that Apple's compiler would report, as far as clang detects them: address spaces,
overloads, and what Metal lacks."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

APPLE = Path(__file__).parent / "apple"
# The headers of Apple's library, all provided by one header here.
_PARTS = ("array", "atomic", "common", "compute", "integer", "limits", "logging", "math", "simdgroup", "type_traits")
_LANGUAGE = (
    *("-cl-std=clc++2021", "-cl-no-stdinc", "-nostdinc", f"-I{APPLE}", "-ferror-limit=0"),
    *("-Xclang", "-cl-ext=-__opencl_c_pipes,-__opencl_c_device_enqueue,-__opencl_c_program_scope_global_variables"),
    *("-Xclang", "-cl-ext=-cl_khr_fp64,-__opencl_c_fp64", "-Wno-unknown-attributes"),
)
# C++14 without lambdas: the language of Metal 3.1, macOS 14's.
_STRICT = ("-Wall", "-Wno-unused-function", "-Wno-unused-const-variable", "-Wno-null-dereference", "-Wpre-c++17-compat")
# Errors of this clang that Metal does not have: a method's `this` in any address space, and a cast from half to bfloat.
_LIMITS = re.compile(r"__generic .* changes address space|'half'\)? to '\S*'?(?: \(aka )?'?__bf16'")
_POSITION = r"thread_position_in_\w+|threadgroup_position_in_grid|thread\w*s_per_(?:grid|threadgroup)"
_INDEX = r"thread_index_in_\w+|simdgroup_index_in_\w+|simdgroups_per_\w+|threads_per_simdgroup"
# Checks by regular expression: (pattern, what is wrong). MSL 1.5.4, of kernels 5.1.3, of attributes' types 5.2.3.6.
_PATTERNS = tuple(
    (re.compile(pattern), why)
    for pattern, why in (
        (
            r"\b(?:goto|register|thread_local|virtual|dynamic_cast|typeid|new|delete|noexcept|try|catch|throw)\b",
            "not in Metal",
        ),
        (r"\blong\s+(?:long|double)\b", "not in Metal"),
        (r"\bkernel\s+(?!void\b|decltype\b)\w+", "a kernel returns void"),
        (r"\bbuffer\(\s*(?:3[1-9]|[4-9]\d|\d{3,})\s*\)", "buffers are numbered 0 to 30"),
        (r"\b(?:threadgroup|thread)\b[^,()]*[*&]\s*\w+\s*\[\[\s*buffer\(", "a buffer is of device or constant memory"),
        (rf"\b(?!u(?:int|short)[23]?\b)\w+\s+\w+\s*\[\[\s*(?:{_POSITION})\s*\]\]", "positions are of ushort or uint"),
        (rf"\b(?!u(?:int|short)\b)\w+\s+\w+\s*\[\[\s*(?:{_INDEX})\s*\]\]", "indices are ushort or uint"),
    )
)


def complaints(
    source: str, *, folder: Path | None = None, files: Mapping[Path, str] | None = None, is_strict: bool = True
) -> list[str]:
    """Errors, each with its line. `folder` is the include folder, and `files` maps paths to texts that replace those
    files. With `is_strict` warnings count, and nothing newer than macOS 14 is allowed."""
    from clang import cindex

    arguments = [*_LANGUAGE, *(_STRICT if is_strict else ()), *([f"-I{folder}"] if folder else [])]
    texts = [("source.cl", prepared(source))]
    texts += [(str(APPLE / f"metal_{part}"), "#include <metal_stdlib>\n") for part in _PARTS]
    texts += [(str(path), prepared(text)) for path, text in (files or {}).items()]
    unit = cindex.Index.create().parse("source.cl", args=arguments, unsaved_files=texts)
    least = cindex.Diagnostic.Warning if is_strict else cindex.Diagnostic.Error
    message = [
        f"{found.location.file}:{found.location.line}: {found.spelling}"
        for found in unit.diagnostics
        if found.severity >= least and not _LIMITS.search(found.spelling)
    ]
    if is_strict:
        message += _missing_words(source)
        message += [f"{cursor.location.file}:{cursor.location.line}: {why}" for cursor, why in _refused(unit.cursor)]
    return message


def prepared(source: str) -> str:
    """The text in a form that this clang parses, with the same lines: vectors made by calls, threadgroup arrays by
    reference."""
    source = without_comments(source)
    source = re.sub(
        r"(\bconstant\s+(\w+)\s+\w+)\s*\[\[\s*function_constant\(\s*\w+\s*\)\s*\]\]\s*;", r"\1 = \2();", source
    )
    source = _THREADGROUP_ARRAY.sub(r"threadgroup \1 (&\2)\3 = *(threadgroup \1 (*)\3)0", source)
    source = re.sub(r"\btemplate\s*((?:\[\[(?:[^\]]|\](?!\]))*\]\]\s*)+)", "template ", source)  # host_name
    for name in re.findall(r"^typedef \w+ (\w+);$", source, re.MULTILINE):  # T, for T2 and T4
        source = re.sub(rf"\b{name}([234])\(", rf"MockVector<{name}, \1>::make(", source)
    source = re.sub(
        r"(?<!operator )\b(?:typename\s+)?(?:metal::)?\bvec<([^;{}()*]*?)>\(", r"MockVector<\1>::make(", source
    )
    return re.sub(r"(?:::)?(?:\bmetal::)?\bas_type<", "mock_as_type<", source)


_THREADGROUP_ARRAY = re.compile(
    r"(?:alignas\(\d+\)\s+)?\bthreadgroup\s+((?:typename\s+)?(?:\w+::)*\w+(?:<[^;{}()]*?>)?)\s+(\w+)"
    r"((?:\s*\[[^\[\];]+\])*)(?=\s*(?:;|\n|$))"
)


def without_comments(source: str) -> str:
    source = re.sub(r"//[^\n]*", "", source)
    return re.sub(r"/\*.*?\*/", lambda found: "\n" * found[0].count("\n"), source, flags=re.DOTALL)


def _missing_words(source: str) -> Iterator[str]:
    text = without_comments(source)
    for pattern, why in _PATTERNS:
        for found in pattern.finditer(text):
            yield f"line {text.count(chr(10), 0, found.start()) + 1}: '{found[0]}': {why}"


def _refused(unit: Any) -> Iterator[tuple[Any, str]]:
    """Constructs in the source itself that clang accepts and Metal does not."""
    from clang.cindex import CursorKind as Kind

    declared = (Kind.VAR_DECL, Kind.PARM_DECL, Kind.FIELD_DECL)
    functions = (Kind.FUNCTION_DECL, Kind.FUNCTION_TEMPLATE, Kind.CXX_METHOD)
    casts: Sequence[Any] = (Kind.CSTYLE_CAST_EXPR, Kind.CXX_REINTERPRET_CAST_EXPR, Kind.CXX_STATIC_CAST_EXPR)
    for cursor in _of_source(unit):
        if cursor.kind == Kind.LAMBDA_EXPR:
            yield cursor, "lambdas need Metal 3.2, macOS 15"
        named = cursor.result_type if cursor.kind in functions else cursor.type
        if cursor.kind in (*declared, *functions, *casts) and _is_nameless(named):
            yield cursor, "a pointer or reference must name its address space"
        if cursor.kind == Kind.FUNCTION_DECL and cursor.spelling == "main":
            yield cursor, "a function may not be called main"


def _is_nameless(pointer: Any) -> bool:
    """Whether a pointer or reference has no named address space: clang calls it `generic`, or does not know it yet in a
    template."""
    from clang.cindex import TypeKind

    if pointer.kind not in (TypeKind.POINTER, TypeKind.LVALUEREFERENCE, TypeKind.RVALUEREFERENCE):
        return False
    target = pointer.get_pointee()
    is_function = target.get_canonical().kind in (TypeKind.FUNCTIONPROTO, TypeKind.FUNCTIONNOPROTO)
    return not is_function and not re.search(r"__(?:global|local|constant|private)\b", target.spelling)


def _of_source(unit: Any) -> Iterator[Any]:
    """All nodes outside the library, whatever file a #line directive names."""
    for child in unit.get_children():
        if child.location.file is not None and not str(child.location.file).startswith(str(APPLE)):
            yield from child.walk_preorder()
