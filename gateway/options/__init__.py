"""Where the options of a command come from beside its command line: variables and settings files."""
