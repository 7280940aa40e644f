"""The batch, its layouts and axes, and its validation.

The names of ``seqdata.batch.batch`` can be read here, too; torch is imported when the first of them
is: workers of a loader need the axes of batches only, and start in a third of the time without.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from seqdata.batch.batch import SequenceBatch, batch_size_fn, length_fn

__all__ = ["SequenceBatch", "batch_size_fn", "length_fn"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from seqdata.batch import batch

    return getattr(batch, name)
