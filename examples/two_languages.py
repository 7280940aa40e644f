"""A character model of a large and a small language, drawn as they are and by temperature.

::

    python examples/two_languages.py TEXT [SMALL]

TEXT is a large text; SMALL a text of another language, of which only the first characters are kept.
Without it this is a part of Python's own library: code next to prose. The same model is trained
twice on as many batches, with T=1 (shares as the data has them) and T=3 (more even ones); the last
line printed has the shares, and the loss on held-out text of each language. ``--smoke``: small
texts made by a rule, some seconds.
"""

from __future__ import annotations

import argparse
import logging
import sysconfig
import warnings
from pathlib import Path

import lightning as L
import numpy as np
import torch

from seqdata import Bucketed, Mix, SequenceDataModule

NAMES = ("large", "small")
TEMPERATURES = (1.0, 3.0)
Rows = list[dict[str, np.ndarray]]


class CharModel(L.LightningModule):
    """An LSTM that predicts the next character; it sums the loss of each language.

    Args:
        characters: Number of different ones.
        hidden: Size of its state.
    """

    def __init__(self, characters: int, hidden: int) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(characters, 32)
        self.lstm = torch.nn.LSTM(32, hidden, batch_first=True)
        self.out = torch.nn.Linear(hidden, characters)
        self.drawn = dict.fromkeys(NAMES, 0)  # timesteps trained
        self.sums = np.zeros((len(NAMES), 2))  # nats and characters of each language

    def nats(self, batch) -> torch.Tensor:
        """Return the loss of each timestep."""
        logits = self.out(self.lstm(self.embed(batch["x"].long()))[0])
        targets = batch["targets"].long()
        return torch.nn.functional.cross_entropy(logits.mT, targets, reduction="none")

    def training_step(self, batch):
        """Return the mean loss of the update's timesteps."""
        self.drawn[batch.part] += batch.num_tokens
        return (batch.score * self.nats(batch)).sum() * batch.loss_scale

    def validation_step(self, batch, batch_idx, dataloader_idx=0):
        """Add what is scored to the language of the loader."""
        del batch_idx
        total = float((batch.score * self.nats(batch)).sum())
        self.sums[dataloader_idx] += total, float(batch.score.sum())

    def configure_optimizers(self):
        """Return Adam."""
        return torch.optim.Adam(self.parameters(), lr=4e-3)


def make_texts(lines: int) -> list[str]:
    """Return two small languages that are made by a rule, the second a tenth of the first."""
    rng = np.random.default_rng(0)
    animals, sounds = ["sheep", "horse", "duck", "cow"], ["baa", "neigh", "quack", "moo"]
    said = rng.integers(0, 4, lines)
    prose = "".join(f"the {animals[k]} says {sounds[k]}, says the {animals[k]}\n" for k in said)
    sums = rng.integers(0, 9, (lines // 10, 2))
    return [prose, "".join(f"f({a}, {b}) = [{a} + {b}]; // {a + b}\n" for a, b in sums)]


def read_library(count: int) -> str:
    """Return the first characters of Python's own library."""
    folder, text = Path(sysconfig.get_paths()["stdlib"]), ""
    for path in sorted(folder.glob("*.py")):
        if len(text) >= count:
            break
        text += path.read_text("utf-8", errors="replace")
    return text


def cut(codes: np.ndarray, length: int) -> tuple[Rows, Rows]:
    """Return rows of a text: to train, and every tenth to validate."""
    rows = [{"x": codes[first : first + length]} for first in range(0, len(codes) - 1, length)]
    val = rows[9::10]
    return [row for number, row in enumerate(rows) if number % 10 != 9], val


def train(
    parts: list[tuple[Rows, Rows]], characters: int, temperature: float, options: argparse.Namespace
) -> list[tuple[float, float]]:
    """Train a model; return the share of timesteps and the validation loss of each language."""
    L.seed_everything(0, verbose=False)
    mix = Mix(
        dict.fromkeys(NAMES, 1.0),
        Bucketed(options.rows),
        by="timesteps",
        temperature=temperature,
        batches=options.batches,
        keep="batch",
    )
    data = SequenceDataModule(
        train=dict(zip(NAMES, (rows for rows, _ in parts), strict=True)),
        val=dict(zip(NAMES, (rows for _, rows in parts), strict=True)),
        batching=mix,
        shift=1,
        seed=0,
    )
    model = CharModel(characters, options.hidden)
    trainer = L.Trainer(
        max_epochs=1,
        accelerator="cpu",
        devices=1,
        gradient_clip_val=1.0,
        num_sanity_val_steps=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, data)
    total = sum(model.drawn.values())
    losses = (model.sums[:, 0] / model.sums[:, 1]).tolist()
    return [(model.drawn[name] / total, nats) for name, nats in zip(NAMES, losses, strict=True)]


def main() -> None:
    """Train at each temperature, and compare."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("text", type=Path, nargs="?", help="a large text")
    parser.add_argument("small", type=Path, nargs="?", help="a text of another language")
    parser.add_argument("--kept", type=int, default=60_000, help="characters kept of the small one")
    parser.add_argument("--batches", type=int, default=1_200, help="of each training")
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--length", type=int, default=128, help="characters of a row")
    parser.add_argument("--hidden", type=int, default=160)
    parser.add_argument("--smoke", action="store_true", help="texts made by a rule, some seconds")
    options = parser.parse_args()
    if options.smoke:
        parser.set_defaults(batches=160, length=64, hidden=32)
        options = parser.parse_args()
    if not (options.smoke or options.text):
        parser.error("give a text file, or --smoke")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")  # hints that are not about this
    torch.set_num_threads(1)  # a model this small is slower on several

    texts = make_texts(1_000)
    if options.text:
        small = options.small.read_text("utf-8") if options.small else read_library(options.kept)
        texts = [options.text.read_text("utf-8"), small[: options.kept]]
    known = sorted(set("".join(texts)))
    parts = [
        cut(np.searchsorted(known, list(text)).astype(np.int16), options.length) for text in texts
    ]
    for name, text in zip(NAMES, texts, strict=True):
        print(f"{name}: {len(text):,} characters, {len(set(text))} different")
    found = []
    for temperature in TEMPERATURES:
        described = ", ".join(
            f"{name} {100 * share:.1f} % {nats:.3f} nats"
            for name, (share, nats) in zip(
                NAMES, train(parts, len(known), temperature, options), strict=True
            )
        )
        found.append(f"T={temperature:g}: {described}")
        print(found[-1], flush=True)
    print("; ".join(found))


if __name__ == "__main__":
    main()
