"""Files of several splits are never one data set; files of one may have any other names."""

import pytest

from seqdata.errors import ConfigError
from seqdata.storage.split_names import refuse_dataset_dict, refuse_splits

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
        with pytest.raises(ConfigError, match=r"^/d: must be the files of one split, but holds 2"):
            refuse_splits("/d", order)


@pytest.mark.parametrize("names", ONE.values(), ids=ONE)
def test_files_of_one_split_are_fine(names):
    refuse_splits("/d", names)


def test_the_message_has_a_glob_of_each_split():
    names = ["data/train-0.tar", "data/train-1.tar", "data/val-0.tar", "data/test-0.tar"]
    text = (
        r"holds 3: test \('data/test\*'\), train \('data/train\*'\), validation \('data/val\*'\). "
        r"Name one by a path or a glob, such as '/d/data/val\*'; for all of them as one data set, "
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
