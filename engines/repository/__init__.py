"""Model repositories: which models there are, how they are configured, and which of their versions serve.

In the order in which a model goes through them:

    roots, layout, versions, fingerprint    where models lie, and whether they have changed
    config                                  their configurations, read, completed and checked
    sources, polling                        a look at them
    graph, mapping                          what ensembles need
    updates                                 a change: what is loaded and unloaded, and in which order
    lifecycle, states                       the versions themselves
    repository                              all of it, as the host sees it
"""

from engines.repository.repository import Mode, Repository
from engines.repository.states import IndexEntry, ModelState

__all__ = ["IndexEntry", "Mode", "ModelState", "Repository"]
