"""What a process that serves connections needs from its system; gateway and engines use it alike."""
