"""The conformance kit: what every policy, store and loader must keep, as checks to call.

``plans`` and ``sharing`` check policies, ``lanes`` those that deal by rows; ``stores`` checks
backends, with a ready test class in ``contract``; ``loaders`` checks whole loaders over what
``recorder`` records. ``faults`` damages files and harms processes, and says what came of it.
``generators`` draws the inputs worth trying and needs hypothesis; nothing else here needs more than
seqdata itself, and nothing needs pytest.
"""

from seqdata.errors import SeqDataError


class ConformanceError(SeqDataError, AssertionError):
    """A part of seqdata, or of a plugin, does not keep a promise; the message says which."""
