"""How commands write tables."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

# A cell is a Text where it has a colour; names and addresses are never read as rich's markup: [fe80::1] would be.
Row = tuple[str | Text, ...]

# A pipe has no width; rich would take 80 columns and fold the addresses that a script looks for.
_PIPE_COLUMNS = 400


def console() -> Console:
    """The terminal, or a pipe that folds nothing."""
    made = Console(highlight=False)
    if not made.is_terminal:
        made.width = _PIPE_COLUMNS
    return made


def _spelt(text: str) -> str:
    """A text of somebody's, without what a terminal would obey."""
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)


def print_table(columns: tuple[str, ...], rows: list[Row], nothing: str) -> None:
    """Write rows as a table; where there is none, `nothing`."""
    to = console()
    if not rows:
        to.print(nothing)
        return
    table = Table()
    for column in columns:
        table.add_column(column, overflow="fold")  # a narrow terminal shows an address in two lines, never half of it
    for row in rows:
        table.add_row(*(cell if isinstance(cell, Text) else Text(_spelt(cell)) for cell in row))
    to.print(table)
