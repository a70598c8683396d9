"""What outlives a process: keys and values of texts, states of sequences, kept where other processes find them."""
