"""The benchmark is a package beside its commands: it is found as they find it."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))
