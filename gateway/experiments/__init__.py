"""Experiments at work, in the control process: evidence is gathered, judged, and acted upon by ramps and bandits."""
