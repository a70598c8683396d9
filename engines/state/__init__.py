"""Stores of state that outlives a process: keys and values of texts, and states of sequences, for other processes
too."""
