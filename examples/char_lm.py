"""A character language model over one long text, streamed through lanes whose states go on.

``char_lm.py TEXT`` trains on the first 90 % of a text file and scores each character of the rest
once, in one lane. On the 1.1 MB of tiny Shakespeare it comes below 1.53 nats per character within
10 minutes on 2 CPU cores. ``--smoke``: a small text made by a rule, some seconds.
"""

import argparse
import logging
import math
import time
import warnings
from pathlib import Path

import lightning as L
import numpy as np
import torch
from seqdata_models import StatefulLM

from seqdata import TBPTT, SequenceDataModule


def nursery(lines: int) -> str:
    """Return lines of few words, each said again at its end: what came first must be remembered."""
    rng = np.random.default_rng(0)
    animals, sounds = ["sheep", "horse", "duck", "cow"], ["baa", "neigh", "quack", "moo"]
    said = rng.integers(0, 4, lines)
    return "".join(f"the {animals[k]} says {sounds[k]}, says the {animals[k]}\n" for k in said)


class ShowingLM(StatefulLM):
    """A StatefulLM that prints each validation, and looks that each character was scored once."""

    scored: np.ndarray  # of each character of the validation text, how often
    begun: float  # when, in seconds

    def validation_step(self, batch):
        """Count the characters of the one lane: the target of each is the one behind it."""
        super().validation_step(batch)
        (first,), (length,) = (batch.start + 1).tolist(), batch.lengths.tolist()
        self.scored[first : first + length] += batch.score[0].cpu().numpy()

    def on_validation_end(self):
        """Show what was found."""
        if self.scored[0] or (self.scored[1:] != 1).any():
            raise SystemExit("some character was not scored once")
        self.scored[:] = 0
        nats = float(self.trainer.callback_metrics["val_loss"])
        print(
            f"epoch {self.current_epoch + 1:2}  {time.perf_counter() - self.begun:4.0f} s"
            f"  validation {nats:.4f} nats, {nats / math.log(2):.3f} bits per character"
            f"  ({len(self.scored) - 1:,} characters, each once)",
            flush=True,
        )


def main() -> None:
    """Train, and show how far it comes."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("text", type=Path, nargs="?", help="a text file")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--lanes", type=int, default=32)
    parser.add_argument("--chunk", type=int, default=64)
    parser.add_argument("--hidden", type=int, default=320)
    parser.add_argument("--smoke", action="store_true", help="a text made by a rule, some seconds")
    options = parser.parse_args()
    if options.smoke:
        parser.set_defaults(epochs=3, lanes=8, chunk=32, hidden=32)
        options = parser.parse_args()
    if not (options.smoke or options.text):
        parser.error("give a text file, or --smoke")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")  # hints that are not about this
    torch.set_num_threads(1)  # a model this small is slower on several
    torch.manual_seed(0)

    text = options.text.read_text("utf-8") if options.text else nursery(1_000)
    known = sorted(set(text))
    codes = np.searchsorted(known, list(text)).astype(np.uint8 if len(known) < 257 else np.int32)
    train, val = codes[: int(0.9 * len(codes))], codes[int(0.9 * len(codes)) :]
    data = SequenceDataModule(
        train=[train],  # a location just as well: SequenceDataModule(train="store/train", ...)
        val=[val],
        batching=TBPTT(options.lanes, options.chunk, continuous=True),
        eval_batching=TBPTT(lanes=1, chunk=512, continuous=True),
        shift=1,
    )
    model = ShowingLM(len(known), 128, options.hidden, dropout=0.25, cosine=True)
    model.scored, model.begun = np.zeros(len(val), dtype=np.int64), time.perf_counter()
    parameters = sum(parameter.numel() for parameter in model.parameters())
    print(f"{len(train):,} characters, {len(known)} different; {parameters:,} parameters")
    trainer = L.Trainer(
        max_epochs=options.epochs,
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
    shares = np.bincount(val) / len(val)
    shortcut = -(shares[shares > 0] * np.log(shares[shares > 0])).sum()
    nats = float(trainer.callback_metrics["val_loss"])
    print(f"validation {nats:.4f} nats per character; by their frequencies alone {shortcut:.4f}")


if __name__ == "__main__":
    main()
