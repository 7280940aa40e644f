"""Token files: what Megatron and nanoGPT write opens by path, and what is damaged is refused."""

import re
import struct
from pathlib import Path

import fsspec
import lightning as L
import numpy as np
import pytest
import torch
from click.testing import CliRunner
from seqdata_tokens import Tokens

from seqdata import TBPTT, Loader, Packed, SequenceDataModule, open_store
from seqdata.backends import FormatBackend
from seqdata.cli.app import app
from seqdata.errors import (
    ConfigError,
    DataError,
    FingerprintMismatch,
    SeqDataError,
    SeqDataWarning,
)
from seqdata_testing.contract import StoreContract
from seqdata_testing.stores import check_store

CODES = {"uint8": 1, "int8": 2, "int16": 3, "int32": 4, "int64": 5, "uint16": 8}


def documents(count=20, dtype="uint16"):
    random = np.random.default_rng(1)
    lengths = random.integers(0, 40, count)
    return [{"tokens": random.integers(0, 100, length).astype(dtype)} for length in lengths]


def write_megatron(path: Path, rows, *, parts=1) -> Path:
    """Write both files as Megatron's builder does; each document in so many parts."""
    path.parent.mkdir(parents=True, exist_ok=True)
    values = [row["tokens"] for row in rows]
    sizes = [len(part) for value in values for part in np.array_split(value, parts)]
    dtype = values[0].dtype
    begins = np.concatenate(([0], np.cumsum(sizes)[:-1])) * dtype.itemsize
    path.write_bytes(np.concatenate(values).tobytes())
    head = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, CODES[dtype.name], len(sizes), len(rows) + 1)
    firsts = np.arange(len(rows) + 1) * parts
    arrays = np.int32(sizes), begins.astype(np.int64), firsts.astype(np.int64)
    path.with_suffix(".idx").write_bytes(head + b"".join(array.tobytes() for array in arrays))
    return path


def write_empty(path: Path, *, count=0) -> Path:
    """Write both files of Megatron with so many documents, but without a sequence."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"")
    head = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, CODES["uint16"], 0, count + 1)
    path.with_suffix(".idx").write_bytes(head + bytes(8 * (count + 1)))
    return path


class TestContract(StoreContract):
    sequences = tuple(documents(12))
    methods = ("fork",)

    def make(self, folder, sequences):
        return open_store(write_megatron(folder / "x.bin", sequences), backend=Tokens())


@pytest.mark.parametrize("dtype", sorted(CODES))
@pytest.mark.parametrize("parts", [1, 3])
def test_each_document_is_a_sequence(tmp_path, dtype, parts):
    rows = documents(dtype=dtype)
    store = open_store(write_megatron(tmp_path / "x.bin", rows, parts=parts), backend=Tokens())
    assert store.fields["tokens"].dtype == dtype
    check_store(store, rows)


@pytest.mark.parametrize("dtype", ["uint16", "int32"])
def test_a_file_without_an_index_is_one_sequence(tmp_path, dtype):
    tokens = np.arange(1_000).astype(dtype)
    tokens.tofile(tmp_path / "train.bin")
    backend = Tokens() if dtype == "uint16" else Tokens(dtype=dtype)
    store = open_store(tmp_path / "train.bin", backend=backend)
    assert len(store) == 1
    assert store[0]["tokens"].tolist() == tokens.tolist()


@pytest.mark.parametrize("ending", [".idx", ".IDX"])
def test_a_name_in_capital_letters_has_its_index_too(tmp_path, ending):
    rows = documents(5)
    written = write_megatron(tmp_path / "x.bin", rows)
    written.with_suffix(".idx").rename(tmp_path / f"X{ending}")
    check_store(open_store(written.rename(tmp_path / "X.BIN"), backend=Tokens()), rows)


def test_a_file_of_megatron_that_has_lost_its_index_is_refused(tmp_path):
    path = write_megatron(tmp_path / "corpus_text_document.bin", documents(5))
    path.with_suffix(".idx").unlink()
    with pytest.raises(SeqDataError, match=r"must have 'corpus_text_document.idx', .* missing"):
        open_store(path, backend=Tokens())


@pytest.mark.parametrize(("empty", "good"), [("a.bin", "b.bin"), ("b.bin", "a.bin")])
def test_a_file_of_megatron_without_sequences_opens_with_others(tmp_path, empty, good):
    rows = documents(5)
    write_empty(tmp_path / empty)
    write_megatron(tmp_path / good, rows)
    store = open_store(tmp_path, backend=Tokens())
    check_store(store, rows)
    assert list(store.keys(range(5))) == [f"{good}/{number}" for number in range(5)]


def test_a_file_of_megatron_without_sequences_alone_is_refused(tmp_path):
    path = write_empty(tmp_path / "x.bin")
    for location in (path, tmp_path):
        with pytest.raises(DataError, match="must hold at least one sequence, but holds none"):
            open_store(location, backend=Tokens())


def test_documents_without_tokens_are_sequences_of_length_0(tmp_path):
    store = open_store(write_empty(tmp_path / "x.bin", count=3), backend=Tokens())
    assert store.lengths.tolist() == [0, 0, 0]


def test_lanes_and_packed_rows_read_every_token_once(tmp_path):
    rows = documents()
    store = open_store(write_megatron(tmp_path / "x.bin", rows), backend=Tokens())
    everything = sorted(np.concatenate([row["tokens"] for row in rows]).tolist())
    for policy in (TBPTT(lanes=3, chunk=8), Packed(rows=2, row_length=64)):
        found = [batch["tokens"][batch.mask].tolist() for batch in Loader(store, policy)]
        assert sorted(value for batch in found for value in batch) == everything


def test_a_step_is_trained_by_path(tmp_path):
    class Model(L.LightningModule):
        def __init__(self):
            super().__init__()
            self.table = torch.nn.Embedding(100, 4)

        def training_step(self, batch, _):
            return (self.table(batch["tokens"].long()).sum(-1) * batch.score).sum()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.1)

    path = write_megatron(tmp_path / "x.bin", documents())
    data = SequenceDataModule(
        train=open_store(path, backend=Tokens()), batching=TBPTT(lanes=2, chunk=8)
    )
    trainer = L.Trainer(
        max_steps=1, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(Model(), data)
    assert trainer.global_step == 1


def test_the_entry_points_name_the_suffix_and_the_backend():
    """What an installed wheel offers: ``open_store("x.bin")`` finds it without importing."""
    text = (Path(__file__).parents[1] / "pyproject.toml").read_text("utf-8")
    assert '".bin" = "tokens"' in text
    assert 'tokens = "seqdata_tokens"' in text


def cut_index(path):
    index = path.with_suffix(".idx")
    index.write_bytes(index.read_bytes()[:-8])


def other_magic(path):
    index = path.with_suffix(".idx")
    index.write_bytes(b"X" + index.read_bytes()[1:])


def with_modes(path):
    index = path.with_suffix(".idx")
    index.write_bytes(index.read_bytes() + bytes(20))


def tiny_index(path):
    path.with_suffix(".idx").write_bytes(b"MMIDIDX")


def cut_tokens(path):
    path.write_bytes(path.read_bytes()[:-2])


def patch_index(path, at, value):
    index = path.with_suffix(".idx")
    content = bytearray(index.read_bytes())
    content[at : at + len(value)] = value
    index.write_bytes(content)


def no_documents(path):
    write_empty(path, count=-1)


def moved_sequence(path):
    patch_index(path, 34 + 4 * 20 + 8, struct.pack("<q", 1_000_000))


def documents_out_of_order(path):
    patch_index(path, 34 + 12 * 20 + 8, struct.pack("<q", 19))


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (cut_index, r"its .idx must have 442 bytes for 20 sequences and 21 documents, but has \d+"),
        (other_magic, r"its .idx is not an index of Megatron \(MMIDIDX, version 1\)"),
        (with_modes, r"its .idx has modes \(multimodal data\), but must describe tokens only"),
        (no_documents, "its .idx must have at least one entry of documents, but has none"),
        (tiny_index, "its .idx has 7 bytes, but must have at least 34"),
        (cut_tokens, r"has \d+ bytes, but its .idx says \d+"),
        (moved_sequence, "its .idx has sequences that are not contiguous"),
        (documents_out_of_order, "its .idx has documents that do not cover its sequences in order"),
    ],
)
def test_files_that_do_not_fit_are_refused_by_name(tmp_path, harm, message):
    path = write_megatron(tmp_path / "x.bin", documents())
    harm(path)
    with pytest.raises(SeqDataError, match=message) as raised:
        open_store(path, backend=Tokens())
    assert "x.bin" in str(raised.value)


def test_an_index_that_is_added_removed_or_changed_is_noticed(tmp_path):
    path = tmp_path / "x.bin"
    np.arange(4_000, dtype="<u2").tofile(path)
    assert open_store(path, backend=Tokens()).lengths.tolist() == [4_000]
    pairs = np.arange(4_000, dtype="uint16").reshape(-1, 2)
    write_megatron(path, [{"tokens": pair} for pair in pairs])
    assert len(open_store(path, backend=Tokens())) == 2_000
    index = path.with_suffix(".idx")
    content = index.read_bytes()
    first = 34 + 12 * 2_000
    patch_index(path, first + 8 * 1_000, struct.pack("<q", 999))  # neither size nor ends change
    lengths = open_store(path, backend=Tokens()).lengths
    assert lengths[998:1001].tolist() == [2, 0, 4]
    index.write_bytes(content)
    assert open_store(path, backend=Tokens()).lengths[998:1001].tolist() == [2, 2, 2]
    index.unlink()
    with pytest.raises(FingerprintMismatch, match=r"x\.idx.*existed when 'x\.bin' was indexed"):
        open_store(path, backend=Tokens())
    FormatBackend(Tokens()).build_index(str(path), rebuild=True)
    assert open_store(path, backend=Tokens()).lengths.tolist() == [4_000]


def test_a_plain_file_of_another_width_is_refused(tmp_path):
    (tmp_path / "odd.bin").write_bytes(b"abc")
    with pytest.raises(
        SeqDataError, match=r"has 3 bytes, but must have a multiple of 2, the size of a uint16"
    ):
        open_store(tmp_path / "odd.bin", backend=Tokens())


def test_the_remedy_for_another_width_is_the_same_in_python_and_on_the_command_line(tmp_path):
    path = tmp_path / "odd.bin"
    path.write_bytes(b"abc")
    remedy = "Open it in Python, with open_store(path, backend=Tokens(dtype=...))"
    with pytest.raises(SeqDataError, match=re.escape(remedy)):
        open_store(path, backend=Tokens())
    result = CliRunner().invoke(app, ["stats", str(path)])
    assert result.exit_code == 1
    assert remedy in result.output
    assert "--backend" not in result.output


def test_a_changed_token_is_found_when_it_is_read(tmp_path):
    path = write_megatron(tmp_path / "x.bin", documents(200))
    open_store(path, backend=Tokens())
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1  # its first and last bytes say that it is the same file
    path.write_bytes(content)
    store = open_store(path, backend=Tokens())
    with pytest.raises(SeqDataError, match=r"x\.bin"):
        [row["tokens"] for row in store]


def test_the_byte_order_of_a_plain_file_is_the_one_that_is_said(tmp_path):
    tokens = np.array([1, 2, 300])
    for dtype in (">u2", "<u2", "uint16", ">i4"):
        tokens.astype(dtype if dtype != "uint16" else "<u2").tofile(tmp_path / "x.bin")
        store = open_store(tmp_path / "x.bin", backend=Tokens(dtype=dtype))
        assert store[0]["tokens"].tolist() == [1, 2, 300]


@pytest.mark.parametrize(
    "dtype",
    [
        "spam",
        "object",
        "U4",
        "datetime64[s]",
        "bool",
        "complex64",
        "f16",
        "float128",
        "(2,i4",
    ],
)
def test_another_dtype_than_of_numbers_of_at_most_8_bytes_is_refused(dtype):
    text = (
        "tokens: `dtype` must be a NumPy dtype of integers or floats of at most 8 bytes, but is "
        f"{dtype!r}. Pass the dtype that its tokens were written with, such as 'uint16'."
    )
    with pytest.raises(ConfigError, match=re.escape(text)):
        Tokens(dtype=dtype)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "uint64", ">i8", "longlong"])
def test_every_other_dtype_of_numbers_is_read(tmp_path, dtype):
    np.array([1, 2, 3]).astype(dtype).tofile(tmp_path / "x.bin")
    store = open_store(tmp_path / "x.bin", backend=Tokens(dtype=dtype))
    assert store[0]["tokens"].tolist() == [1, 2, 3]


LLMC = {"gpt-2": (20240520, 1, "<u2"), "llama-3": (20240801, 7, "<u4")}


def write_llmc(path, tokens, magic, version, count=None):
    header = np.zeros(256, "<i4")
    header[:3] = magic, version, len(tokens) if count is None else count
    path.write_bytes(header.tobytes() + tokens.tobytes())


@pytest.mark.parametrize("name", LLMC)
@pytest.mark.parametrize("count", [0, 1, 1_000])
def test_the_header_of_llmc_says_what_follows_it(tmp_path, name, count):
    magic, version, dtype = LLMC[name]
    tokens = np.arange(60_000, 60_000 + count).astype(dtype)
    write_llmc(tmp_path / "train.bin", tokens, magic, version)
    store = open_store(tmp_path / "train.bin", backend=Tokens())
    assert store.fields["tokens"].dtype == tokens.dtype.name
    check_store(store, [{"tokens": tokens}])


@pytest.mark.parametrize(
    ("version", "count", "harm", "message"),
    [
        (
            1,
            None,
            -2,
            r"has 1222 bytes, but must have 1224, since its llm.c header declares 100 tokens",
        ),
        (
            1,
            90,
            0,
            r"must have 1204, since its llm.c header declares 90 tokens of uint16. It",
        ),
        (1, -1, 0, r"declares -1 tokens"),
        (
            2,
            None,
            0,
            r"its llm.c header \(magic 20240520\) is of version 2, but only version 1 can be read",
        ),
        (1, None, 20 - 1224, r"has 20 bytes, but must have 1224"),
    ],
)
def test_a_file_that_is_not_as_its_header_of_llmc_says_is_refused(
    tmp_path, version, count, harm, message
):
    path = tmp_path / "x.bin"
    write_llmc(path, np.arange(100, dtype="<u2"), 20240520, version, count)
    path.write_bytes(path.read_bytes()[: 1224 + harm])
    with pytest.raises(SeqDataError, match=message):
        open_store(path, backend=Tokens())


def test_an_index_of_a_time_when_the_header_counted_as_tokens_is_built_again(tmp_path, monkeypatch):
    path = tmp_path / "x.bin"
    write_llmc(path, np.arange(100, dtype="<u2"), 20240520, 1)
    with monkeypatch.context() as patched:
        patched.setattr(Tokens, "version", 1)
        patched.setattr("seqdata_tokens._LLMC_MAGICS", ())
        assert open_store(path, backend=Tokens()).lengths.tolist() == [612]
    with pytest.warns(SeqDataWarning, match="they are built again, once"):
        assert open_store(path, backend=Tokens()).lengths.tolist() == [100]


def test_npy_files_with_and_without_a_header_are_read(tmp_path):
    tokens = np.arange(1_000, dtype="<u2")
    tokens.tofile(tmp_path / "part-0.npy")  # as dolma writes them
    np.save(tmp_path / "part-1.npy", tokens[:10])
    store = open_store(tmp_path, backend=Tokens())
    check_store(store, [{"tokens": tokens}, {"tokens": tokens[:10]}])


def test_an_npy_file_of_several_dimensions_is_refused(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((2, 3), "uint16"))
    with pytest.raises(SeqDataError, match=r"a one-dimensional array of numbers, but is uint16"):
        open_store(tmp_path / "x.npy", backend=Tokens())


def write_fairseq(path, rows, code=8):
    """Write both files as fairseq's MMapIndexedDatasetBuilder does."""
    values = [row["tokens"] for row in rows]
    sizes = np.array([len(value) for value in values], np.int32)
    begins = np.concatenate(([0], np.cumsum(sizes)[:-1])) * values[0].dtype.itemsize
    path.write_bytes(np.concatenate(values).tobytes())
    head = b"MMIDIDX\0\0" + struct.pack("<QBQ", 1, code, len(sizes))
    path.with_suffix(".idx").write_bytes(head + sizes.tobytes() + begins.astype("<i8").tobytes())
    return path


@pytest.mark.parametrize(("dtype", "code"), [("uint16", 8), ("int32", 4), ("uint32", 9)])
@pytest.mark.parametrize("count", [1, 2, 20])
def test_each_sentence_of_fairseq_is_a_sequence(tmp_path, dtype, code, count):
    rows = documents(count, dtype)
    check_store(open_store(write_fairseq(tmp_path / "x.bin", rows, code), backend=Tokens()), rows)


def test_the_older_form_of_fairseq_is_refused_by_name(tmp_path):
    path = write_fairseq(tmp_path / "x.bin", documents(3))
    path.with_suffix(".idx").write_bytes(b"TNTIDX\0\0" + bytes(40))
    with pytest.raises(SeqDataError, match=r"legacy format \(TNTIDX\).*--dataset-impl mmap"):
        open_store(path, backend=Tokens())


def test_training_and_validation_tokens_in_one_folder_are_not_one_store(tmp_path):
    for name in ("train.bin", "val.bin"):
        np.arange(10, dtype="<u2").tofile(tmp_path / name)
    with pytest.raises(
        ConfigError, match=r"holds those of 2: train \('train\*'\), validation \('val\*'\)"
    ):
        open_store(tmp_path, backend=Tokens())
    assert len(open_store(f"{tmp_path}/train*", backend=Tokens())) == 1


def test_behind_a_url_files_are_found_by_the_same_rules(tmp_path):
    url = f"memory://{tmp_path.name}/data"
    files = fsspec.filesystem("memory")
    for name in ("part.10.bin", "part.2.bin", "notes.txt", "more/0.bin"):
        files.pipe(f"{url}/{name}", bytes(4 if "10" in name else 2))
    with pytest.warns(
        SeqDataWarning, match=r"1 file of other suffixes \(1 \.txt\), 1 folder below"
    ):
        assert open_store(url, backend=Tokens()).lengths.tolist() == [1, 2]
    files.pipe(f"{url}/train.bin", bytes(2))
    files.pipe(f"{url}/val.bin", bytes(2))
    with pytest.raises(ConfigError, match="must hold the files of one split"):
        open_store(url, backend=Tokens())
    with pytest.raises(ConfigError, match=r"holds none.*Folders below a URL are not searched"):
        open_store(url.removesuffix("/data"), backend=Tokens())
