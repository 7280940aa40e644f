"""A small real corpus, the documentation of this repository, and tokenizers trained on it."""

import json
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[3] / "docs" / "guides" / "data"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """A cache of its own for each test."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("SEQDATA_CACHE", str(folder))
    return folder


@pytest.fixture(scope="session")
def paragraphs():
    """Paragraphs of pages."""
    pages = [page.read_text("utf-8") for page in sorted(DOCS.glob("*.md"))[:12]]
    return [text for page in pages for text in page.split("\n\n") if text.strip()][:300]


@pytest.fixture(scope="session")
def tokenizer_file(paragraphs, tmp_path_factory):
    """A byte-level BPE in a ``tokenizer.json``, with a template, truncation and padding."""
    tokenizers = pytest.importorskip("tokenizers")
    from tokenizers import decoders, models, pre_tokenizers, processors, trainers

    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=["<|endoftext|>", "<s>"], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    tokenizer.train_from_iterator(paragraphs, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    tokenizer.enable_truncation(8)
    tokenizer.enable_padding(length=8)
    path = tmp_path_factory.mktemp("bpe") / "tokenizer.json"
    tokenizer.save(str(path))
    return path


@pytest.fixture(scope="session")
def reference(tokenizer_file):
    """The library's own ids of a text."""
    import tokenizers

    tokenizer = tokenizers.Tokenizer.from_file(str(tokenizer_file))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return lambda text: tokenizer.encode(text, add_special_tokens=False).ids


@pytest.fixture
def small_parts(monkeypatch):
    """Parts of a few hundred bytes, so that a small corpus has several."""
    monkeypatch.setattr("seqdata_text.text.PART_BYTES", 700)


@pytest.fixture
def corpus(paragraphs, tmp_path):
    """JSON lines in files whose natural order is not that of their names."""
    folder = tmp_path / "corpus"
    folder.mkdir()
    for number in range(12):
        rows = paragraphs[number * 5 : number * 5 + 5]
        lines = [json.dumps({"text": text, "n": at}) for at, text in enumerate(rows)]
        (folder / f"part.{number}.jsonl").write_text("\n".join(lines) + "\n", "utf-8")
    return folder
