"""Files of several splits are never one dataset; files of one may have any other names."""

import pyarrow as pa
import pyarrow.parquet
import pytest

from seqdata import open_store
from seqdata.errors import ConfigError
from seqdata.storage.split_names import DATASET_DICT, refuse_dataset_dict, refuse_splits

SEVERAL = {
    "hub": ["data/train-00000-of-00002.parquet", "data/test-00000-of-00001.parquet"],
    "hashes": ["d-train-00000-of-00002-ab12cd.parquet", "d-test-00000-of-00001-ef34ab.parquet"],
    "plain": ["train.bin", "val.bin"],
    "last": ["data_train.csv", "data_dev.csv"],
    "tars": ["cc-train-000000.tar", "cc-val-000000.tar"],
    "llmc": ["fineweb_val_000000.bin", "fineweb_train_000001.bin"],
    "folders": ["train/a.npy", "validation/a.npy"],
    "librispeech": ["train-clean-100/1/a.flac", "dev-clean/2/b.flac"],
    "deeper": ["en/train/a.npy", "en/test/b.npy"],
    "between": ["en-train-small.jsonl", "en-valid-small.jsonl"],
    "capitals": ["GunPoint_TRAIN.ts", "GunPoint_TEST.ts"],
    "camels": ["trainData.csv", "testData.csv"],
    "arrays": ["X_train.npy", "X_test.npy"],
    "fairseq": ["train.en-de.en.bin", "valid.en-de.en.bin"],
    "two evaluations": ["test.jsonl", "eval.jsonl"],
    "mixed": ["train/0.npy", "test.npy"],
}
ONE = {
    "one": ["training_1.npy", "training_2.npy", "train-3.npy"],
    "none": ["a.npy", "b/c.npy", "latest.npy", "trainer/x.npy", "evaluate/y.npy"],
    "several of one": ["train-clean-100/a.npy", "train-other-500/b.npy"],
    "others beside": ["train/a.npy", "extra/b.npy"],
    "words between": ["my-test-run.npy", "a-train-ride.npy"],
    "below one": ["train/subject_test/a.npy", "train/subject_val/a.npy"],
    "classes": ["plane/0.wav", "train/0.wav", "car/testbed1.wav"],
    "empty": [],
}


@pytest.mark.parametrize("names", SEVERAL.values(), ids=SEVERAL)
def test_several_splits_are_refused_by_name(names):
    for order in (names, names[::-1]):
        with pytest.raises(ConfigError, match=r"^/d: must hold the files of one split, .* of 2"):
            refuse_splits("/d", order)


@pytest.mark.parametrize("names", ONE.values(), ids=ONE)
def test_files_of_one_split_are_fine(names):
    refuse_splits("/d", names)


def test_the_message_has_a_glob_of_each_split():
    names = ["data/train-0.tar", "data/train-1.tar", "data/val-0.tar", "data/test-0.tar"]
    text = (
        r"of 3: test \('data/test\*'\), train \('data/train\*'\), validation \('data/val\*'\). "
        r"Name one by a path or a glob, such as '/d/data/val\*', or pass `split='validation'`; "
        r"for all of them as one dataset, "
        r"pass a list: \['/d/data/test\*', '/d/data/train\*', '/d/data/val\*'\]"
    )
    with pytest.raises(ConfigError, match=text):
        refuse_splits("/d", names)


@pytest.mark.parametrize(
    ("content", "names", "splits"),
    [
        (b'{"splits": ["a", "b"]}', [], "a, b"),
        (b"{", ["y/0.arrow", "x/0.arrow", "dataset_dict.json"], "x, y"),
        (b"[]", [], r"\(none\)"),
        (b"\xff", [], r"\(none\)"),
    ],
)
def test_the_splits_of_a_dataset_dict_are_named(content, names, splits):
    with pytest.raises(ConfigError, match=f"of a DatasetDict with the splits {splits}. Open one"):
        refuse_dataset_dict("/d", "/d", content, names)


def write_parts(folder, names):
    for number, name in enumerate(names):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        pa.parquet.write_table(pa.table({"x": [[number]]}), path)


LAYOUTS = {
    "files": ["train-0.parquet", "train-1.parquet", "val-0.parquet", "test.parquet"],
    "folders": ["train/0.parquet", "train/1.parquet", "validation/0.parquet", "test/0.parquet"],
    "hub": [
        "data/train-0.parquet",
        "data/train-1.parquet",
        "data/dev-0.parquet",
        "data/test.parquet",
    ],
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("split", "numbers"), [("train", [0, 1]), ("val", [2]), ("TEST", [3])])
def test_one_split_of_a_folder_is_opened(tmp_path, layout, split, numbers):
    write_parts(tmp_path, LAYOUTS[layout])
    store = open_store(tmp_path, split=split)
    assert [each["x"].tolist() for each in store] == [[number] for number in numbers]
    table = tmp_path / "table"
    for name in ("train", "val"):
        table.mkdir(exist_ok=True)
        pa.parquet.write_table(pa.table({"g": ["a"], "x": [len(name)]}), table / f"{name}.parquet")
    assert open_store(table, split="train", group="g")[0]["x"].tolist() == [5]


def test_a_split_of_a_saved_dataset_dict_is_opened(tmp_path):
    for name in ("first", "train"):
        write_parts(tmp_path / name, ["data-00000-of-00001.parquet"])
    (tmp_path / DATASET_DICT).write_text('{"splits": ["first", "train"]}')
    assert len(open_store(tmp_path, split="first")) == 1
    with pytest.raises(ConfigError, match=r"one of its splits \(first, train\), but is 'test'"):
        open_store(tmp_path, split="test")


@pytest.mark.parametrize(
    ("location", "message"),
    [
        ("{0}", r"`split` must be one of its splits \(test, train\), but is 'val'. Choose another"),
        ("{0}/none", "must be a folder for `split='val'`, but is not. Name the files of the split"),
        ("s3://bucket/folder", r"`split` \('val'\) is for the path of a folder, .* is a URL"),
        ([[1, 2]], r"is for the path of a folder, but the data is a list. Leave it out"),
    ],
)
def test_a_split_that_is_not_there_is_refused(tmp_path, location, message):
    write_parts(tmp_path, ["train.parquet", "test.parquet"])
    location = location.format(tmp_path) if isinstance(location, str) else location
    with pytest.raises(ConfigError, match=message):
        open_store(location, split="val")
