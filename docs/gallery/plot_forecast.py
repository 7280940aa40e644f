"""
Forecast time series with an LSTM
=================================

A DataFrame has the hourly loads of eight sites. ``ForecastDataModule`` splits
the table by date, cuts it into windows with a context and a horizon, and
scales each site with the statistics of its training data. The table of
forecasts has a column for the site and one for the time.
"""

import logging
import warnings

import lightning as L
import matplotlib.pyplot as plt
import torch
from seqdata import ForecastDataModule
from seqdata.datasets import make_series
from seqdata_models import LSTMForecaster

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.filterwarnings("ignore", module="lightning")
torch.set_num_threads(1)
table = make_series(8, days=60)
print(table.head(3))

# %%
# The model reads two days and forecasts the next day. ``known`` lists columns
# whose future values are known, here the temperature. Prices and holidays are
# other examples.

L.seed_everything(0, verbose=False)
data = ForecastDataModule(
    table,
    id="site",
    time="time",
    target="load",
    known="temperature",
    calendar=["hour", "dayofweek"],
    context=48,
    horizon=24,
    batch_size=32,
    split={"train": "..2024-02-16", "test": "2024-02-16.."},
)
model = LSTMForecaster.for_data(data, hidden=32, learning_rate=0.02)
trainer = L.Trainer(
    max_epochs=10,
    gradient_clip_val=1.0,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(model, data)

# %%
# ``predict`` returns a table in the units of the data. The naive forecast is
# the load at the same hour of the previous day.

forecast = data.predict(trainer, model).to_pandas()
table["naive"] = table.groupby("site")["load"].shift(24)
joined = forecast.merge(table, on=["site", "time"])
for name, column in {"LSTM": "load_pred", "day before": "naive"}.items():
    error = (joined[column] - joined["load"]).abs() / joined["load"]
    print(f"{name:10} off by {error.mean():.1%}")

# %%
# Each day of the test period is forecast from the two previous days.

figure, axes = plt.subplots(
    2, 1, figsize=(10, 4.6), sharex=True, layout="constrained"
)
for axis, site in zip(axes, ["site-0", "site-1"], strict=True):
    one = joined[joined["site"] == site].sort_values("time").head(24 * 7)
    axis.plot(one["time"], one["load"], color="black", label="truth")
    axis.plot(one["time"], one["load_pred"], color="#0072B2", label="forecast")
    for start in one["time"][::24]:
        axis.axvline(start, color="#BBBBBB", linewidth=0.8)
    axis.set(ylabel="load, kW", title=site)
axes[0].legend(frameon=False, ncols=2, loc="upper right")
plt.show()
