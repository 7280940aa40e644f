"""A step of Grain's pipeline; in a module of its own, for it must be made from Grain's class."""

from __future__ import annotations

from typing import Any

import grain.python as grain

from torture_set.readers.grain_records import decode


class Decode(grain.MapTransform):
    """A record becomes a sequence."""

    def map(self, element: bytes) -> dict[str, Any]:
        return decode(element)
