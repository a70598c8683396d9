"""`pointsman doctor`: what works on this machine, what does not, and what to do about it.

A check is a function listed in `finding.py`. Each runs in a process of its own with a time limit (`process.py`): a
driver that crashes or hangs is a finding like any other.
"""
