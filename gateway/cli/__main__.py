"""`python -m gateway.cli`."""

from gateway.cli import main

main()
