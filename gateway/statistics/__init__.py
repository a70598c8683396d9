"""What may be said of an experiment's arms from what was counted of them, however often one looks: counts in,
verdicts out."""
