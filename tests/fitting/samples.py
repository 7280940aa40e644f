"""Rows, what is fitted to them, and the columns that a fit transforms."""

import numpy as np

from seqdata import Labels, MeanStd, Quantiles, Vocabulary

WHAT = {
    "x": MeanStd(),
    "site_x": MeanStd(by="site"),
    "load": Quantiles(0.01, 0.5, 0.99),
    "label": Labels(),
    "text": Vocabulary(min_count=2),
    "w": MeanStd(),
}


def make_rows(count=40, seed=0):
    rng = np.random.default_rng(seed)
    rows = []
    for number, length in enumerate(rng.integers(0, 30, count)):
        x = rng.normal(3, 2, (length, 3)).astype("float32")
        rows.append({
            "x": x, "site_x": x, "load": rng.normal(size=length), "label": number % 3,
            "site": "north" if number % 2 else "south", "w": float(rng.normal()),
            "text": " ".join(rng.choice(["to", "be", "or", "not", "the"], length % 7)),
        })  # fmt: skip
    return rows


ROWS = make_rows()


def apply(stats, **columns):
    return stats.transform()(columns, None)
