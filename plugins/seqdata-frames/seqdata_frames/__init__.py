"""Sequences in tables with a row per timestep, which may be larger than memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from seqdata.backends import hookimpl
from seqdata_frames.backend import Frames

__all__ = ["Frames", "seqdata_register_backends"]


@hookimpl
def seqdata_register_backends() -> Mapping[str, Any]:
    """Register the backend ``frames``."""
    return {"frames": Frames()}
