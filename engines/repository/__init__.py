"""Model repositories: their models, configurations, and serving versions.

In the order of a model's way through them:

    storage, layout     the directories of models, their versions, and changes
    config              configurations: read, completed and checked
    sources, poller     reading models
    ensembles           the models of ensembles
    updates             changes: loads and unloads, in order
    lifecycle, states   the versions
    repository          the host's interface
"""

from engines.repository.repository import Mode, Repository
from engines.repository.states import IndexEntry, ModelState

__all__ = ["IndexEntry", "Mode", "ModelState", "Repository"]
