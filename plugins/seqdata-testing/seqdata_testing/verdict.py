"""What a check raises when a promise is not kept. Place in the flow: below all checks."""

from __future__ import annotations

from seqdata.errors import SeqDataError


class ConformanceError(SeqDataError, AssertionError):
    """A part of the toolkit, or of a plugin, does not keep a promise; the message says which."""
