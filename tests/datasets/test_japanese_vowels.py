"""The packed Japanese Vowels are those of the published files."""

import hashlib
from importlib import resources
from pathlib import Path

import numpy as np
import pytest

from seqdata import ConfigError
from seqdata.datasets import load_japanese_vowels
from seqdata.datasets.japanese_vowels import pack

PUBLISHED = Path(__file__).resolve().parents[3] / "shared" / "data" / "japanese-vowels"
DIGESTS = {
    "train": "ad0d908306159ed65288d0f3589e879d2939111899760a9d5b752e059b5a497b",
    "test": "bafbb3cbcf28c57cd5c0ee16cb07b0cc8f2af86d014ffc1e630b9c6a01f84fed",
}
COUNTS = {"train": [30] * 9, "test": [31, 35, 88, 44, 29, 24, 40, 50, 29]}


def read_published(split):
    text = (PUBLISHED / f"JapaneseVowels_{split.upper()}.ts").read_text()
    for line in filter(None, text.split("@data\n")[1].splitlines()):
        *channels, speaker = line.split(":")
        yield np.array([channel.split(",") for channel in channels], "float64").T, int(speaker) - 1


def digest(store):
    found = hashlib.sha256()
    for sequence in store:
        found.update(sequence["x"].astype("<f4").tobytes() + bytes([int(sequence["y"])]))
    return found.hexdigest()


@pytest.mark.parametrize("split", ["train", "test"])
def test_values_labels_and_order_have_their_digest(split):
    assert digest(load_japanese_vowels(split)) == DIGESTS[split]


@pytest.mark.parametrize("split", ["train", "test"])
def test_lengths_and_speakers_are_those_that_are_documented(split):
    store = load_japanese_vowels(split)
    labels = [int(sequence["y"]) for sequence in store.select("y")]
    assert np.bincount(labels).tolist() == COUNTS[split]
    assert store.lengths.min() == 7
    assert store.lengths.max() == {"train": 26, "test": 29}[split]
    assert store.fields["x"].dtype == "float32"
    assert store.ids[0] == f"{split}-0"


@pytest.mark.skipif(not PUBLISHED.is_dir(), reason="the published files are not there")
@pytest.mark.parametrize("split", ["train", "test"])
def test_values_are_those_of_the_published_files(split):
    published = list(read_published(split))
    store = load_japanese_vowels(split)
    assert len(store) == len(published)
    for sequence, (x, speaker) in zip(store, published, strict=True):
        np.testing.assert_array_equal(sequence["x"], x.astype("float32"))
        assert sequence["y"] == speaker


@pytest.mark.skipif(not PUBLISHED.is_dir(), reason="the published files are not there")
def test_the_packed_file_can_be_made_again():
    utterances = [*read_published("train"), *read_published("test")]
    frames = np.concatenate([x for x, _ in utterances])
    lengths = np.array([len(x) for x, _ in utterances])
    packed = pack(frames, lengths, np.array([speaker for _, speaker in utterances]))
    with resources.files("seqdata.datasets").joinpath("japanese_vowels.npz").open("rb") as file:
        stored = dict(np.load(file))
    assert stored.keys() == packed.keys()
    for name, array in packed.items():
        np.testing.assert_array_equal(stored[name], array)


def test_the_file_is_small_and_has_its_licence_beside_it():
    folder = resources.files("seqdata.datasets")
    assert len(folder.joinpath("japanese_vowels.npz").read_bytes()) < 300_000
    licence = folder.joinpath("LICENSE-japanese-vowels.txt").read_text()
    assert "Creative Commons Attribution 4.0" in licence
    assert "Kudo" in licence


@pytest.mark.parametrize("split", ["validation", ["train"]])
def test_an_unknown_split_is_refused(split):
    with pytest.raises(ConfigError, match=r"`split` must be 'train' or 'test', but is .*\w"):
        load_japanese_vowels(split)
