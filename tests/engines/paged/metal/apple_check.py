"""What Apple's compiler would say of a source, as far as clang can tell: address spaces, overloads, C++14.

Metal's compiler is clang with its own library; here clang (the `libclang` wheel) reads the same text with declarations
of ours (apple/metal_stdlib) and says what is wrong. What it cannot know: what Apple's library declares beyond ours, and
what its back end refuses.
"""

from __future__ import annotations

import re
from pathlib import Path

from engines.paged.ops.sim.signatures import without_comments

APPLE = Path(__file__).parent / "apple"
_VECTOR_TYPES = "float|half|bfloat|int|uint|long|ulong|short|ushort|uchar"
_SPACES = r"(?:device|constant|threadgroup|thread)"
_SCALARS = "void|bool|char|" + _VECTOR_TYPES


def complaints(source: str) -> list[str]:
    """Errors and warnings of clang, each with its line."""
    from clang import cindex

    # Metal's vectors have constructors, clang's have none: float4(...) becomes a call. T4 is a vector of T's type.
    for name, element in re.findall(r"^typedef (\w+) (\w+);$", source, re.MULTILINE):
        source = re.sub(rf"\b({element})([234])\(", rf"make_{name}\2(", source)
    source = re.sub(rf"\b({_VECTOR_TYPES})([234])\(", r"make_\1\2(", source)
    arguments = [
        "-x",
        "c++",
        "-std=c++14",
        "-nostdinc",
        f"-I{APPLE}",
        "-DHOST_SIM",
        "-msse2",
        "-Wno-unknown-attributes",
    ]
    arguments += [
        "-Wall",
        "-Wno-unused-function",
        "-Wno-unused-const-variable",
        "-Werror=c++17-extensions",
        "-ferror-limit=0",
    ]
    unit = cindex.Index.create().parse("source.cpp", args=arguments, unsaved_files=[("source.cpp", source)])
    return [
        f"{said.location.file}:{said.location.line}: {said.spelling}"
        for said in unit.diagnostics
        if said.severity >= cindex.Diagnostic.Warning
    ]


def nameless_pointers(source: str) -> list[str]:
    """Declarations of pointers and references that name no address space, which Metal demands of each."""
    text = without_comments(source)
    own = set(re.findall(r"\b(?:struct|typename|class)\s+(\w+)", text)) | set(
        re.findall(r"typedef\s+[^;]+\s(\w+);", text)
    )
    types = "|".join(sorted({*_SCALARS.split("|"), *own}, key=len, reverse=True))
    declaration = re.compile(
        rf"(?P<before>(?:\b(?:const|volatile|{_SPACES})\s+)*)\b(?:{types})[234]?(?:<[^<>;()]*>)?(?P<after>(?:\s+const)?)"
        rf"\s*(?P<sign>[*&])\s*(?:const\s+)?(?P<name>\w*)\s*(?=[,;=)\[>(]|\[\[)"
    )
    return [
        f"line {text.count(chr(10), 0, found.start()) + 1}: {found.group().strip()}"
        for found in declaration.finditer(text)
        if not re.search(rf"\b{_SPACES}\b", found["before"])
    ]
