"""The run of ``train.py`` on the workers of a Ray cluster.

python ray_train.py STORE OUT.ckpt WORKERS
"""

import sys
from pathlib import Path

import lightning as L
import ray.train
from ray.train.lightning import RayDDPStrategy, RayLightningEnvironment, prepare_trainer
from ray.train.torch import TorchTrainer


def train(config: dict) -> None:
    """Train on one worker of the cluster."""
    sys.path.insert(0, config["folder"])
    from train import make_data, make_model

    trainer = L.Trainer(
        accelerator="auto", devices="auto", strategy=RayDDPStrategy(), max_epochs=2, logger=False,
        plugins=[RayLightningEnvironment()], enable_progress_bar=False, enable_checkpointing=False,
    )  # fmt: skip
    trainer = prepare_trainer(trainer)
    trainer.fit(make_model(), make_data(config["store"]))
    trainer.save_checkpoint(config["out"])


def main(store: str, out: str, workers: str = "2", use_gpu: str = "") -> None:
    """Start the workers, and wait for them."""
    config = {
        "store": str(Path(store).absolute()), "out": str(Path(out).absolute()),
        "folder": str(Path(__file__).parent.absolute()),
    }  # fmt: skip
    scaling = ray.train.ScalingConfig(num_workers=int(workers), use_gpu=bool(use_gpu))
    TorchTrainer(train, train_loop_config=config, scaling_config=scaling).fit()


if __name__ == "__main__":
    main(*sys.argv[1:])
