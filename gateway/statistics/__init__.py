"""Statistics of experiments that are valid under continuous monitoring: counts in, verdicts out."""
