"""Limits shared by all workers: each borrows allowance from Redis in batches, spends it without asking, and gives back
what it did not use."""
