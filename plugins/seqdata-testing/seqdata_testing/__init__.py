"""The conformance kit: the promises of every policy, store and loader, as checks to call.

``plans`` and ``sharing`` check policies, ``lanes`` those with lanes; ``stores`` checks backends,
with a test class in ``contract``; ``loaders`` checks whole loaders by what ``recorder`` records.
``faults`` damages files and harms processes, and reports the result. ``generators`` draws the
inputs worth trying and needs hypothesis; nothing else here needs more than seqdata itself, and
nothing needs pytest.
"""

from seqdata.errors import SeqDataError


class ConformanceError(SeqDataError, AssertionError):
    """A part of seqdata, or of a plugin, breaks a promise; the message says which."""
