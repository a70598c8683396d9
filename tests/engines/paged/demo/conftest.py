"""The maker of the demo's language model is a package beside its script: it is found as the script finds it."""

import sys
from pathlib import Path

SCRIPTS = Path(__file__).parents[4] / "scripts"
sys.path.insert(0, str(SCRIPTS))
