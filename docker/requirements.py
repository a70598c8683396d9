"""Prints the dependencies that a pyproject.toml names: `requirements.py pyproject.toml [--build] [EXTRA...]`.

`scripts/lock` locks them. An image with other extras than those that are locked installs them as they are printed.
"""

import sys
import tomllib
from pathlib import Path

document = tomllib.loads(Path(sys.argv[1]).read_text())
project = document["project"]
if "--build" in sys.argv:
    lines = document["build-system"]["requires"]
else:
    extras = (line for extra in sys.argv[2:] for line in project["optional-dependencies"][extra])
    lines = [*project["dependencies"], *extras]
print(*lines, sep="\n")
