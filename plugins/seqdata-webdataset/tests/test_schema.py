"""What members hold: by extension, by the user's schema; decoded, or refused with the place."""

import io
import json
import sys
import wave
import zipfile

import numpy as np
import pytest
from seqdata_webdataset import open_webdataset
from seqdata_webdataset.decoders import MAX_MEMBER_BYTES
from seqdata_webdataset.schema import Extension, infer_specs

from seqdata.errors import ConfigError, CorruptSampleError, DecodeError, LimitError
from seqdata.protocols import Field
from seqdata.storage.data_location import DataLocation
from seqdata.storage.digest_trailer import add_digest
from seqdata_testing.stores import check_store

X = np.arange(6, dtype=np.float32)


def wav(frames, channels=1, width=2):
    content = io.BytesIO()
    with wave.open(content, "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(width)
        file.setframerate(8000)
        file.writeframes(frames)
    return content.getvalue()


def npz(**arrays):
    content = io.BytesIO()
    np.savez_compressed(content, **arrays)
    return content.getvalue()


def members(npy, *extra):
    """Three samples with an array ``npy``, and extensions with a value for each."""
    found = []
    for number in range(3):
        found.append((f"u{number}.npy", npy(X[: 2 * number])))
        found += [(f"u{number}.{name}", values[number]) for name, values in extra]
    return found


def arrays(values, name):
    return [{"npy": X[: 2 * number], name: one} for number, one in enumerate(values)]


RAW = [np.arange(n, dtype="<u2").tobytes() for n in (0, 3, 50_000)]


def test_raw_members_are_read_in_place_by_the_schema(npy, opened):
    store = opened(members(npy, ("bin", RAW)), schema={"bin": "uint16"})
    assert store.fields["bin"] == Field("uint16", (), "bin")
    check_store(store, arrays([np.frombuffer(one, "<u2") for one in RAW], "bin"))


def test_raw_members_of_a_shape_are_read_by_a_field(npy, opened):
    field = Field("uint8", (2,), "frames")
    store = opened(members(npy, ("bin", RAW)), schema={"bin": field})
    assert store.fields["bin"] == field
    check_store(store, arrays([np.frombuffer(one, "u1").reshape(-1, 2) for one in RAW], "bin"))


def test_raw_members_that_do_not_fit_are_named(npy, opened):
    odd = [b"", b"abc", b"ab"]
    with pytest.raises(
        DecodeError, match=r'"u1"\), field "bin".*must have a multiple of .*, but has 3'
    ):
        opened(members(npy, ("bin", odd)), schema={"bin": "uint16"})


SOUND = [np.arange(n, dtype="<i2") for n in (0, 5, 40_000)]


def test_sound_is_read_in_place(npy, opened):
    store = opened(members(npy, ("wav", [wav(one.tobytes()) for one in SOUND])))
    assert store.fields["wav"] == Field("int16", (), "wav")
    check_store(store, arrays(SOUND, "wav"))


def test_sound_of_several_channels_and_three_bytes_is_read(npy, opened):
    raw = [np.arange(6 * n, dtype="u1") for n in (0, 3, 20)]
    store = opened(members(npy, ("wav", [wav(one.tobytes(), 2, 3) for one in raw])))
    wide = [np.pad(one.reshape(-1, 3), ((0, 0), (1, 0))).reshape(-1).view("<i4") for one in raw]
    check_store(store, arrays([one.reshape(-1, 2) for one in wide], "wav"))


def test_tags_behind_sound_are_not_samples(npy, opened):
    tags = b"LIST\x1a\0\0\0INFOISFT\x0e\0\0\0Lavf60.16.100\0"
    each = [wav(one.tobytes()) + tags for one in SOUND]
    each = [one[:4] + (len(one) - 8).to_bytes(4, "little") + one[8:] for one in each]
    check_store(opened(members(npy, ("wav", each))), arrays(SOUND, "wav"))


def test_sound_whose_header_says_too_few_samples_is_refused(npy, opened):
    short = wav(SOUND[2].tobytes())
    members_ = members(npy, ("wav", [short[:40] + b"\x08\0\0\0" + short[44:]] * 3))
    with pytest.raises(DecodeError, match="after its samples, which end at byte 52 of"):
        opened(members_)


def test_sound_that_does_not_lie_even_is_copied(npy, opened):
    raw = wav(bytes(8), width=4)
    moved = raw[:36] + b"junk\x02\0\0\0ab" + raw[36:]  # samples of 4 bytes begin at 54
    store = opened(members(npy, ("wav", [moved] * 3)))
    check_store(store, arrays([np.zeros(2, "<i4")] * 3, "wav"))


def test_arrays_in_another_order_are_decoded(npy, opened):
    columns = [
        np.asfortranarray(np.arange(12, dtype="i4").reshape(n, -1)[:, :3]) for n in (2, 3, 4)
    ]
    big = [np.arange(n, dtype=">i4") for n in (1, 2, 3)]
    store = opened(members(npy, ("c.npy", list(map(npy, columns))), ("b.npy", list(map(npy, big)))))
    sequences = [
        {"npy": X[: 2 * i], "c.npy": columns[i], "b.npy": big[i].astype("i4")} for i in range(3)
    ]
    check_store(store, sequences)


def test_tables_of_numbers_are_decoded(npy, opened):
    tables = [b"", b"1,2.5\n3,-4e2\n", b"0, 1\r\n2,nan\r\n4,5"]
    values = [np.zeros((0, 2)), [[1, 2.5], [3, -400]], [[0, 1], [2, np.nan], [4, 5]]]
    field = Field("float64", (2,), "rows")
    store = opened(members(npy, ("csv", tables)), schema={"csv": field})
    assert store.fields["csv"] == field
    check_store(store, arrays([np.array(rows, "f8") for rows in values], "csv"))
    store = opened(members(npy, ("csv", [b"1\n2", b"3", b""])), schema={"csv": "int16"})
    check_store(store, arrays([np.array(rows, "i2") for rows in ([1, 2], [3], [])], "csv"))
    store = opened(members(npy, ("csv", [b"1,2"] * 3)), schema={"csv": Field("int64", (2,), None)})
    check_store(store, arrays([np.array([1, 2])] * 3, "csv"))


def test_an_empty_list_has_no_timesteps(npy, opened):
    lists = [b"[]", b"[[1, 2.5]]", b"[]"]
    for dtype in ("float32", "float64"):
        store = opened(members(npy, ("json", lists)), schema={"json": Field(dtype, (2,))})
        assert store.lengths.tolist() == [0, 1, 0]


def test_archives_and_json_have_parts(npy, opened):
    rows = [{"y": n, "t": list(range(n)), "w": [0.5, n]} for n in range(3)]
    store = opened(
        members(
            npy,
            ("npz", [npz(a=np.arange(2 * n, dtype="i2"), b=np.float32(n)) for n in range(3)]),
            ("json", [json.dumps(one).encode() for one in rows]),
        ),
        schema={
            "npz": {"a": "int16", "b": Field("float32", (), None)},
            "json": {"y": int, "t": "uint8", "w": Field("float64", (2,), None)},
        },
    )
    sequences = [
        {
            "npy": X[: 2 * n], "npz.a": np.arange(2 * n, dtype="i2"), "npz.b": np.float32(n),
            "json.y": np.int64(n), "json.t": np.arange(n, dtype="u1"),
            "json.w": np.array([0.5, n]),
        }
        for n in range(3)
    ]  # fmt: skip
    check_store(store, sequences)


def test_lengths_that_must_be_decoded_are_counted_once(npy, opened, folder, monkeypatch, tar):
    raw = [(f"u{n}.json", json.dumps(list(range(n))).encode()) for n in range(3)]
    path = tar(raw)
    open_webdataset(path, index="build", schema={"json": "int64"}, progress=False)
    (kept,) = (path.parent / "seqdata-index").glob("lengths-*.npy")
    assert np.load(kept).tolist() == [0, 1, 2]
    forged = io.BytesIO()
    np.save(forged, np.array([0, 1, 5]))
    kept.write_bytes(add_digest(forged.getvalue(), kept.name))  # believed: it is not counted again
    store = open_webdataset(path, schema={"json": "int64"})
    with pytest.raises(
        CorruptSampleError, match="must have 5 timesteps, as counted before, but has 2: the file"
    ):
        store.read(np.array([[2, 0, 5]]), ["json"])
    kept.write_bytes(b"x")
    assert open_webdataset(path, schema={"json": "int64"}).lengths.tolist() == [0, 1, 2]


def test_numbers_may_be_texts(npy, opened):
    store = opened(
        members(npy, ("txt", [b"1.5", b"2", b" -3e1\n"]), ("v.txt", [b"1 2", b"3 4", b"5 6"])),
        schema={"txt": float, "v.txt": Field("int32", (2,), None)},
    )
    rows = [(1.5, [1, 2]), (2.0, [3, 4]), (-30.0, [5, 6])]
    check_store(
        store,
        [
            {"npy": X[: 2 * i], "txt": np.float64(one), "v.txt": np.array(two, "i4")}
            for i, (one, two) in enumerate(rows)
        ],
    )


def test_classes_may_be_texts_and_extensions_left_out(npy, opened):
    words = [b"cat", b"dog", b"\xc3\xa9"]
    store = opened(members(npy, ("cls", words), ("bin", RAW)), schema={"cls": str, "bin": None})
    check_store(store, arrays(["cat", "dog", "é"], "cls"))
    assert opened(members(npy, ("7.cls", [b"1", b"2", b"3"])), schema={"7.cls": ..., "npy": ...})


def test_an_array_of_one_shape_may_be_a_vector(npy, opened):
    vectors = [np.arange(4) + n for n in range(3)]
    schema = {"v.npy": Field("int64", (4,), None)}
    store = opened(members(npy, ("v.npy", list(map(npy, vectors)))), schema=schema)
    check_store(store, arrays(vectors, "v.npy"))
    with pytest.raises(DecodeError, match=r"field \"v.npy\".*must have 32 bytes for int64"):
        opened(members(npy, ("v.npy", [npy(np.arange(2))] * 3)), schema=schema)


def test_flac_is_decoded_as_a_whole(npy, opened):
    soundfile = pytest.importorskip("soundfile")
    sound = [np.arange(n, dtype="i2") for n in (64, 100, 5000)]
    raw = []
    for one in sound:
        content = io.BytesIO()
        soundfile.write(content, one, 8000, format="FLAC", subtype="PCM_16")
        raw.append(content.getvalue())
    store = opened(members(npy, ("flac", raw)), schema={"flac": "int16"})
    check_store(store, arrays(sound, "flac"))
    check_store(opened(members(npy, ("flac", raw))), arrays(raw, "flac"))
    cut = [*raw[:2], raw[2][:60]]
    store = opened(members(npy, ("flac", cut)), schema={"flac": "int16"})
    with pytest.raises(DecodeError):
        store.read(np.array([[2, 0, 5000]]), ["flac"], axis="flac")


def test_flac_needs_its_package(npy, opened, monkeypatch):
    monkeypatch.setitem(sys.modules, "soundfile", None)
    packed = (1 << 41) | (15 << 36) | 2
    raw = b"fLaC" + b"\0\0\0\x22" + bytes(10) + packed.to_bytes(8, "big") + bytes(16)
    store = opened(members(npy, ("flac", [raw] * 3)), schema={"flac": "int16"})
    with pytest.raises(DecodeError, match=r"pip install 'seqdata-webdataset\[flac\]'`"):
        store.read(np.array([[0, 0, 1]]), ["flac"])


REFUSED = [
    ({"mp3": bytes}, "no extension 'mp3'. Choose one of bin, cls, json, npy, npz, txt, x.npy"),
    (
        {"cls": {"a": int}},
        "`schema` of 'cls' must be one type, but is a dict of parts, which only json, jsn, npz",
    ),
    ({"npz": "float32"}, "must name arrays of the archive"),
    (
        {"npy": "int32"},
        "must be float32 \\[\\] per timestep, like its members, but is int32 \\[\\]",
    ),
    (
        {"npy": float},
        "must be float32 .* per timestep, like its members, but is .* per sequence\\.",
    ),
    ({"x.npy": "float64"}, "must be float64 \\[\\] per sequence, like its members"),
    (
        {"bin": "complex64"},
        "must be a dtype, int, float, bool, str, bytes, a Field.*, but is 'complex64'",
    ),
    ({"bin": Field("complex64")}, "must have one of the dtypes bool, int8.*, but has 'complex64'"),
    ({"bin": "no such"}, "must be a dtype.*, but is 'no such'"),
    (
        {"npy": None},
        "at least one field must run along an axis, but none of .* does. Name one in `schema`",
    ),
]


@pytest.mark.parametrize(("schema", "what"), REFUSED, ids=range(len(REFUSED)))
def test_a_schema_that_does_not_fit_is_refused(npy, opened, schema, what):
    extra = [
        ("cls", [b"1"] * 3), ("bin", RAW), ("npz", [npz(a=X)] * 3), ("json", [b"1"] * 3),
        ("txt", [b""] * 3), ("x.npy", [npy(np.float64(1))] * 3),
    ]  # fmt: skip
    with pytest.raises(ConfigError, match=what):
        opened(members(npy, *extra), schema=schema)


def test_members_must_be_alike(npy, opened):
    with pytest.raises(
        DecodeError,
        match=(
            r'"a.npy" must hold timesteps of one dtype and shape, but hold int64 \[\] and '
            r"float64 \[2\]"
        ),
    ):
        opened(members(npy, ("a.npy", [npy(np.arange(3)), npy(np.ones((2, 2))), npy(X)])))


def test_arrays_and_numbers_are_told_apart(npy, opened):
    with pytest.raises(DecodeError, match=r"but hold float32 numbers and float32 \[\]"):
        opened(members(npy, ("a.npy", [npy(np.float32(1)), npy(X), npy(X)])))


def test_the_place_of_a_bad_header_is_that_of_its_reason(npy, opened):
    bad = [b"abc", npy(X), npy(X.astype("c8"))]
    with pytest.raises(DecodeError, match=r'\("u0"\), field "a.npy".* is not a .npy file'):
        opened(members(npy, ("a.npy", bad)))


def test_a_schema_of_numbers_per_sequence_names_the_unit(npy, opened):
    found = ("a.npy", [npy(np.float32(1))] * 3)
    message = r"must be float32 \[\] per sequence, like its members, but is .* per timestep\."
    with pytest.raises(ConfigError, match=message):
        opened(members(npy, found), schema={"a.npy": "float32"})


def test_a_schema_that_leaves_out_everything_is_refused(npy, opened):
    with pytest.raises(ConfigError, match="but `schema` leaves out every extension"):
        opened(members(npy), schema={"npy": None})


def test_members_that_are_no_arrays_are_named(npy, opened):
    with pytest.raises(
        DecodeError, match=r'sequence 1 \("u1"\), field "a.npy".* is not a .npy file'
    ):
        opened(members(npy, ("a.npy", [npy(X), b"abc", npy(X)])))


def test_classes_that_are_no_numbers_are_said(npy, opened):
    with pytest.raises(
        DecodeError,
        match=(
            r'"cls" must be integers, but are not. Read them as '
            r"strings"
        ),
    ):
        opened(members(npy, ("cls", [b"1", b"cat", b"3"])))


def test_a_member_that_is_missing_is_named(npy, opened):
    found = members(npy, ("cls", [b"1", b"2", b"3"]))
    with pytest.raises(
        DecodeError, match=r'1 \("u1"\): must have a value of field "cls" as the others, but 1 seq'
    ):
        opened([one for one in found if one[0] != "u1.cls"])


def test_fields_of_one_axis_must_be_as_long(npy, opened):
    schema = {"npy": Field("float32", (), "time"), "bin": Field("uint8", (), "time")}
    with pytest.raises(DecodeError, match='field "bin": must have 0 timesteps like another'):
        opened(members(npy, ("bin", [b"ab", b"ab", b"abcd"])), schema=schema)


def json_of(*values):
    return ("json", [json.dumps(value).encode() for value in values])


WRONG = [
    (json_of([1], "cat", [2]), {"json": "int64"}, "holds <U3 values that int64 cannot represent"),
    (json_of([1], [1.5], [2]), {"json": "int64"}, "holds float64 values that int64"),
    (json_of([1], [300], [2]), {"json": "uint8"}, "holds int64 values that uint8"),
    (json_of([1], [[1], [1, 2]], [2]), {"json": "int64"}, "holds lists of different lengths"),
    (json_of([1], [[1], [2]], [2]), {"json": "int64"}, r"has shape \[2, 1\], not \[T\]"),
    (json_of(1, {}, 1), {"json": {"y": int}}, "has no value 'y'"),
    (("json", [b"1", b"{", b"1"]), {"json": int}, "cannot be read as JSON"),
    (("txt", [b"1", b"x", b"1"]), {"txt": int}, r"cannot be read as text of one integer \(b'x'\)"),
    (("csv", [b"1,2", b"1,x", b""]), {"csv": Field("float64", (2,))}, "cannot be read as CSV"),
    (("csv", [b"1,2", b"1,2\n3", b""]), {"csv": Field("float64", (2,))}, "of different lengths"),
    (("csv", [b"1,2", b"1", b""]), {"csv": Field("float64", (2,))}, r"has shape \[1, 1\], not"),
    (("json", [b"[[], []]"] * 3), {"json": Field("float32", (2,))}, r"has shape \[2, 0\], not"),
    (("npz", [npz(a=X)] * 3), {"npz": {"b": "float32"}}, "has no array 'b'"),
    (("npz", [b"PK"] * 3), {"npz": {"b": "float32"}}, "cannot be read as .npz"),
]


@pytest.mark.parametrize(("extra", "schema", "what"), WRONG, ids=range(len(WRONG)))
def test_values_that_are_not_as_the_schema_says_are_named(npy, opened, extra, schema, what):
    def read():
        store = opened(members(npy, extra), schema=schema)
        name = next(name for name in store.fields if name != "npy")
        for number in range(3):
            store.read(np.array([[number, 0, 0]]), [name])

    with pytest.raises(DecodeError, match=what) as caught:
        read()
    assert caught.value.details["offset"] > 0
    assert "Restore the shard, or correct `schema`" in str(caught.value)


def archive(name, content):
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w", zipfile.ZIP_DEFLATED) as made:
        made.writestr(name, content, compresslevel=1)
    return raw.getvalue()


def test_an_array_in_an_archive_that_is_none_is_named(npy, opened):
    with pytest.raises(DecodeError, match=r"array 'a' is not a .npy file"):
        opened(members(npy, ("npz", [archive("a.npy", b"")] * 3)), schema={"npz": {"a": "int8"}})


@pytest.mark.slow
def test_an_archive_that_would_become_very_large_is_refused(npy, opened):
    bomb = archive("a.npy", npy(np.zeros(260 << 20, dtype=np.int8)))
    with pytest.raises(LimitError, match=r"must become at most .* bytes that become .* in memory"):
        opened(members(npy, ("npz", [bomb] * 3)), schema={"npz": {"a": "int8"}})


def test_a_text_that_is_none_is_named(npy, opened):
    store = opened(members(npy, ("txt", [b"a", b"\xff", b"c"])))
    with pytest.raises(
        DecodeError, match=r'"u1"\), field "txt".* must be UTF-8 text.*Read it as byte'
    ):
        store.read(np.array([[1, 0, 0]]), ["txt"])


def test_members_are_capped():
    assert MAX_MEMBER_BYTES == 2 << 30


def test_an_index_of_a_release_that_read_no_headers_is_refused_with_the_remedy():
    old = Extension("npy", (), False, DataLocation(dataset="x.tar", key="a", field="npy"))
    with pytest.raises(DecodeError, match=r"must have headers .*index --rebuild`"):
        infer_specs([old], None, "x.tar")
