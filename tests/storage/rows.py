"""Rows of small stores."""

import numpy as np

ROWS = [
    {
        "id": f"u{i}",
        "x": np.arange(2.0 * i, dtype=np.float32).reshape(i, 2),
        "text": b"t" * (i + 1),
        "y": np.int32(i % 3),
        "note": f"n{i % 2}",
    }
    for i in range(7)
]
AXES = {"text": "text"}
FEW_ROWS = [{"id": f"s{number}", "x": np.arange(number)} for number in range(5)]
ITEMS = [{name: row[name] for name in ("id", "x", "y")} for row in ROWS]


class Items:
    """A map-style Dataset without torch."""

    def __len__(self):
        return len(ITEMS)

    def __getitem__(self, number):
        return ITEMS[number]
