"""A model's own virtual environment need not have what this package needs: it finds that in the host's."""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableSequence

VARIABLE = "POINTSMAN_HOST_PACKAGES"


def add_host_packages(path: MutableSequence[str], environment: Mapping[str, str]) -> None:
    """Append the host's packages where the environment names them: the model's own come first."""
    for directory in environment.get(VARIABLE, "").split(os.pathsep):
        if directory and directory not in path:
            path.append(directory)
