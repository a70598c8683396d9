"""Makes the package `bench` importable, as it is for the commands beside it."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))
