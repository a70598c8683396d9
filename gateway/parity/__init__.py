"""The parity process: it asks candidates what routes' own engines were asked, and compares the answers.

It is a data plane without listeners: workers hand it requests with their answers, and each request goes through a
`DataPlane` of its own, whose rules lead every mirrored route to its candidate. So a candidate is asked by all that a
worker can do, no worker does anything for one, and nothing from outside reaches one by this way.
"""
