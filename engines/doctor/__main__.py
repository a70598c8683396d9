"""One check: `python -m engines.doctor MODULE:FUNCTION ARGUMENTS`; its finding is the last line printed, as JSON."""

from __future__ import annotations

import faulthandler
import importlib
import json
import logging
import sys
import traceback

from engines.doctor.finding import Finding, fail


def main(function: str, arguments: str) -> None:
    """Run a check. An exception is a finding, with its traceback for the report."""
    faulthandler.enable()
    logging.disable(logging.INFO)
    module, _, name = function.partition(":")
    finding: Finding
    try:
        finding = getattr(importlib.import_module(module), name)(**json.loads(arguments))
    except Exception as error:
        first = str(error).strip().partition("\n")[0]
        trace = traceback.format_exc().split("\n")
        finding = fail(f"it raised {type(error).__name__}: {first}", "attach this report to an issue", traceback=trace)
    print("\n" + json.dumps(finding.to_json(), default=str), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
