"""The base of every engine package: errors, messages, calls, datatypes and the machine's process table."""
