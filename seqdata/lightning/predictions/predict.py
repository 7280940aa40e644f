"""One call from a model and its data to a table of predictions, on any number of ranks."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seqdata.api import open_store
from seqdata.errors import ConfigError, must_be
from seqdata.fitting.statistics import Statistics
from seqdata.lightning.predictions.table import TableOptions, make_table
from seqdata.lightning.predictions.writer import PredictionWriter
from seqdata.logical_types import Timestamp
from seqdata.policies.windows import Windows
from seqdata.protocols import Policy, Store
from seqdata.runs.data_sources import DataSources
from seqdata.storage.arrow.manifest import MANIFEST

if TYPE_CHECKING:
    import pyarrow as pa


def predict_table(
    trainer: Any, model: Any, data: Any, sources: DataSources, ckpt_path: Any = None
) -> pa.Table:
    """Predict, and return the table of predictions; on every rank the same.

    Args:
        trainer: A Trainer.
        model: A model whose ``predict_step`` returns tensors with a row for each row of the batch.
        data: The DataModule.
        sources: Its stores.
        ckpt_path: Checkpoint, as in ``trainer.predict``.

    Raises:
        ConfigError: If there is no data to predict, or several datasets.
    """
    policy = sources.find_policy("predict")
    cuts = isinstance(policy, Windows)
    folder = Path(tempfile.mkdtemp(prefix="seqdata-predict-"))
    writer = PredictionWriter(folder / "predictions", per="span" if cuts else None)
    trainer.callbacks.append(writer)
    try:
        trainer.predict(model, datamodule=data, return_predictions=False, ckpt_path=ckpt_path)
        written = Path(str(trainer.strategy.broadcast(str(folder / "predictions"))))
        if not (written / MANIFEST).is_file():
            raise ConfigError(
                "datamodule: `predict` makes a table of one dataset, but there are several, by "
                "name. Use PredictionWriter"
            )
        table = make_table(open_store(written), *_describe_source(sources, policy))
        trainer.strategy.barrier("seqdata-predict")
        return table
    finally:
        trainer.callbacks.remove(writer)
        shutil.rmtree(folder, ignore_errors=True)


def _describe_source(sources: DataSources, policy: Policy) -> tuple[Store, TableOptions]:
    """Return the predicted store, and the columns of the table.

    Raises:
        ConfigError: If there is no such store.
    """
    store, options = sources.get_store("predict"), sources.options
    engines = sources.get_engines("predict")
    policy = engines[0].policy if engines else policy  # in timesteps, if it was in seconds
    if store is None:
        raise ConfigError(must_be("datamodule: `predict`", "a location", "None", "Pass it"))
    field = store.fields.get(options.order or "")
    is_date = field is not None and isinstance(field.logical, Timestamp)
    statistics = options.statistics if isinstance(options.statistics, Statistics) else None
    return store, TableOptions(
        axis=policy.axis, horizon=getattr(policy, "horizon", 0), id_name=options.group or "id",
        time=options.order if is_date else None, statistics=statistics,
    )  # fmt: skip
