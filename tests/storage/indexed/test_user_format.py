"""A format of a user as the engine reads it: what identifies it, and what of it is not believed."""

import pickle
from dataclasses import dataclass, replace

import numpy as np
import pytest

from seqdata.backends import Extents, FileFormat, FileIndex, FormatBackend
from seqdata.errors import ConfigError, CorruptShardError, DataError, DecodeError, PluginError
from seqdata.storage.data_location import DataLocation
from seqdata.storage.indexed.user_format import UserFormat
from seqdata_testing.stores import check_store
from tests.index_files import dump_one, load_one

PLACE = DataLocation(dataset="/d", shard=0, file="a.b")
CONTENT = np.arange(16, dtype=np.uint8)
WHOLE = FileIndex({"x": Extents(np.array([0, 4]), np.array([4, 12]), "<i4")})


@dataclass(frozen=True)
class Plain(FileFormat):
    """Returns what it is made with."""

    found: object = WHOLE
    option: int = 0
    suffixes = (".b", ".c")

    def index(self, file):
        if isinstance(self.found, Exception):
            raise self.found
        return self.found

    def decode_it(self, raw):
        if raw == b"\x00":
            raise KeyError("zero")
        if raw == b"\x01":
            raise ConfigError("one of the suite's own")
        return np.frombuffer(raw, np.uint8) if len(raw) < 4 else np.zeros(2, np.float64)


def index_of(format):
    return UserFormat(format).make_index(CONTENT, "a.b", PLACE)


def with_ids(*ids):
    return Plain(FileIndex(WHOLE.fields, ids))


def test_a_kind_is_named_and_compressed_suffixes_follow_from_its_own():
    file_format = UserFormat(Plain())
    assert file_format.name == "plain"
    assert file_format.suffixes == (".b", ".c")
    assert {".b.gz", ".c.zst"} <= set(file_format.packed)
    assert file_format.is_nested
    assert not file_format.needs_command
    assert file_format.is_header(b"")
    file_format.scan(CONTENT, PLACE)


@pytest.mark.parametrize("suffixes", [".b", ("b",), (".",), (".b", 3), None])
def test_suffixes_that_name_no_files_are_refused(suffixes):
    class Other(Plain):
        pass

    Other.suffixes = suffixes
    with pytest.raises(PluginError, match="Other: `suffixes` must be a tuple of strings"):
        UserFormat(Other())


def test_an_error_of_the_format_itself_says_where(tmp_path):
    with pytest.raises(
        DataError, match=r"^a\.b: is odd\. Try another\n  It is /d shard 0"
    ) as caught:
        index_of(Plain(DataError("a.b: is odd. Try another")))
    assert caught.value.details["dataset"] == "/d"


def test_class_options_and_version_identify_a_format():
    class Newer(Plain):
        version = 2

    class Ordinary:
        """No dataclass: its attributes are its options."""

        suffixes = (".b",)

        def __init__(self, option):
            self.option = option

        def index(self, file):
            return WHOLE

    given = [Plain(), Plain(option=1), Newer(), Ordinary(0), Ordinary(1)]
    assert len({UserFormat(format).identity for format in given}) == 5
    assert UserFormat(Plain()).identity == UserFormat(Plain()).identity
    assert UserFormat(Newer()).identity.endswith(" version 2")


def test_the_index_has_all_that_the_format_said():
    index = index_of(with_ids("p", "q"))
    assert len(index) == 2
    assert [index.id_of(0), index.id_of(1)] == ["p", "q"]
    assert index.members["x"].begins.tolist() == [0, 4]
    assert index.members["x"].sizes.tolist() == [4, 8]
    assert (index.bytes, index.format_identity) == (16, UserFormat(with_ids("p", "q")).identity)
    assert [index_of(Plain()).id_of(number) for number in (0, 1)] == ["a.b/0", "a.b/1"]


@pytest.mark.parametrize(
    ("format", "error", "text"),
    [
        (Plain(None), PluginError, "must return a FileIndex with at least one field, but returned"),
        (Plain(FileIndex({})), PluginError, r"Plain.index\('a.b'\): must return a FileIndex with"),
        (
            with_ids("p", ""),
            DecodeError,
            "sequence 1: must have an id of its own, but has an empty",
        ),
        (with_ids("p", 7), DecodeError, "must have ids that are UTF-8 text, but has others"),
        (with_ids("p", "\ud800"), DecodeError, "must have ids that are UTF-8 text, but has others"),
        (with_ids("p"), PluginError, "the same number of sequences"),
        (
            Plain(FileIndex([WHOLE])),
            PluginError,
            r"^Plain.index\('a.b'\): `fields` must be a mapping of names to Extents, but is 'list'",
        ),
        (
            Plain(FileIndex({"x": 3})),
            PluginError,
            r"^Plain.index\('a.b'\), field 'x': must be an Extents, but is 3\. Report it",
        ),
        (
            Plain(FileIndex({"x": Extents(0, 4, "u1")})),
            PluginError,
            r"^Plain.index\('a.b'\), field 'x': `begins` must be an array of integers, one of each",
        ),
        (Plain(ConfigError("mine")), ConfigError, "^mine$"),
    ],
)
def test_what_it_returns_is_checked(format, error, text):
    with pytest.raises(error, match=text):
        index_of(format)


@pytest.mark.parametrize(
    "head",
    [
        {"dtype": "object", "shape": [], "axis": None, "decoder": None},
        {"dtype": "<i4", "shape": [float("inf")], "axis": None, "decoder": None},
        {"dtype": "<i4", "shape": [], "axis": None, "decoder": "__reduce__"},
        {"dtype": "<i4"},
    ],
)
def test_what_an_index_says_of_fields_is_checked(head):
    index = index_of(Plain())
    index = replace(index, members={"x": replace(index.members["x"], heads=(head,))})
    with pytest.raises(Exception, match=r"must be a valid index, but is invalid \("):
        load_one(dump_one(index), UserFormat(Plain()))


@pytest.mark.parametrize("length", [-1, 2**48 + 1, 2**63 - 1])
def test_lengths_of_an_index_that_cannot_be_true_are_refused(length):
    index = index_of(Plain())
    numbers = np.full(len(index), length)
    index = replace(index, members={"x": replace(index.members["x"], numbers=numbers)})
    with pytest.raises(CorruptShardError, match=r"must be a valid index, but .*: invalid lengths"):
        load_one(dump_one(index), UserFormat(Plain()))


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"\x00", r"cannot be decoded by Decoded.decode_it \(KeyError: 'zero'\). Restore the file"),
        (b"\x01", "^one of the suite's own$"),
        (b"1234", r"must be decoded by Decoded.decode_it to uint8 \[\] per timestep, but is float"),
    ],
)
def test_what_a_decoder_returns_is_checked(content, text, tmp_path):
    class Decoded(Plain):
        def index(self, file):
            every = Extents(
                np.array([0]), np.array([file.size]), "uint8", decoder=self.decode_it,
                lengths=np.array([file.size]),
            )  # fmt: skip
            return FileIndex({"x": every})

    (tmp_path / "a.b").write_bytes(content)
    store = FormatBackend(Decoded())(tmp_path / "a.b", progress=False)
    with pytest.raises((DecodeError, ConfigError), match=text):
        store.read(np.array([[0, 0, 1]]), ["x"])


def doubled(raw):
    return np.frombuffer(raw, np.uint8) * 2


@dataclass(frozen=True)
class Private(FileFormat):
    """Decoded by a method that is not public, and by a function."""

    suffixes = (".b",)
    decode_doubled = staticmethod(doubled)
    decode_by_table = np.arange(3)  # no method, and not to be compared as one

    def index(self, file):
        whole = np.array([0]), np.array([file.size])
        lengths = np.array([file.size])
        return FileIndex(
            {
                "x": Extents(*whole, "uint8", decoder=self._decode, lengths=lengths),
                "y": Extents(*whole, "uint8", decoder=doubled, lengths=lengths),
            }
        )

    def _decode(self, raw):
        return np.frombuffer(raw, np.uint8)[::-1]


def test_a_decoder_may_be_private_or_a_function_of_the_class(tmp_path, monkeypatch):
    (tmp_path / "a.b").write_bytes(b"\1\2\3")
    rows = [{"x": np.uint8([3, 2, 1]), "y": np.uint8([2, 4, 6])}]
    check_store(FormatBackend(Private())(tmp_path, progress=False), rows)
    monkeypatch.setattr(Private, "index", None)  # from here on by the index that was kept
    store = FormatBackend(Private())(tmp_path, progress=False)
    check_store(store, rows)
    check_store(pickle.loads(pickle.dumps(store)), rows)


@pytest.mark.parametrize("decoder", [3, "decode_it", np.arange(2), len, lambda raw: raw])
def test_another_decoder_is_answered_with_how_to_name_it(decoder):
    @dataclass(frozen=True)
    class Other(Plain):
        decode_level: int = 3  # an option, not a method

    extents = replace(WHOLE.fields["x"], decoder=decoder)
    text = (
        r"^Other.index\('a.b'\), field 'x': `decoder` must be a method of the format whose name "
        r"begins with 'decode' or '_decode', but is .*\. Report it .*; a function becomes one "
        r"by `decode_x = staticmethod\(function\)` in the class"
    )
    with pytest.raises(PluginError, match=text):
        index_of(Other(FileIndex({"x": extents})))


def test_a_shape_of_numpy_integers_is_kept():
    index = index_of(Plain(FileIndex({"x": replace(WHOLE.fields["x"], shape=(np.int64(1),))})))
    kept = load_one(dump_one(index), UserFormat(Plain()))
    assert kept.members["x"].heads[0]["shape"] == [1]
