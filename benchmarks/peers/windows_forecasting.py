"""pytorch-forecasting: ``TimeSeriesDataSet`` and its ``to_dataloader``."""

from __future__ import annotations

import numpy as np

from peers.asking import CONTEXT, HORIZON, WINDOWS, Ask, Peer, Reading


def read(ask: Ask) -> Reading:
    import pandas as pd
    from pytorch_forecasting import TimeSeriesDataSet

    values = np.load(ask.folder / "values.npy")
    lengths = np.diff(np.load(ask.folder / "offsets.npy"))
    frame = pd.DataFrame(values, columns=["sales", "price"])
    frame["series"] = np.repeat(np.arange(len(lengths)), lengths).astype(str)
    frame["step"] = np.concatenate([np.arange(length) for length in lengths])
    dataset = TimeSeriesDataSet(
        frame, time_idx="step", target="sales", group_ids=["series"],
        max_encoder_length=CONTEXT, min_encoder_length=CONTEXT, max_prediction_length=HORIZON,
        time_varying_unknown_reals=["sales", "price"], target_normalizer=None, scalers={},
    )  # fmt: skip
    return Reading(dataset.to_dataloader(train=True, batch_size=WINDOWS, num_workers=0))


PEER = Peer(
    "pytorch-forecasting", ("pytorch-forecasting",), read, reads="windows_by_hand", sets=("W",),
    lacks="all in memory; it also scales values, and adds targets, scales and encoder lengths",
)  # fmt: skip
