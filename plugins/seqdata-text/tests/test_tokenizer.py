import base64
import io
import itertools
import json
import shutil

import numpy as np
import pytest
import torch
from seqdata_text import Text, load_tokenizer, tokenize
from seqdata_text.text import choose_dtype
from seqdata_text.tokenizer import load_saved

from seqdata import open_store
from seqdata.errors import ConfigError, DecodeError, SeqDataWarning


def join(lists):
    return list(itertools.chain.from_iterable(lists))


def test_a_tokenizer_json_is_used_without_its_template(tokenizer_file, paragraphs, reference):
    import tokenizers

    tokenizer = load_tokenizer(tokenizer_file)
    tokens, lengths = tokenizer.encode(paragraphs)
    expected = [reference(text) for text in paragraphs]
    assert tokens.tolist() == join(expected)
    assert lengths.tolist() == list(map(len, expected))
    assert tokenizer.decode(torch.tensor(expected[3])) == paragraphs[3]
    assert (tokenizer.vocab_size, tokenizer.eos_id, tokenizer.bos_id) == (600, 0, 1)
    given = load_tokenizer(tokenizers.Tokenizer.from_file(str(tokenizer_file)))
    assert given.encode(paragraphs)[0].tolist() == tokens.tolist()


def test_a_folder_of_transformers_names_its_special_tokens(tokenizer_file, tmp_path):
    (tmp_path / "tokenizer.json").write_bytes(tokenizer_file.read_bytes())
    special = {"eos_token": {"content": "<s>"}, "bos_token": "<|endoftext|>", "pad_token": None}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(special))
    tokenizer = load_tokenizer(tmp_path)
    assert (tokenizer.eos_id, tokenizer.bos_id) == (1, 0)
    (tmp_path / "tokenizer_config.json").write_text("[]")
    with pytest.raises(ConfigError, match=r"tokenizer_config\.json'? must be a JSON object with"):
        load_tokenizer(tmp_path)


@pytest.fixture(scope="module")
def sentencepiece_file(paragraphs, tmp_path_factory):
    sentencepiece = pytest.importorskip("sentencepiece")
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(paragraphs), model_writer=model, vocab_size=300,
        model_type="bpe", character_coverage=1.0, minloglevel=2,
    )  # fmt: skip
    path = tmp_path_factory.mktemp("sp") / "mine.model"
    path.write_bytes(model.getvalue())
    return path


def test_sentencepiece(sentencepiece_file, paragraphs):
    import sentencepiece

    own = sentencepiece.SentencePieceProcessor(model_file=str(sentencepiece_file))
    tokenizer = load_tokenizer(sentencepiece_file)
    tokens, lengths = tokenizer.encode(paragraphs, threads=1)
    assert tokens.tolist() == join(map(own.encode, paragraphs))
    assert lengths.tolist() == [len(own.encode(text)) for text in paragraphs]
    assert tokenizer.decode(own.encode("one file")) == "one file"
    assert (tokenizer.vocab_size, tokenizer.eos_id, tokenizer.bos_id) == (300, 2, 1)
    assert tokenizer.resolve("eos", "</s>") == 2
    assert tokenizer.model.find("no such piece") is None
    assert load_tokenizer(own).digest == tokenizer.digest
    sentencepiece_file.with_name("broken.model").write_bytes(b"no model")
    with pytest.raises(ConfigError, match=r"broken\.model' must be a model of sentencepiece, but"):
        assert load_tokenizer(sentencepiece_file.with_name("broken.model")).vocab_size


@pytest.fixture
def encoding(tmp_path):
    """An encoding of tiktoken, with its ranks in a local file."""
    tiktoken = pytest.importorskip("tiktoken")
    from tiktoken.load import load_tiktoken_bpe

    words = [bytes([byte]) for byte in range(256)] + [b"th", b"the", b" the", b"in", b"ing"]
    lines = [f"{base64.b64encode(word).decode()} {rank}" for rank, word in enumerate(words)]
    path = tmp_path / "mine.tiktoken"
    path.write_text("\n".join(lines))
    return tiktoken.Encoding(
        "mine", pat_str=r"\s?\w+|\W", mergeable_ranks=load_tiktoken_bpe(str(path)),
        special_tokens={"<|endoftext|>": 261},
    )  # fmt: skip


def test_tiktoken(encoding, paragraphs, tmp_path):
    tokenizer = load_tokenizer(encoding)
    texts = [*paragraphs, "<|endoftext|>"]
    expected = [encoding.encode_ordinary(text) for text in texts]
    tokens, lengths = tokenizer.encode(texts)
    assert tokens.tolist() == join(expected)
    assert lengths.tolist() == list(map(len, expected))
    assert tokenizer.decode([*expected[0], 261]) == texts[0]
    assert (tokenizer.vocab_size, tokenizer.eos_id, tokenizer.bos_id) == (262, 261, None)
    (tmp_path / "x.txt").write_text(texts[0], "utf-8")
    store = open_store(tmp_path / "x.txt", backend=Text(encoding, eos=True))
    assert store[0]["tokens"].tolist() == [*expected[0], 261]
    saved = load_tokenizer(store)  # from its copy
    assert saved.encode(texts)[0].tolist() == tokens.tolist()
    with pytest.raises(ConfigError, match=r"a \.tiktoken file has ranks, but no pattern"):
        load_tokenizer(tmp_path / "mine.tiktoken")


def test_an_encoding_whose_files_are_not_here(monkeypatch, tmp_path):
    tiktoken = pytest.importorskip("tiktoken")

    def fail(name):
        raise OSError(name)

    monkeypatch.setattr(tiktoken, "get_encoding", fail)  # it would ask the network
    with pytest.raises(ConfigError, match=r"'gpt2': its files must be on this machine, in the fo"):
        load_tokenizer("gpt2")


def test_bytes():
    tokenizer = load_tokenizer("bytes")
    text = "né\n"
    assert tokenizer.encode([text])[0].tolist() == list(text.encode())
    assert tokenizer.decode([*text.encode(), 256, 257]) == text
    assert tokenizer.decode([0xC3]) == "\ufffd"


def test_chars_are_those_of_the_corpus_with_a_warning(tmp_path):
    (tmp_path / "a.txt").write_text("bab é")
    with pytest.warns(SeqDataWarning, match=r"'chars' numbers the 4 characters of this corpus"):
        store = open_store(tmp_path / "a.txt", backend=Text("chars", eos=True))
    assert store[0]["tokens"].tolist() == [2, 1, 2, 0, 3, 4]
    tokenizer = load_tokenizer(store)
    assert (tokenizer.vocab_size, tokenizer.eos_id, tokenizer.bos_id) == (6, 4, 5)
    assert tokenizer.decode([2, 1, 4]) == "ba"
    again = open_store(tmp_path / "a.txt", backend=Text("chars", eos=True))  # no warning
    assert again.fingerprint == store.fingerprint
    (file,) = store.folder.glob("tokenizer-*.json")
    (tmp_path / "b.txt").write_text("abba")
    other = open_store(tmp_path / "b.txt", backend=Text(file))
    assert other[0]["tokens"].tolist() == [1, 2, 2, 1]
    (tmp_path / "c.txt").write_text("abc")
    with pytest.raises(
        DecodeError, match=r"'c\.txt' must only have characters of .*, but has 'c' \(U\+"
    ):
        open_store(tmp_path / "c.txt", backend=Text(store.folder))
    with pytest.raises(ConfigError, match=r"is made from the characters of a corpus while"):
        load_tokenizer("chars")


def test_special_tokens_are_chosen(tokenizer_file, tmp_path):
    tokenizer = load_tokenizer(tokenizer_file)
    assert [tokenizer.resolve("eos", value) for value in (True, "<s>", 7, False)] == [0, 1, 7, None]
    with pytest.raises(ConfigError, match=r"Text: `eos` must be a token of .*, but is '</x>'"):
        tokenizer.resolve("eos", "</x>")
    with pytest.raises(ConfigError, match=r"`bos` must be a token id in \[0, 600\), but is 600"):
        tokenizer.resolve("bos", 600)
    parsed = json.loads(tokenizer_file.read_text("utf-8"))
    for token in parsed["added_tokens"]:
        token["content"] = {0: "</s>", 1: "<eos>"}[token["id"]]
    parsed["post_processor"] = None
    parsed["model"]["vocab"] = {
        {0: "</s>", 1: "<eos>"}.get(id_, name): id_
        for name, id_ in parsed["model"]["vocab"].items()
    }
    two = tmp_path / "two.json"
    two.write_text(json.dumps(parsed), "utf-8")
    with pytest.raises(
        ConfigError, match=r"has several candidates: '</s>' or '<eos>'\. Pass the token itsel"
    ):
        load_tokenizer(two).resolve("eos", True)
    with pytest.raises(ConfigError, match=r"has no token of a usual name for it\. Pass the token"):
        load_tokenizer(two).resolve("bos", True)
    (tmp_path / "x.txt").write_text("a")
    store = open_store(tmp_path / "x.txt", backend=Text(two, eos="<eos>"))
    assert load_tokenizer(store).eos_id == 1


def test_messages(tmp_path, tokenizer_file):
    for source, message in (
        ("gpt-17", r"`tokenizer` must be a file .*, but is 'gpt-17'\. .*Nothing is downloaded"),
        (
            tmp_path,
            r"must be a folder of tokens, or with tokenizer\.json .*but is a folder without",
        ),
        (3, r"`tokenizer` must be a path, a name, or an object of .*, but is a int"),
    ):
        with pytest.raises(ConfigError, match=message):
            load_tokenizer(source)
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(ConfigError, match=r"broken\.json' must be valid JSON, but is not \("):
        load_tokenizer(tmp_path / "broken.json")
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"other\.json' must be a tokenizer\.json, but is damag"):
        assert load_tokenizer(tmp_path / "other.json").vocab_size
    tokenizer = load_tokenizer(tokenizer_file)
    for tokens, found in (([600], r"600\.\.600"), ([-100, 3], r"-100\.\.3"), ([0.5], "float64")):
        with pytest.raises(
            ConfigError, match=rf"`tokens` must be token ids in \[0, 600\) .*{found}"
        ):
            tokenizer.decode(tokens)


def test_a_changed_copy_of_a_tokenizer_is_refused(tokenizer_file, tmp_path):
    (tmp_path / "x.txt").write_text("a")
    tokenize(tmp_path / "x.txt", tmp_path / "out", tokenizer=tokenizer_file)
    (copy,) = (tmp_path / "out").glob("tokenizer-*.json")
    moved = (tmp_path / "out").rename(tmp_path / "moved")
    assert load_tokenizer(moved).vocab_size == 600
    copy = moved / copy.name
    copy.write_text(copy.read_text("utf-8") + " ", "utf-8")
    (again := tmp_path / "again").mkdir()
    for path in moved.iterdir():
        (again / path.name).write_bytes(path.read_bytes())
    with pytest.raises(ConfigError, match=r"must be as it was saved, but is changed\. Restore it"):
        load_tokenizer(again)


def test_the_smallest_dtype_that_torch_has():
    assert [choose_dtype(size) for size in (256, 257, 65536, 65537)] == [
        "uint8", "uint16", "uint16", "int32",
    ]  # fmt: skip
    assert np.dtype(choose_dtype(1 << 20)) == np.int32


def test_a_missing_copy_is_named(tmp_path):
    (tmp_path / "a.txt").write_text("x")
    store = tokenize(tmp_path / "a.txt", tmp_path / "out", tokenizer="bytes", progress=False)
    load_saved.cache_clear()
    for path in (tmp_path / "out").glob("tokenizer-*"):
        path.unlink()
    with pytest.raises(ConfigError, match=r"must be as it was saved, but is missing\. Restore it"):
        load_tokenizer(store)


def test_properties_of_a_backend_without_a_tokenizer_name_it():
    with pytest.raises(ConfigError, match=r"Text: `tokenizer` must be given"):
        _ = Text().vocab_size


def test_numbers_that_are_no_integers_are_refused():
    with pytest.raises(ConfigError, match=r"but is float64\. Pass integers"):
        load_tokenizer("bytes").decode([1.5])


def test_a_configuration_of_another_form_is_refused(tmp_path, tokenizer_file):
    shutil.copy(tokenizer_file, tmp_path / "tokenizer.json")
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": {"x": 1}}')
    with pytest.raises(ConfigError, match=r"must be a JSON object with `eos_token` .*KeyError"):
        load_tokenizer(tmp_path)
