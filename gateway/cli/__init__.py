"""The command line: `pointsman COMMAND`. The modules of the named command are imported, and no others."""

from __future__ import annotations

import sys

from gateway.cli.command_table import COMMANDS, GROUPS, PROGRAMS
from gateway.cli.engine_programs import execute
from gateway.net.collector import relax_collector


def main() -> None:
    named = sys.argv[1] if len(sys.argv) > 1 else ""
    if named in PROGRAMS:
        execute(named, sys.argv[2:])
    relax_collector()
    from gateway.cli.app import make_app

    make_app(named if named in COMMANDS or named in GROUPS else None)()
