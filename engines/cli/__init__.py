"""The engines' command line: `python -m engines COMMAND`; `pointsman COMMAND` has the same commands."""
