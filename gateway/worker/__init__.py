"""One data-plane process."""
