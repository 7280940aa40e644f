"""The conformance kit: checks of the promises of policies, stores and loaders.

``plans`` and ``sharing`` check policies, ``lanes`` policies with lanes; ``stores`` checks backends,
with test classes in ``contract``; ``loaders`` checks whole loaders with rows from ``recorder``.
``faults`` damages files and harms processes, and reports the outcomes. ``generators`` draws inputs
and needs hypothesis; the other modules need only seqdata, and none needs pytest. To *play* an epoch
is to iterate over it and compare each batch with its data.
"""

from seqdata.errors import SeqDataError


class ConformanceError(SeqDataError, AssertionError):
    """A part of seqdata, or of a plugin, breaks a promise; the message says which."""
