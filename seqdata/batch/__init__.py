"""The batch, its layouts and axes, and its validation.

``SequenceBatch``, ``batch_size_fn`` and ``length_fn`` are available here as well; torch is imported
with the first of them: workers of a loader need only the axes, and start in a third of the time
without torch.
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
