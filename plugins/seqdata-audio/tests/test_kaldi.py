"""Archives of Kaldi, written by kaldiio (``golden_kaldi.py``)."""

import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from seqdata_audio import KaldiArchive

from seqdata import Bucketed, Loader, open_store
from seqdata.errors import ConfigError, DataError, SeqDataError
from seqdata_testing.stores import check_store

GOLDEN = Path(__file__).parent / "kaldi"
FORMS = {"fm": ("f4", 5), "dm": ("f8", 5), "fv": ("f4", 0), "dv": ("f8", 0)}


def make_rows(dtype, columns):
    random = np.random.default_rng(5)
    shapes = {f"utt-{n}": (n, columns) if columns else (n,) for n in (3, 1, 8)}
    return [
        {"id": name, "features": random.normal(size=shape).astype(dtype)}
        for name, shape in shapes.items()
    ]


def open_copy(name, folder, *, change=bytes):
    path = folder / f"{name}.ark"
    path.write_bytes(change((GOLDEN / path.name).read_bytes()))
    return open_store(path, backend=KaldiArchive())


@pytest.mark.parametrize("name", sorted(FORMS))
def test_what_kaldiio_wrote_is_read(tmp_path, name):
    check_store(open_copy(name, tmp_path), make_rows(*FORMS[name]))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_read_the_same(tmp_path, method):
    store = open_copy("fm", tmp_path)
    alone = list(Loader(store, Bucketed(2)))
    loader = Loader(store, Bucketed(2), num_workers=1, start_method=method)
    for batch, other in zip(alone, loader, strict=True):
        assert batch["features"].tolist() == other["features"].tolist()


@pytest.mark.parametrize("size", [*range(1, 22), 100, 200, 299])
def test_a_file_that_was_cut_off_is_refused(tmp_path, size):
    with pytest.raises(SeqDataError, match=r"cut off|must hold binary values"):
        open_copy("fm", tmp_path, change=lambda content: content[:size])


def test_the_entry_that_was_cut_off_is_named(tmp_path):
    with pytest.raises(SeqDataError, match="has 299 bytes, but 'utt-8' ends at byte 303"):
        open_copy("fm", tmp_path, change=lambda content: content[:299])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("cm", "compressed matrices .*copy-feats --compress=false"),
        ("text", "must hold binary values, but 'utt-3' does not"),
        ("wav", r"holds audio \('utt-0'\), but must hold features"),
    ],
)
def test_other_archives_are_refused(tmp_path, name, message):
    with pytest.raises(SeqDataError, match=message):
        open_copy(name, tmp_path)


def test_matrices_of_several_widths_are_refused(tmp_path):
    both = (GOLDEN / "fm.ark").read_bytes() + (GOLDEN / "fv.ark").read_bytes()
    with pytest.raises(SeqDataError, match=r"of one kind and width, but holds f4 \(0\), f4 \(5\)"):
        open_copy("fm", tmp_path, change=lambda _: both)


def test_sizes_that_are_negative_are_refused(tmp_path):
    head = b"a \0BFM \4\xff\xff\xff\xff\4\1\0\0\0"
    with pytest.raises(SeqDataError, match="has sizes of 'a' that are negative"):
        open_copy("fm", tmp_path, change=lambda _: head)


def test_a_folder_of_archives_is_one_store(tmp_path):
    shutil.copy(GOLDEN / "fm.ark", tmp_path / "a.ark")
    head = b"b \0BFM \4\2\0\0\0\4\5\0\0\0"
    values = np.arange(10, dtype="<f4").reshape(2, 5)
    (tmp_path / "b.ark").write_bytes(head + values.tobytes())
    rows = [*make_rows("f4", 5), {"id": "b", "features": values}]
    check_store(open_store(tmp_path, backend=KaldiArchive()), rows)


def write_list(folder, text):
    shutil.copy(GOLDEN / "fm.ark", folder / "a.ark")
    head = b"b \0BFM \4\2\0\0\0\4\5\0\0\0"
    values = np.arange(10, dtype="<f4").reshape(2, 5)
    (folder / "b.ark").write_bytes(head + values.tobytes())
    path = folder / "feats.scp"
    path.write_text(text)
    return path, [{"id": "b", "features": values}, make_rows("f4", 5)[2]]


@pytest.mark.parametrize("form", ["{folder}/", ""])
def test_a_list_is_the_entries_that_it_names_in_its_order(tmp_path, form):
    at = form.format(folder=tmp_path)
    path, rows = write_list(tmp_path, f"b {at}b.ark:2\nutt-8 {at}a.ark:120\n")
    for store in (open_store(path, backend=KaldiArchive()), open_store(str(path))):
        check_store(store, rows)
        assert next(iter(Loader(store, Bucketed(2)))).lengths.sum() == 10
    assert KaldiArchive().build_index(path)["sequences"] == 4


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("b b.ark:2\nc b.ark:9\n", DataError, "hold its 2 entries, but 1 are missing, 'c' first"),
        ("b b.ark:2\nb b.ark:2\n", DataError, "but 'b' occurs twice"),
        ("b b.ark\n", ConfigError, "'b' must be at `archive.ark:offset`, but is at 'b.ark'"),
        ("b copy-feats x |\n", ConfigError, "but is at 'copy-feats x |'"),
        ("", ConfigError, "must name at least one entry, but is empty"),
        (None, ConfigError, "must hold `feats.scp`, the archives of features, but does not"),
    ],
)
def test_a_list_that_cannot_be_followed_is_refused(tmp_path, text, error, message):
    path, _ = write_list(tmp_path, text or "")
    if text is None:
        path.unlink()
    with pytest.raises(error, match=re.escape(message)):
        KaldiArchive()(path)
