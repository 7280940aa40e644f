"""Configurations of ``seqdata fit``, and changes of them."""

import copy

FORECAST = {
    "seed_everything": 1,
    "data": {
        "class_path": "ForecastDataModule",
        "init_args": {
            "source": "load.parquet", "id": "site", "time": "time", "target": "load",
            "context": 24, "horizon": 6, "split": {"train": "..2024-01-08"},
        },
    },
    "model": {"class_path": "LSTMForecaster", "init_args": {"hidden": 4}},
    "trainer": {"max_epochs": 1, "accelerator": "cpu", "logger": False},
}  # fmt: skip
SEQUENCES = {
    **FORECAST,
    "data": {
        "class_path": "SequenceDataModule",
        "init_args": {
            "train": "load.parquet", "group": "site", "order": "time",
            "batching": {"class_path": "windows", "init_args": {"size": 24}},
            "statistics": {"load": {"class_path": "Robust", "init_args": {"by": "site"}}},
        },
    },
}  # fmt: skip


def change(config, path, new, value=None):
    """Return a configuration whose key ``path`` is called ``new``, or has another value."""
    changed = copy.deepcopy(config)
    *above, last = path.split("/")
    section = changed
    for key in above:
        section = section[key]
    if value is None:
        section[new] = section.pop(last)
    else:
        section[last] = value
    return changed
