"""A store of somebody else that opens its path again and looks at nothing; without torch."""

from seqdata.storage.arrow.store import open_local
from tests.storage.somebodys import Somebodys


class Elsewhere(Somebodys):
    """What a simple backend of a third party does."""

    def __init__(self, path):
        super().__init__(open_local(path), location=path)

    def __reduce__(self):
        return Elsewhere, (self.location,)
