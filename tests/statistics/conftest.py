"""The simulations are part of a command in scripts/bench, and are imported from there."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))
