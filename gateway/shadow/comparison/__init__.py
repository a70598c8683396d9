"""Comparison of two engines' replies to one request, and the reports of many comparisons."""
