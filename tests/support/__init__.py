"""What several tests need: real servers as child processes, and clients that show the bytes."""
