"""The simulations are part of a command in scripts/bench: they are found as it finds them."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))
