"""The shadow process: it repeats requests of mirrored routes at their candidate engines and compares the replies.

It is a data plane without listeners: workers hand it captured requests with their replies, and each request passes
through a `DataPlane` whose rules lead every mirrored route to its candidate. A candidate is therefore reached by all
that a worker can do, no worker spends anything on one, and nothing from outside reaches one this way.
"""
