"""Prints the dependencies that a pyproject.toml names: `requirements.py pyproject.toml [EXTRA...]`.

An image installs them before the sources come, so that their layer lasts as long as that file.
"""

import sys
import tomllib
from pathlib import Path

project = tomllib.loads(Path(sys.argv[1]).read_text())["project"]
print(
    *project["dependencies"],
    *(line for extra in sys.argv[2:] for line in project["optional-dependencies"][extra]),
    sep="\n",
)
