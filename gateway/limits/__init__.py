"""Limits shared by all workers: each worker borrows allowance from Redis in batches, spends it locally, and returns the
rest."""
