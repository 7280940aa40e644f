"""Messages about memory that ran out: the batch, and the size that would have fitted."""

from __future__ import annotations

import torch

from seqdata.lightning.callbacks._support.batch_facts import BatchFacts

_MESSAGES = ("out of memory", "can't allocate memory")
_MAX_IDS = 20


def is_out_of_memory(exception: BaseException) -> bool:
    """Return whether an exception means that a device or the machine has no memory left."""
    if isinstance(exception, torch.OutOfMemoryError | MemoryError):
        return True
    message = str(exception).lower()
    return isinstance(exception, RuntimeError) and any(text in message for text in _MESSAGES)


def describe_batch(facts: BatchFacts, rank: int) -> str:
    """Return a text with the batch and its shape.

    Args:
        facts: Facts about the batch.
        rank: The rank that had no memory left.
    """
    sizes = [f"{name}: {_describe_size(part)}" for name, part in facts.parts.items()]
    return (
        f"out of memory on rank {rank} in epoch {facts.epoch}, batch {facts.number}: "
        f"{'; '.join(sizes) or _describe_size(facts)}"
    )


def make_advice(facts: BatchFacts, largest: int) -> str:
    """Return a text with the size that would have fitted.

    Args:
        facts: Facts about the batch that did not fit.
        largest: Timesteps after padding of the largest batch that fitted; 0 if none did.
    """
    if facts.parts:
        passed = f"had at most {largest} timesteps" if largest else "were none"
        return (
            f"This step had {facts.padded} timesteps after padding over all parts; steps that "
            f"passed before {passed}. Lower the sizes of its parts' batches"
        )
    if not largest:
        return (
            f"No batch has passed: a budget below {facts.padded} timesteps after padding "
            f"(TokenBudget), or a smaller model"
        )
    if largest < facts.padded:
        return (
            f"The largest batch that passed had {largest} timesteps after padding, so this budget "
            f"would have fitted: TokenBudget({largest})"
        )
    return (
        f"A batch of {largest} timesteps after padding has passed before, so it is not this "
        "batch's size: look for outputs that are kept from step to step, for other processes on "
        "the device, or for fragmentation (PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True)"
    )


def _describe_size(facts: BatchFacts) -> str:
    ids = facts.ids.tolist()
    shown = ", ".join(map(str, ids[:_MAX_IDS])) + (", …" if len(ids) > _MAX_IDS else "")
    return (
        f"{facts.rows} rows x {facts.width} timesteps, {facts.padded} after padding "
        f"({facts.real} real), ids {shown}"
    )
