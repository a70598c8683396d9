"""The demo of `pointsman up`: child processes, a real Triton from a wheel, sample requests."""
