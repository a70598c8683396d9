"""`python -m gateway.shadow`: started by the control process where a route has a shadow."""

import sys

from gateway.shadow.process import main

if __name__ == "__main__":
    sys.exit(main())
