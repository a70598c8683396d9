"""`python -m gateway.parity`: started by the control process where some route has a shadow."""

import sys

from gateway.parity.process import main

if __name__ == "__main__":
    sys.exit(main())
