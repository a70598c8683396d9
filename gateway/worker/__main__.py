"""`python -m gateway.worker`: started by the control process."""

import sys

from gateway.worker.process import main

if __name__ == "__main__":
    sys.exit(main())
