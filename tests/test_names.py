"""Names: a module is named for the noun it holds, and a public class name stands for one thing in its package."""

import ast
import io
import re
import tokenize
from collections import defaultdict
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
PACKAGES = ("gateway", "engines")

# Words in -ing that the field uses as nouns.
NOUNS = {
    "balancing", "batching", "embedding", "finding", "forwarding", "keyring", "ordering", "pacing", "packing",
    "pending", "recording", "sampling", "staging", "templating", "testing", "timing", "tracing", "wiring",
}  # fmt: skip
# What each of Triton's python models is called.
TRITONS = {"TritonPythonModel"}


def modules() -> list[Path]:
    return sorted(path for package in PACKAGES for path in (REPOSITORY / package).rglob("*.py"))


def test_modules_are_named_for_nouns() -> None:
    """No module is named by what is done in it (`asking`, `making`), but for nouns in -ing."""
    found = {
        path.relative_to(REPOSITORY).as_posix()
        for path in modules()
        if path.stem.endswith("ing") and path.stem.rpartition("_")[2] not in NOUNS
    }
    assert not found


def test_public_classes_share_no_names() -> None:
    """A public class has a name of its own in its package, so that a name stands for one thing."""
    places: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for path in modules():
        place = path.relative_to(REPOSITORY)
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[place.parts[0], node.name].append(place.as_posix())
    shared = {name: where for (_, name), where in places.items() if len(where) > 1 and name not in TRITONS}
    assert not shared


# Words of a private dialect, where the field has a verb of its own: report, request, query, publish, parse, cache, ...
DIALECT = {
    "anew", "ask", "asked", "asking", "asks", "ears", "flavour", "flavours", "given", "hands", "hear", "heard",
    "homes", "keeper", "keepsake", "knock", "lane", "learnt", "led", "minds", "news", "nobody", "obey", "recall",
    "said", "say", "says", "seams", "soil", "spoken", "tally", "tell", "telling", "tells", "think", "thought", "told",
    "whereabouts", "whoever", "whose", "wish",
}  # fmt: skip
# Python's own.
BUILT_IN = {"tell"}  # of a file: the position


def test_identifiers_use_the_terms_of_the_field() -> None:
    """No function, class, argument, attribute or variable has a word of the private dialect in its name."""
    found = defaultdict(set)
    for path in [*modules(), *sorted((REPOSITORY / "tests/support").rglob("*.py"))]:
        for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
            if token.type == tokenize.NAME and token.string not in BUILT_IN:
                words = {word.lower() for word in re.split(r"_+|(?<=[a-z])(?=[A-Z])", token.string)}
                if words & DIALECT:
                    found[path.relative_to(REPOSITORY).as_posix()].add(token.string)
    assert not found
