import bz2
import gzip
import json
import lzma
import os
import shutil
import subprocess
import sys
import tracemalloc

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import parquet
from seqdata_text import Text, load_tokenizer, tokenize
from seqdata_text.corpus import find_corpus, split_corpus
from seqdata_text.documents import Columns, read_documents

from seqdata import TBPTT, Loader, Packed, SequenceDataModule, TokenBudget, open_store
from seqdata.backends.files import open_decompressed
from seqdata.errors import (
    ConfigError,
    CorruptShardError,
    DataError,
    DecodeError,
    SeqDataWarning,
    UnknownNameError,
)
from seqdata_testing.contract import StoreContract
from seqdata_testing.waiting import patient


def texts_of(store):
    tokenizer = load_tokenizer(store)
    return [tokenizer.decode(row["tokens"]) for row in store]


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


SEQUENCES = [
    {
        "id": f"document {number}",
        "tokens": np.frombuffer(text.encode(), np.uint8).astype(np.uint16),
        "n": np.int64(number),
        "name": f"é {number}",
    }
    for number, text in enumerate(["", "a", "né", *("word " * n for n in range(1, 30))])
]


class TestContract(StoreContract):
    sequences = SEQUENCES

    def make(self, folder, sequences):
        rows = [
            {"key": s["id"], "text": bytes(s["tokens"].astype(np.uint8)).decode(),
             "n": int(s["n"]), "name": s["name"]}
            for s in sequences
        ]  # fmt: skip
        write(folder / "x.jsonl", "\n".join(map(json.dumps, rows)))
        return open_store(folder / "x.jsonl", backend=Text("bytes", id="key", fields=["n", "name"]))


def test_documents_are_in_the_order_of_files_and_lines(
    corpus, paragraphs, tokenizer_file, reference
):
    store = open_store(corpus / "*.jsonl", backend=Text(tokenizer_file, fields=["n"]))
    assert store.fields["tokens"].dtype == "uint16"
    found = [row["tokens"].tolist() for row in store]
    assert found == [reference(text) for text in paragraphs[:60]]
    assert [int(row["n"]) for row in store] == [0, 1, 2, 3, 4] * 12
    expected = [f"part.{file}.jsonl:{line}" for file in range(12) for line in range(1, 6)]
    assert store.keys(np.arange(60)) == expected


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_bytes_do_not_depend_on_the_number_of_workers(
    corpus, tokenizer_file, tmp_path, small_parts, workers
):
    kwargs = {"tokenizer": tokenizer_file, "eos": True, "bos": "<s>"}
    first = tokenize(corpus, tmp_path / "a", num_workers=0, **kwargs)
    second = tokenize(corpus, tmp_path / "b", num_workers=workers, **kwargs)
    assert len(first.shards) > 5
    names = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert names == sorted(path.name for path in (tmp_path / "b").iterdir())
    for name in names:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    assert first.fingerprint == second.fingerprint


@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    texts=st.lists(st.text(st.characters(codec="utf-8"), max_size=60), min_size=1, max_size=30),
    part=st.integers(1, 400), eos=st.booleans(), bos=st.booleans(),
)  # fmt: skip
def test_tokens_are_those_of_the_library(
    texts, part, eos, bos, tmp_path, tokenizer_file, reference, monkeypatch
):
    monkeypatch.setattr("seqdata_text.text.PART_BYTES", part)
    lines = [json.dumps({"text": text}, ensure_ascii=False) for text in texts]
    path = write(tmp_path / "x.jsonl", "\r\n".join(lines))
    shutil.rmtree(tmp_path / "out", ignore_errors=True)
    store = tokenize(
        path, tmp_path / "out", tokenizer=tokenizer_file, eos=eos, bos=bos, num_workers=0
    )
    for text, row in zip(texts, store, strict=True):
        assert row["tokens"].tolist() == [1] * bos + reference(text) + [0] * eos


def test_a_file_is_a_document_or_each_of_its_lines(tmp_path):
    write(tmp_path / "c" / "b.txt", "\ufeffone\r\n\n two\nthree")
    write(tmp_path / "c" / "a" / "d.txt", "four\n")
    whole = open_store(tmp_path / "c", backend=Text("bytes"))
    assert whole.keys([0, 1]) == ["b.txt", "a/d.txt"]
    assert texts_of(whole) == ["one\r\n\n two\nthree", "four\n"]
    lines = open_store(tmp_path / "c", backend=Text("bytes", document="line", eos=True))
    assert lines.keys(np.arange(4)) == ["b.txt:1", "b.txt:3", "b.txt:4", "a/d.txt:1"]
    assert texts_of(lines) == ["one", " two", "three", "four"]
    assert [int(row["tokens"][-1]) for row in lines] == [256] * 4


COMPRESS = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": lambda content: pa.compress(content, codec="zstd", asbytes=True),
}


@pytest.mark.parametrize("ending", COMPRESS)
def test_compressed_files_have_the_tokens_of_plain_ones(tmp_path, monkeypatch, ending):
    monkeypatch.setattr("seqdata_text.text.PART_BYTES", 50)
    lines = [f"line {number} é" for number in range(30)]
    rows = "".join(json.dumps({"text": line, "n": at}) + "\n" for at, line in enumerate(lines))
    contents = {"a.txt": "\ufeff" + "\r\n".join(lines), "b.jsonl": rows}
    for name, content in contents.items():
        write(tmp_path / "plain" / name, content)
        write(tmp_path / "packed" / f"{name}{ending}", COMPRESS[ending](content.encode()))
    for name, options in (
        ("a.txt", {}), ("a.txt", {"document": "line", "eos": True}), ("b.jsonl", {"fields": ["n"]}),
    ):  # fmt: skip
        backend = Text("bytes", num_workers=0, **options)
        plain = open_store(tmp_path / "plain" / name, backend=backend)
        store = open_store(tmp_path / "packed" / f"{name}{ending}", backend=backend)
        assert texts_of(store) == texts_of(plain)
        assert len(store.shards) == len(plain.shards)
        keys = [key.replace(name, name + ending) for key in plain.keys(np.arange(len(plain)))]
        assert list(store.keys(np.arange(len(store)))) == keys
    assert len(store.shards) > 10


def test_a_compressed_file_is_decompressed_once_for_all_its_parts(tmp_path, monkeypatch):
    monkeypatch.setattr("seqdata_text.text.PART_BYTES", 50)
    opened = []

    def count(path):
        opened.append(path)
        return open_decompressed(path)

    monkeypatch.setattr("seqdata_text.documents.open_decompressed", count)
    path = write(tmp_path / "a.txt.gz", gzip.compress(b"some words\n" * 100))
    store = open_store(path, backend=Text("bytes", document="line", num_workers=0))
    assert len(store.shards) == 20
    assert len(opened) == 1


def test_memory_does_not_grow_with_a_compressed_file(tmp_path):
    path = write(tmp_path / "a.txt.gz", gzip.compress(b"words of a line\n" * (1 << 20)))
    corpus = find_corpus(str(path), None)
    tracemalloc.start()
    parts, _ = split_corpus(corpus, "line", "text", 1 << 18)
    columns = Columns(document="line")
    sizes = [len(text.text) for text in read_documents(corpus.root, "text", parts[-1], columns)]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(parts) == 64
    assert sum(size + 1 for size in sizes) == sum(piece.size for piece in parts[-1])
    assert peak < 8 << 20  # the text has 16 MiB


def test_messages_about_compressed_files(tmp_path):
    write(tmp_path / "cut.jsonl.gz", gzip.compress(b'{"text": "a"}\n')[:-4])
    with pytest.raises(
        DecodeError, match=r"cut\.jsonl\.gz': must be a whole \.gz file, but is not"
    ):
        open_store(tmp_path / "cut.jsonl.gz", backend=Text("bytes"))
    write(tmp_path / "bare.jsonl", gzip.compress(b'{"text": "a"}\n'))
    with pytest.raises(DecodeError, match=r"begins like a file compressed as \.gz\. Name it 'bare"):
        open_store(tmp_path / "bare.jsonl", backend=Text("bytes"))
    for name in ("a.jsonl.lz4", "lz4/a.jsonl.lz4"):
        write(tmp_path / name, b"any")
        where = tmp_path / "lz4" if "/" in name else tmp_path / name
        message = r"but 'a\.jsonl\.lz4' is compressed as \.lz4\. Decompress it"
        with pytest.raises(ConfigError, match=rf"as \.gz, \.bz2, \.xz or \.zst, {message}"):
            open_store(where, backend=Text("bytes"))
    write(tmp_path / "a.parquet.gz", b"any")
    with pytest.raises(
        ConfigError, match=r"not compressed as a whole, but 'a\.parquet\.gz' is\. De"
    ):
        open_store(tmp_path / "a.parquet.gz", backend=Text("bytes"))
    for name in ("a.txt", "a.txt.gz"):
        write(tmp_path / "twice" / name, b"any")
    with pytest.raises(
        ConfigError, match=r"must have each file once, but has 'a\.txt' and 'a\.txt\."
    ):
        open_store(tmp_path / "twice", backend=Text("bytes"))


def test_lines_are_numbered_through_parts(tmp_path, monkeypatch):
    monkeypatch.setattr("seqdata_text.text.PART_BYTES", 7)
    path = write(tmp_path / "a.txt", "one\n\ntwo\nthree three\nfour\n\n")
    store = open_store(path, backend=Text("bytes", document="line", num_workers=0))
    assert store.keys(np.arange(4)) == ["a.txt:1", "a.txt:3", "a.txt:4", "a.txt:5"]
    assert len(store.shards) > 1


@pytest.mark.parametrize("kind", ["parquet", "arrow", "stream", "large", "dictionary"])
def test_tables_with_a_column_of_text(tmp_path, kind, monkeypatch):
    monkeypatch.setattr("seqdata_text.text.PART_BYTES", 60)
    texts = [f"row {number} é" for number in range(40)]
    types = {"large": pa.large_string(), "dictionary": pa.dictionary(pa.int32(), pa.string())}
    column = pa.array(texts).cast(types.get(kind, pa.string()))
    keys = list(range(100, 140))
    table = pa.table({"n": keys, "body": column})
    path = tmp_path / ("x.parquet" if kind == "parquet" else "x.arrow")
    if kind == "parquet":
        parquet.write_table(table, path, row_group_size=7)
    else:
        new = pa.ipc.new_stream if kind == "stream" else pa.ipc.new_file
        with new(path, table.schema) as writer:
            writer.write_table(table, max_chunksize=7)
    backend = Text("bytes", text="body", fields=["n"], num_workers=0)
    store = open_store(path, backend=backend)
    assert texts_of(store) == texts
    assert [int(row["n"]) for row in store] == keys
    assert store.keys([0, 39]) == [f"{path.name}:0", f"{path.name}:39"]
    assert len(store.shards) == (6 if kind != "dictionary" else len(store.shards))
    named = open_store(path, backend=Text("bytes", text="body", id="n", num_workers=0))
    assert named.keys([0, 39]) == ["100", "139"]


def test_saved_data_sets_of_hugging_face(tmp_path):
    datasets = pytest.importorskip("datasets")
    rows = {"text": [f"document {number}" for number in range(25)]}
    whole = datasets.Dataset.from_dict(rows)
    whole.save_to_disk(tmp_path / "one", num_shards=3)
    assert texts_of(open_store(tmp_path / "one", backend=Text("bytes"))) == rows["text"]
    both = datasets.DatasetDict(train=whole, test=whole.select(range(3)))
    both.save_to_disk(tmp_path / "both")
    with pytest.raises(ConfigError, match=r"DatasetDict with the splits train, test"):
        open_store(tmp_path / "both", backend=Text("bytes"))
    train = open_store(tmp_path / "both", split="train", backend=Text("bytes"))
    assert texts_of(train) == rows["text"]
    test = open_store(tmp_path / "both" / "test", backend=Text("bytes"))
    assert texts_of(test) == rows["text"][:3]


def test_a_missing_file_of_a_saved_data_set_is_an_error(tmp_path):
    names = [f"data-0000{number}-of-00002.arrow" for number in range(2)]
    table = pa.table({"text": ["a"]})
    for name in names:
        with pa.ipc.new_stream(tmp_path / name, table.schema) as writer:
            writer.write_table(table)
    state = {"_data_files": [{"filename": name} for name in names]}
    write(tmp_path / "state.json", json.dumps(state))
    assert texts_of(open_store(tmp_path, backend=Text("bytes"))) == ["a", "a"]
    (tmp_path / names[0]).unlink()
    with pytest.raises(DataError, match=r"since 'state.json' names it"):
        open_store(tmp_path, backend=Text("bytes"))


def test_later_openings_find_the_tokens(corpus, tokenizer_file, monkeypatch):
    backend = Text(tokenizer_file, eos=True)
    first = open_store(corpus, backend=backend)
    (folder,) = (path for path in (corpus / "seqdata-index").iterdir() if path.is_dir())
    monkeypatch.setattr("seqdata_text.text.split_corpus", None)  # nothing is read
    assert open_store(corpus, backend=backend).fingerprint == first.fingerprint
    assert open_store(folder).fingerprint == first.fingerprint


def test_a_touched_corpus_is_compared_and_not_tokenized_again(corpus, monkeypatch):
    first = open_store(corpus, backend=Text("bytes"))
    os.utime(corpus / "part.3.jsonl", (1, 1))
    with monkeypatch.context() as patch:
        patch.setattr("seqdata_text.text.write_store", None)
        assert open_store(corpus, backend=Text("bytes")).fingerprint == first.fingerprint
    monkeypatch.setattr("seqdata_text.text.split_corpus", None)
    open_store(corpus, backend=Text("bytes"))


def test_a_changed_corpus_is_tokenized_again_with_a_warning(corpus):
    before = open_store(corpus, backend=Text("bytes"))
    write(corpus / "part.3.jsonl", '{"text": "other"}\n')
    (corpus / "part.4.jsonl").unlink()
    write(corpus / "part.20.jsonl", '{"text": "new"}\n')
    with pytest.warns(SeqDataWarning, match=r"tokenized again: 1 file of the corpus changed, 1 f"
                      r"ile of the corpus new, 1 file of the corpus removed"):  # fmt: skip
        after = open_store(corpus, backend=Text("bytes"))
    assert after.fingerprint != before.fingerprint
    assert texts_of(after)[15] == "other"
    assert texts_of(after)[-1] == "new"


def test_a_changed_tokenizer_tokenizes_again_with_a_warning(corpus, tokenizer_file, tmp_path):
    own = tmp_path / "own.json"
    shutil.copy(tokenizer_file, own)
    before = open_store(corpus, backend=Text(own))
    parsed = json.loads(own.read_text("utf-8"))
    parsed["model"]["merges"] = parsed["model"]["merges"][:20]
    own.write_text(json.dumps(parsed), "utf-8")
    with pytest.warns(SeqDataWarning, match=r"tokenized again: the tokenizer changed \("):
        after = open_store(corpus, backend=Text(own))
    assert after.lengths.sum() > before.lengths.sum()
    assert texts_of(after) == texts_of(open_store(corpus, backend=Text(tokenizer_file)))
    folders = [path for path in (corpus / "seqdata-index").iterdir() if path.is_dir()]
    assert all(len(list(folder.glob("tokenizer-*"))) == 1 for folder in folders)


def test_other_tokens_in_a_folder_are_refused(corpus, tokenizer_file, tmp_path):
    out = tmp_path / "out"
    store = tokenize(corpus, out, tokenizer="bytes")
    assert tokenize(corpus, out, tokenizer="bytes").fingerprint == store.fingerprint
    message = (
        r"but has other tokens: the tokenizer changed \(bytes [0-9a-f]{8}, now .*\), `eos` was Fal"
        r"se, now True\. Choose another folder, or pass `overwrite=True`"
    )
    with pytest.raises(ConfigError, match=message):
        tokenize(corpus, out, tokenizer=tokenizer_file, eos=True)
    write(corpus / "part.0.jsonl", '{"text": "other"}\n')
    with pytest.raises(
        ConfigError, match=r"has other tokens: 1 file of the corpus changed\. Choose"
    ):
        tokenize(corpus, out, tokenizer="bytes")
    new = tokenize(corpus, out, tokenizer="bytes", overwrite=True)
    assert texts_of(new)[0] == "other"
    (out / "seqdata-text.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"they have no record of their corpus"):
        tokenize(corpus, out, tokenizer="bytes")


def test_a_corpus_that_changes_while_it_is_tokenized(corpus, tmp_path, small_parts):
    def change(sequences, size):
        write(corpus / "part.0.jsonl", '{"text": "other"}\n')

    with pytest.raises(DataError, match=r"must not change while it is tokenized, but files did"):
        tokenize(corpus, tmp_path / "out", tokenizer="bytes", num_workers=0, progress=change)
    assert not (tmp_path / "out" / "seqdata.json").exists()
    store = tokenize(corpus, tmp_path / "out", tokenizer="bytes", num_workers=0)
    assert texts_of(store)[0] == "other"


def test_tokens_lie_in_the_cache_where_a_corpus_cannot_be_written(corpus, cache, monkeypatch):
    monkeypatch.setattr("seqdata_text.text.os.access", lambda path, mode: False)
    first = open_store(corpus, backend=Text("bytes"))
    assert not (corpus / "seqdata-index").exists()
    (folder,) = (path for path in (cache / "text").iterdir() if path.is_dir())
    monkeypatch.undo()
    monkeypatch.setenv("SEQDATA_CACHE", str(cache))
    assert open_store(corpus, backend=Text("bytes")).folder == folder
    own = Text("bytes", cache_dir=cache / "own")
    assert open_store(corpus, backend=own).fingerprint == first.fingerprint
    assert (cache / "own").is_dir()


OPEN = """
import sys
from seqdata import open_store
from seqdata_text import Text

print(open_store(sys.argv[1], backend=Text("bytes", num_workers=0)).fingerprint)
"""


@pytest.mark.slow
def test_several_programs_open_a_corpus_at_once(corpus):
    command = [sys.executable, "-c", OPEN, str(corpus)]
    programs = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    found = {program.communicate(timeout=patient(60))[0].strip() for program in programs}
    assert found == {open_store(corpus, backend=Text("bytes")).fingerprint}


@pytest.mark.parametrize(
    "policy",
    [TBPTT(lanes=4, chunk=16), Packed(rows=2, row_length=256, too_long="split"),
     TokenBudget(2048, too_long="split")],
    ids=["tbptt", "packed", "budget"],
)  # fmt: skip
def test_each_token_is_delivered_once(corpus, tokenizer_file, policy):
    store = open_store(corpus, backend=Text(tokenizer_file, eos=True))
    counts = np.zeros(600, np.int64)
    for batch in Loader(store, policy, num_workers=0):
        valid = batch["tokens"][batch.mask] if hasattr(batch, "mask") else batch["tokens"]
        counts += np.bincount(np.asarray(valid).astype(np.int64).reshape(-1), minlength=600)
    expected = sum(np.bincount(row["tokens"], minlength=600) for row in store)
    assert counts.tolist() == expected.tolist()


def test_a_datamodule_of_a_corpus(corpus, tokenizer_file):
    backend = Text(str(tokenizer_file), eos=True)
    data = SequenceDataModule(
        train=open_store(corpus, backend=backend), batching=TBPTT(lanes=4, chunk=16), shift=1
    )
    data.setup("fit")
    batch = next(iter(data.train_dataloader()))
    assert batch["tokens"].shape == batch["targets"].shape == (4, 16)
    assert backend.vocab_size == 600
    assert backend.eos_id == 0
    assert backend.bos_id is None
    assert backend.decode([0, 1]) == ""


def test_a_list_of_corpora_is_one_store(corpus, tmp_path):
    write(tmp_path / "b.txt", "two")
    store = open_store([corpus, tmp_path / "b.txt"], backend=Text("bytes"))
    assert texts_of(open_store(tmp_path / "b.txt", backend=Text("bytes"))) == ["two"]
    assert len(store) == 61


@pytest.mark.parametrize(
    ("content", "options", "error", "message"),
    [
        ('{"text": "a"}\n[1]\n', {}, DecodeError,
         r"x\.jsonl\"?\): line 2 must be a JSON object, but is a list\. Write one object per"),
        ('{"text": "a"}\n\n{"text": \n', {}, DecodeError, r"line 3 must be a JSON object, but is n"
         r"ot valid JSON \(Expecting value"),
        ('{"text": "a"}\n{"body": "b"}\n', {}, UnknownNameError, r"line 2: no column 'text'"),
        ('{"text": 5}\n', {}, DecodeError, r"line 1 must have a string in 'text', but has an int"),
        ('{"text": "\\ud800"}\n', {}, DecodeError, r"line 1 must have valid text in 'text', but ha"
         r"s half of a surrogate pair \(\\ud800\)"),
        ('{"text": "a", "k": null}\n', {"id": "k"}, DecodeError,
         r"line 1 must have a string or an integer in 'k', but has null"),
        ('{"text": "a", "k": []}\n', {"fields": ["k"]}, DecodeError,
         r"line 1 must have a string or a number in 'k', but has a list"),
        (b'{"text": "\xe9"}\n', {}, DecodeError,
         r"must be UTF-8 text, but line 1, byte 10, is not valid\. Convert it.*ISO-8859-1"),
        ('{"text": "a", "k": 1}\n{"text": "b", "k": 1}\n', {"id": "k"}, DecodeError, r"'1'"),
    ],
)  # fmt: skip
def test_messages_about_lines(tmp_path, content, options, error, message):
    path = write(tmp_path / "x.jsonl", content)
    with pytest.raises(error, match=message):
        open_store(path, backend=Text("bytes", **options))


def test_messages_about_plain_text(tmp_path):
    write(tmp_path / "x.txt", "a\nb".encode("utf-16"))
    with pytest.raises(DecodeError, match=r"UTF-8 text, but byte 0 is not valid\. .*-f UTF-16"):
        open_store(tmp_path / "x.txt", backend=Text("bytes"))


def test_messages_about_tables(tmp_path):
    parquet.write_table(pa.table({"text": ["a", None]}), tmp_path / "null.parquet")
    with pytest.raises(DecodeError, match=r"must have a string in every row, but row 1 has none"):
        open_store(tmp_path / "null.parquet", backend=Text("bytes"))
    parquet.write_table(pa.table({"text": [1]}), tmp_path / "number.parquet")
    with pytest.raises(
        DecodeError, match=r"must be a column of strings, but is int64\. Pass the name"
    ):
        open_store(tmp_path / "number.parquet", backend=Text("bytes"))
    with pytest.raises(UnknownNameError, match=r"columns: no column 'body'"):
        open_store(tmp_path / "number.parquet", backend=Text("bytes", text="body"))
    write(tmp_path / "broken.parquet", b"PAR1 and no more")
    with pytest.raises(CorruptShardError, match=r"must be a whole Parquet file, but is not \("):
        open_store(tmp_path / "broken.parquet", backend=Text("bytes"))


def test_messages_about_files(tmp_path):
    with pytest.raises(ConfigError, match=r"must hold at least one file that ends with \.txt, "):
        open_store(tmp_path, backend=Text("bytes"))
    write(tmp_path / "a.md", "# text")
    with pytest.raises(
        ConfigError, match=r"must have one of the suffixes .*but has \.md\. Pass `format`"
    ):
        open_store(tmp_path / "a.md", backend=Text("bytes"))
    store = open_store(tmp_path / "a.md", backend=Text("bytes", format="text"))
    assert texts_of(store) == ["# text"]
    write(tmp_path / "b.txt", "x")
    write(tmp_path / "c.jsonl", "{}")
    with pytest.raises(
        ConfigError, match=r"must be of one kind, but is jsonl \('c\.jsonl'\), text"
    ):
        open_store(tmp_path, backend=Text("bytes"))
    with pytest.raises(ConfigError, match=r"`remote` must be left out for a local path"):
        open_store(tmp_path / "b.txt", backend=Text("bytes"), remote="cache")
    with pytest.raises(ConfigError, match=r"`location` must be a folder on this machine, but is a"):
        tokenize(tmp_path / "b.txt", "s3://bucket/x", tokenizer="bytes")
    write(tmp_path / "empty.txt", "")
    with pytest.raises(ConfigError, match=r"must have at least one document, but is empty"):
        open_store(tmp_path / "empty.txt", backend=Text("bytes", document="line"))
    for split in ("train", "test"):
        write(tmp_path / "splits" / f"{split}-0.txt", "x")
    with pytest.raises(ConfigError, match=r"must hold the files of one split"):
        open_store(tmp_path / "splits", backend=Text("bytes"))


def test_what_is_left_out_is_said(tmp_path):
    for name in ("a.jsonl", ".b.jsonl", "c.py", "README.md"):
        write(tmp_path / name, '{"text": "a"}')
    with pytest.warns(SeqDataWarning, match=r"other suffixes \(1 \.py\), 1 hidden file \('\.b\.j"):
        store = open_store(tmp_path, backend=Text("bytes"))
    assert texts_of(store) == ["a"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"document": "page"}, r"Text: `document` must be one of 'file', 'line', but is 'page'"),
        ({"format": "csv"}, r"Text: `format` must be one of None, 'text', 'jsonl'"),
        ({"num_workers": -1}, r"Text: `num_workers` must be an integer of at least 0, or None"),
        ({"fields": "lang"}, r"Text: `fields` must be a list of columns, but is 'lang'"),
    ],
)
def test_invalid_options(options, message):
    with pytest.raises(ConfigError, match=message):
        Text("bytes", **options)


def test_a_tokenizer_must_be_given(corpus):
    with pytest.raises(ConfigError, match=r"`tokenizer` must be given\. Pass `backend=Text\("):
        open_store(corpus, backend=Text())


def test_fields_of_plain_text_are_refused(tmp_path):
    path = write(tmp_path / "a.txt", "x")
    with pytest.raises(ConfigError, match=r"`fields` must be empty for plain text.*is \['n'\]"):
        tokenize(path, tmp_path / "out", tokenizer="bytes", fields=["n"])


def test_tokens_are_written_to_a_file_url(tmp_path):
    path = write(tmp_path / "a.txt", "x")
    store = tokenize(path, f"file://{tmp_path}/a%20b", tokenizer="bytes", progress=False)
    assert store.folder == tmp_path / "a b"


def test_an_empty_folder_with_a_format_is_refused(tmp_path):
    (tmp_path / "c").mkdir()
    with pytest.raises(ConfigError, match=r"must hold at least one file, but holds none\. Check"):
        open_store(tmp_path / "c", backend=Text("bytes", format="text"))
