"""Train and predict a forecaster on some ranks; run as ``on_ranks.py RANKS FOLDER``."""

import json
import os
import sys
import warnings
from pathlib import Path

import lightning as L

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from seqdata_models import LSTMForecaster

from seqdata import ForecastDataModule
from tests.suite.samples import hours


class Recorded(LSTMForecaster):
    """Writes down the windows that it is trained on."""

    seen: list[tuple[str, int]]

    def training_step(self, batch):
        """Return the loss."""
        for row, site in enumerate(batch["site"]):
            if batch.weight[row]:
                self.seen.append((site, int(batch.start[row])))
        return super().training_step(batch)


def run(ranks: int, folder: Path) -> None:
    """Train, predict, and write what this rank saw."""
    L.seed_everything(0)
    data = ForecastDataModule(
        hours(), id="site", time="time", target="load", static="region", context=24, horizon=6,
        split={"train": "..2024-01-08", "val": "2024-01-08.."}, batch_size=8, seed=1,
    )  # fmt: skip
    model = Recorded.for_data(data, hidden=4)
    model.seen = []
    trainer = L.Trainer(
        max_epochs=1, accelerator="cpu", devices=ranks, strategy="ddp" if ranks > 1 else "auto",
        logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, num_sanity_val_steps=0,
    )  # fmt: skip
    trainer.fit(model, data)
    for parameter in model.parameters():  # the same on any number of ranks
        parameter.data.fill_(0.01)
    table = data.predict(trainer, model)
    found = {
        "seen": model.seen, "digest": data.statistics.digest, "table": table.to_pandas().to_csv(),
    }  # fmt: skip
    (folder / f"{ranks}-{trainer.global_rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    warnings.simplefilter("ignore")
    run(int(sys.argv[1]), Path(sys.argv[2]))
