"""`python -m engines`: the commands of `engines.cli` by themselves."""

from engines.cli.app import main

if __name__ == "__main__":
    main()
