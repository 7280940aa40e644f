"""Train a small LSTM language model on a corpus of JSON lines: tokenizer, tokens, model, sample."""

import json
import logging
import sys
import tempfile
import warnings
from pathlib import Path

import lightning as L
import torch
from seqdata_text import Text, load_tokenizer
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

import seqdata
from seqdata import TBPTT, LaneStates, SequenceDataModule, open_store

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.filterwarnings("ignore", module="lightning")  # a hint that is not about this
torch.set_num_threads(1)  # a model this small is slower on several
files, vocabulary, epochs = (6, 300, 1) if "--smoke" in sys.argv else (60, 2_000, 4)


def write_corpus(folder: Path) -> list[str]:
    """Write the docstrings and code of this library as JSON lines, a document per module."""
    modules = sorted(Path(seqdata.__file__).parent.rglob("*.py"))[:files]
    texts = [module.read_text("utf-8") for module in modules]
    for number, text in enumerate(texts):
        line = json.dumps({"text": text, "name": modules[number].name})
        (folder / f"part.{number}.jsonl").write_text(line + "\n", "utf-8")
    return texts


def train_tokenizer(texts: list[str], path: Path) -> None:
    """Train a byte-level BPE, and save it."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=["<|endoftext|>"], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.save(str(path))


class LanguageModel(L.LightningModule):
    """An LSTM whose state is carried along each document."""

    def __init__(self, tokens: int):
        super().__init__()
        self.embedding = torch.nn.Embedding(tokens, 64)
        self.lstm = torch.nn.LSTM(64, 128, batch_first=True)
        self.head = torch.nn.Linear(128, tokens)
        self.lanes = LaneStates()

    def training_step(self, batch):
        """Return the loss of a chunk of each lane."""
        state = self.lanes.take(batch)
        embedded = self.embedding(batch["tokens"].long())
        out, state = self.lanes.run(self.lstm, batch, embedded, state)
        self.lanes.put(batch, state)
        targets = batch["targets"].long()
        nll = torch.nn.functional.cross_entropy(
            self.head(out).flatten(0, 1), targets.flatten(), reduction="none"
        )
        loss = (nll.view_as(batch.score) * batch.score).sum() * batch.loss_scale
        self.log("loss", loss, batch_size=1)
        return loss

    def configure_optimizers(self):
        """Return the optimizer."""
        return torch.optim.Adam(self.parameters(), 0.003)


torch.manual_seed(0)
with tempfile.TemporaryDirectory() as name:
    folder = Path(name, "corpus")
    folder.mkdir()
    train_tokenizer(write_corpus(folder), Path(name, "tok.json"))
    store = open_store(folder, backend=Text(Path(name, "tok.json"), eos=True, fields=["name"]))
    tokenizer = load_tokenizer(store)
    print(f"{len(store)} documents, {int(store.lengths.sum()):,} tokens")
    data = SequenceDataModule(train=store, batching=TBPTT(lanes=8, chunk=64), shift=1)
    model = LanguageModel(tokenizer.vocab_size)
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = L.Trainer(max_epochs=epochs, devices=1, enable_checkpointing=False, **quiet)
    trainer.fit(model, data)
    print(f"loss {trainer.callback_metrics['loss']:.3f}")
    first = store[0]["tokens"][:8]
    print(repr(tokenizer.decode(first)))
