"""The demo model's generator is a package beside its script; it is imported the way the script imports it."""

import sys
from pathlib import Path

SCRIPTS = Path(__file__).parents[4] / "scripts"
sys.path.insert(0, str(SCRIPTS))
