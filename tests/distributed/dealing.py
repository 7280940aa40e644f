"""The batches that all ranks of a run were given."""

from typing import Any


def list_dealt(told: list[dict[str, Any]]) -> list[tuple[int, int, tuple[int, ...]]]:
    """Return the batches of all ranks in the order of the plan, without padding rows."""
    return [
        entry
        for step in zip(*(one["train"] for one in told), strict=True)
        for entry in step
        if entry[2]
    ]
