"""What every package of the engines stands on: errors, messages, calls, and the process table of the machine."""
