"""What is remembered of sessions and sequences: where they are, which arms they have, when they were seen."""
