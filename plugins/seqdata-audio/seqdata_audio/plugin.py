"""What the plugin offers to seqdata, by its hooks; nothing heavy is imported here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from seqdata.backends import hookimpl
from seqdata_audio.format import Audio


@hookimpl
def seqdata_register_backends() -> Mapping[str, Any]:
    """Offer the backend ``audio``."""
    return {"audio": Audio()}
