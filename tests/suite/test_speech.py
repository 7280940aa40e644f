"""Speech: real WAV files and a table of texts, as features, characters and parts by speaker."""

import pickle
import wave

import lightning as L
import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from seqdata_models import LSTMRecognizer

from seqdata import SpeechDataModule
from seqdata.errors import ConfigError, SeqDataWarning
from seqdata.loading.transforms.declare import Ragged, columnar

pytest.importorskip("seqdata_audio")
RATE = 8000
DECODER = ("decoder_input_ids", "labels", "decoder_attention_mask")
WORDS = ["no", "yes", "on", "yeah"]


@pytest.fixture(scope="module")
def speech(tmp_path_factory):
    """A folder of WAV files, and the table of their texts."""
    folder = tmp_path_factory.mktemp("speech")
    rng = np.random.default_rng(0)
    rows = []
    for number in range(24):
        samples = rng.normal(0, 900, int(rng.integers(2000, 9000))).astype("<i2")
        with wave.open(str(folder / f"{number:02d}.wav"), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(RATE)
            file.writeframes(samples.tobytes())
        text = WORDS[number % 4]
        rows.append({"file": f"{number:02d}.wav", "text": text, "speaker": f"s{number // 4}"})
    return folder, pd.DataFrame(rows)


def make(speech, **options):
    folder, table = speech
    options = {"rate": RATE, "batch_seconds": 4, "split": {"train": 0.5, "val": 0.5}, **options}
    return SpeechDataModule(str(folder), transcript=table, seed=1, **options)


def seen(loader):
    """Return frames, text ids and bounds of every recording, by its length in frames."""
    found = []
    for batch in loader:
        for row in torch.nonzero(batch.weight > 0)[:, 0].tolist():
            frames, characters = int(batch.lengths[row]), int(batch.lengths_of["text"][row])
            found.append((batch["mel"][row, :frames], batch["text"][row, :characters].tolist()))
    return found


def test_features_are_those_of_the_files_and_texts_are_decoded(speech):
    from seqdata_audio import LogMel

    folder, table = speech
    data = make(speech)
    mel = LogMel(rate=RATE, n_mels=80, n_fft=200, hop_length=80)
    train, val = seen(data.train_dataloader()), seen(data.val_dataloader())
    assert len(train) + len(val) == len(table)
    stores = data._sources.get_store("train"), data._sources.get_store("val")
    speakers = [{each["speaker"] for each in store} for store in stores]
    assert not speakers[0] & speakers[1]  # no speaker is in both
    vocabulary = data._sources.options.statistics["text"]
    expected = []
    for each in stores[1]:
        with wave.open(str(folder / each["id"])) as file:
            samples = np.frombuffer(file.readframes(1 << 20), "<i2")
        columns = {
            "audio": Ragged(samples, np.array([len(samples)])), "rate": np.array([RATE]),
        }  # fmt: skip
        expected.append((mel(columns, np.zeros(1, np.uint64))["mel"].values, each["text"]))
    for frames, ids in val:
        text = "".join(vocabulary.inverse(ids))
        same = [words for values, words in expected if np.array_equal(values, frames.numpy())]
        assert same == [text]
    assert data.sizes["vocabulary"]["text"] == 2 + len(set("".join(WORDS)))


def test_the_vocabulary_is_of_training_alone(speech):
    folder, table = speech
    table = table.assign(text=[*table["text"][:-1], "zebra"])
    data = make((folder, table), split={"train": 0.5, "val": 0.5})
    data.setup("fit")
    stores = data._sources.get_store("train"), data._sources.get_store("val")
    texts = ["".join(each["text"] for each in store) for store in stores]
    tokens = set(data._sources.options.statistics["text"].tokens)
    assert tokens == set(texts[0])
    assert ("z" in tokens) == ("z" in texts[0])


@columnar
def silence(columns, seeds):
    """Sets the first band of each recording to a number that shows that it ran."""
    mel = columns["mel"]
    values = mel.values.copy()
    values[:, 0] = 7.0
    return {**columns, "mel": Ragged(values, mel.lengths)}


def test_training_alone_is_augmented_and_long_recordings_are_left_out(speech):
    data = make(speech, augment=silence, max_seconds=0.8)
    train, val = seen(data.train_dataloader()), seen(data.val_dataloader())
    assert all((frames[:, 0] == 7).all() for frames, _ in train)
    assert not any((frames[:, 0] == 7).all() for frames, _ in val)
    assert 0 < len(train) + len(val) < 24
    assert max(len(frames) for frames, _ in train + val) <= 81
    for batch in data.train_dataloader():
        assert batch["mel"].shape[0] * batch["mel"].shape[1] <= 401


def test_a_ctc_model_trains(speech):
    class Recognizer(L.LightningModule):
        def __init__(self, size):
            super().__init__()
            self.lstm = torch.nn.LSTM(80, 16, batch_first=True)
            self.head = torch.nn.Linear(16, size)

        def training_step(self, batch, batch_idx):
            scores = self.head(self.lstm(batch["mel"] / 40)[0]).log_softmax(-1)
            losses = torch.nn.functional.ctc_loss(
                scores.transpose(0, 1), batch["text"], batch.lengths, batch.lengths_of["text"],
                blank=0, reduction="none",
            )  # fmt: skip
            return (losses * batch.weight).sum() * batch.sequence_scale

        def validation_step(self, batch, batch_idx):
            self.log("loss", self.training_step(batch, batch_idx), batch_size=1)

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), 1e-3)

    data = make(speech)
    trainer = L.Trainer(
        max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(Recognizer(data.sizes["vocabulary"]["text"]), data)
    assert trainer.global_step > 1


@pytest.fixture(scope="module")
def pieces(tmp_path_factory):
    """A file of a tokenizer of pieces, with an end and without a begin."""
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    special = ["<|endoftext|>"]
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=20, special_tokens=special, show_progress=False
    )
    tokenizer.train_from_iterator(WORDS * 4, trainer)
    path = tmp_path_factory.mktemp("tokenizer") / "tok.json"
    tokenizer.save(str(path))
    return str(path)


def texts_of(data, kind="train"):
    """Return the texts of a part, sorted."""
    data.setup("fit")
    return sorted(each["text"] for each in data._sources.get_store(kind))


@pytest.mark.parametrize("tokenizer", ["chars", "bytes", "pieces"])
def test_inputs_begin_and_labels_end_and_both_are_the_text(speech, request, tokenizer):
    name = request.getfixturevalue(tokenizer) if tokenizer == "pieces" else tokenizer
    data = make(speech, target="seq2seq", tokenizer=name)
    ids, size = data.sizes["ids"], data.sizes["vocabulary"]["text"]
    assert len(set(ids.values())) == 3
    found = []
    for batch in data.train_dataloader():
        inputs, labels = batch["decoder_input_ids"], batch["labels"]
        mask, lengths = batch["decoder_attention_mask"], batch.lengths_of["text"]
        assert inputs.dtype == labels.dtype == torch.int64
        assert mask.dtype == torch.bool
        assert mask.sum(1).tolist() == lengths.tolist()
        assert (inputs[~mask] == ids["pad"]).all()
        assert (labels[~mask] == -100).all()
        for row, length in enumerate(lengths.tolist()):
            assert inputs[row, 0] == ids["bos"]
            assert labels[row, length - 1] == ids["eos"]
            assert inputs[row, 1:length].tolist() == labels[row, : length - 1].tolist()
            assert not set(inputs[row, 1:length].tolist()) & set(ids.values())
            assert data.decode(inputs[row]) == data.decode(labels[row])
            if batch.weight[row] > 0:
                found.append(data.decode(labels[row]))
        assert max(int(inputs.max()), int(labels.max())) < size
    assert sorted(found) == texts_of(data)


def test_ids_are_those_of_the_tokenizer_and_ctc_has_a_blank(speech, pieces):
    from seqdata_text import load_tokenizer

    tokenizer = load_tokenizer(pieces)
    data = make(speech, tokenizer=pieces)
    assert data.sizes["ids"] == {"blank": 0}
    assert data.sizes["vocabulary"]["text"] == tokenizer.vocab_size + 1
    rows = [ids for _, ids in seen(data.train_dataloader())]
    expected = [[int(id_) + 1 for id_ in tokenizer.encode([text])[0]] for text in texts_of(data)]
    assert sorted(rows) == sorted(expected)
    assert sorted(map(data.decode, rows)) == texts_of(data)
    assert data.decode([0, *rows[0], 0]) == data.decode(rows[0])
    data = make(speech, tokenizer=pieces, target="seq2seq")
    size = tokenizer.vocab_size
    assert data.sizes["ids"] == {"pad": size, "bos": size + 1, "eos": tokenizer.eos_id}
    assert data.sizes["vocabulary"]["text"] == size + 2
    (inputs, *_) = (batch["decoder_input_ids"] for batch in data.train_dataloader())
    own = [row[1 : len(tokenizer.encode([data.decode(row)])[0]) + 1].tolist() for row in inputs]
    assert own == [tokenizer.encode([data.decode(row)])[0].tolist() for row in inputs]


def test_a_worker_has_the_tokenizer_without_its_loaded_model(speech, pieces):
    data = make(speech, target="seq2seq", tokenizer=pieces)
    transform = data._options.transform
    before = pickle.dumps(transform)
    columns = {
        "audio": Ragged(np.zeros(900, np.int16), np.array([400, 500])),
        "rate": np.array([RATE, RATE]),
        "text": ["no", "yeah"],
    }
    expected = transform(columns, np.zeros(2, np.uint64))
    found = pickle.loads(before)(columns, np.zeros(2, np.uint64))
    assert found.keys() == expected.keys() == {"mel", "rate", *DECODER}
    for name in DECODER:
        assert np.array_equal(found[name].values, expected[name].values)
        assert found[name].lengths.tolist() == expected[name].lengths.tolist()
    assert pickle.dumps(transform) == before  # though it has encoded


def test_characters_that_training_lacks_are_unknown_to_a_decoder(speech):
    folder, table = speech
    data = make((folder, table), target="seq2seq")
    data.setup("fit")
    ours = {each["id"] for each in data._sources.get_store("val")}
    table = table.assign(
        text=[
            "zone" if file in ours else text
            for file, text in zip(table["file"], table["text"], strict=True)
        ]
    )
    data = make((folder, table), target="seq2seq")
    (labels, *_) = (batch["labels"] for batch in data.val_dataloader())
    assert (labels[:, 0] == 1).all()
    assert data.decode(labels[0]) == "one"


def test_samples_without_features_have_texts_of_a_decoder(speech):
    data = make(speech, features=None, target="seq2seq")
    assert data.sizes["features"] == {}
    (batch, *_) = data.train_dataloader()
    assert batch["audio"].shape[1] == batch.lengths.max()
    assert batch["labels"].shape == batch["decoder_input_ids"].shape


def test_a_tokenizer_needs_its_package(speech, monkeypatch):
    from seqdata.suite import sources as module

    host = module.default_host()

    class Without:
        """A host in whose environment seqdata-text is not installed."""

        def find(self, kind, name):
            return None if name == "text" else host.find(kind, name)

    monkeypatch.setattr(module, "default_host", Without)
    assert make(speech, target="seq2seq").sizes["ids"] == {"pad": 0, "bos": 2, "eos": 3}
    message = "`tokenizer` 'bytes' needs the package seqdata-text.* pip install seqdata-text"
    with pytest.raises(ConfigError, match=message):
        make(speech, tokenizer="bytes")


def quiet(**options):
    return L.Trainer(
        accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, **options,
    )  # fmt: skip


@pytest.mark.slow
def test_a_recognizer_learns_words_and_writes_them(tmp_path):
    L.seed_everything(0)
    rng = np.random.default_rng(0)
    rows = []
    for number in range(32):  # a letter is a tone
        word = WORDS[number % 4]
        tones = [np.sin(np.arange(1200) * (0.05 + 0.04 * (ord(c) % 7))) for c in word]
        samples = np.concatenate(tones) * 8000 + rng.normal(0, 50, 1200 * len(word))
        with wave.open(str(tmp_path / f"{number:02d}.wav"), "wb") as file:
            file.setparams((1, 2, RATE, 0, "NONE", ""))
            file.writeframes(samples.astype("<i2").tobytes())
        rows.append({"file": f"{number:02d}.wav", "text": word})
    split = {"train": 0.75, "val": 0.25}
    data = make((tmp_path, pd.DataFrame(rows)), target="seq2seq", split=split, split_by=None)
    model = LSTMRecognizer.for_data(data, hidden=32, embedding=8, learning_rate=0.02, max_length=6)
    trainer = quiet(max_epochs=12)
    trainer.fit(model, data)
    assert trainer.callback_metrics["val_accuracy"] > 0.95
    store = data._sources.get_store("val")
    written = {}
    for found in trainer.predict(model, data.val_dataloader()):
        texts = [data.decode(row) for row in found["text"]]
        written.update(zip(store.base.keys(found["ids"]), texts, strict=True))
    expected = {each["id"]: each["text"] for each in store}
    assert written.keys() == expected.keys()
    assert sum(written[key] == text for key, text in expected.items()) >= 0.9 * len(expected)


def test_the_recognizer_wants_a_decoder(speech):
    with pytest.raises(ConfigError, match=r"Write SpeechDataModule\(..., target='seq2seq'\)"):
        LSTMRecognizer.for_data(make(speech))
    with pytest.raises(ConfigError, match="recognizer: `vocabulary` must be the number of ids"):
        LSTMRecognizer(80)


def test_yaml_trains_a_recognizer(speech, tmp_path, monkeypatch):
    pytest.importorskip("jsonargparse")
    from seqdata.suite import cli

    folder, table = speech
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["seqdata"])
    monkeypatch.setenv("JSONARGPARSE_DEPRECATION_WARNINGS", "off")
    table.to_csv("clips.csv", index=False)
    data = {
        "source": str(folder), "transcript": "clips.csv", "rate": RATE, "batch_seconds": 4,
        "target": "seq2seq", "tokenizer": "bytes", "split": {"train": 0.5, "val": 0.5},
    }  # fmt: skip
    config = {
        "seed_everything": 1,
        "data": {"class_path": "SpeechDataModule", "init_args": data},
        "model": {"class_path": "LSTMRecognizer", "init_args": {"hidden": 4}},
        "trainer": {
            "max_epochs": 1, "accelerator": "cpu", "logger": False, "enable_progress_bar": False,
            "enable_model_summary": False, "enable_checkpointing": False,
        },
    }  # fmt: skip
    with open("speech.yaml", "w") as file:
        yaml.safe_dump(config, file)
    made = cli.run_cli(["fit", "--config", "speech.yaml"])
    assert made.model.hparams.vocabulary == 259  # bytes, end, begin, padding
    assert "val_loss" in made.trainer.callback_metrics


def test_recordings_without_a_row_are_counted(speech):
    folder, table = speech
    with pytest.warns(SeqDataWarning, match="1 "):
        make((folder, table.iloc[1:])).setup("fit")


@pytest.mark.parametrize("blank", [None, "", "  ", float("nan")])
def test_recordings_with_a_blank_text_are_dropped_and_counted(speech, blank):
    folder, table = speech
    table = table.assign(text=[blank, *table["text"][1:-1], blank])
    text = r"2 of 24 recordings have a blank text and are dropped \('00\.wav', '23\.wav'\)"
    data = make((folder, table))
    with pytest.warns(SeqDataWarning, match=text):
        data.setup("fit")
    read = seen(data.train_dataloader()) + seen(data.val_dataloader())
    assert len(read) == 22
    assert min(len(ids) for _, ids in read) > 0
    assert "2 of 24 recordings have a blank text and are dropped" in data.describe()


def test_texts_that_are_all_blank_are_refused(speech):
    folder, table = speech
    with pytest.raises(ConfigError, match=r"all of the 24 texts are blank \('00\.wav', .*, \.\.\."):
        make((folder, table.assign(text=""))).setup("fit")


@pytest.mark.parametrize("tokenizer", ["chars", "bytes"])
def test_texts_with_more_tokens_than_frames_are_counted(speech, tokenizer):
    folder, table = speech
    table = table.assign(text=[*table["text"][:3], "x y " * 60, *table["text"][4:]])
    data = make((folder, table), tokenizer=tokenizer)
    text = (
        r"1 of 24 recordings have more tokens than frames, .* is infinite \(the first: "
        r"'03\.wav', 240 tokens, \d+ frames\)\. .*zero_infinity=True"
    )
    with pytest.warns(SeqDataWarning, match=text):
        data.setup("fit")
    assert "1 of 24 recordings have more tokens than frames" in data.describe()
    make((folder, table), tokenizer=tokenizer, target="seq2seq").setup("fit")  # without a warning


def test_files_of_several_rates_are_named_before_training(speech, tmp_path):
    folder, table = speech
    for path in folder.glob("*.wav"):
        content = bytearray(path.read_bytes())
        if path.name == "03.wav":
            content[24:28] = (16_000).to_bytes(4, "little")
        (tmp_path / path.name).write_bytes(content)
    message = (
        r"speech: all recordings must have the sampling rate 8000 Hz \(`rate`\), but they have "
        r"8000 Hz: 23 \(the first: '00\.wav'\), 16000 Hz: 1 \(the first: '03\.wav'\)\. Resample"
    )
    with pytest.raises(ConfigError, match=message):
        make((tmp_path, table)).setup("fit")
    with pytest.raises(ConfigError, match=r"but they have 8000 Hz: 24 .*\. Pass rate=8000, or"):
        make(speech, rate=16_000).setup("fit")


def test_a_table_without_speakers_says_how_to_split(speech):
    folder, table = speech
    message = (
        r"speech: `split_by` must be a further column of the transcript \(none\), but is "
        r"'speaker'\. Name the column of the speakers, or pass split_by=None"
    )
    with pytest.raises(ConfigError, match=message):
        make((folder, table[["file", "text"]])).setup("fit")
    data = make((folder, table[["file", "text"]]), split_by=None)
    assert len(seen(data.train_dataloader())) + len(seen(data.val_dataloader())) == len(table)
    with pytest.raises(ConfigError, match=r"transcript \(speaker\), but is 'person'\."):
        make(speech, split_by="person").setup("fit")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tokenizer": "bpe"}, "`tokenizer` must be a file .* but is 'bpe'"),
        ({"target": "rnnt"}, "speech: `target` must be 'ctc' or 'seq2seq', but is 'rnnt'"),
        ({"features": "mfcc"}, "`features` must be 'log_mel', None, or a columnar transform"),
        ({"augment": abs}, "`augment` must be a columnar transform of features, but is"),
        (
            {"augment": silence, "features": None},
            "`augment` requires features, but",
        ),
        ({"batch_seconds": 0}, "`batch_seconds` must be a number above 0, but is 0"),
        ({"max_seconds": 9}, r"`max_seconds` must be at most `batch_seconds` \(4\), but is 9"),
        ({"rate": 0}, "`rate` must be an integer of at least 1, but is 0"),
        ({"split": {"val": 1}}, "`split` must be a mapping with a part 'train'"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(speech, options, message):
    with pytest.raises(ConfigError, match=message):
        make(speech, **options)
