"""A format of sixty lines has all that a store has: windows, workers, verify, doctor, views."""

import pickle
import shutil
from dataclasses import dataclass

import numpy as np
import pytest
from click.testing import CliRunner

from seqdata import Bucketed, Loader, open_store
from seqdata.backends import Extents, FileFormat, FileIndex, FormatBackend
from seqdata.cli.app import app
from seqdata.errors import (
    ConfigError,
    CorruptSampleError,
    CorruptShardError,
    DataError,
    DecodeError,
    FingerprintMismatch,
    MissingShardError,
    PluginError,
)
from seqdata_testing.contract import StoreContract
from seqdata_testing.stores import check_store
from tests.index_files import forget_index
from tests.storage.indexed.records import Records, sequences, write_file, write_files

ROWS = sequences()


class TestRecords(StoreContract):
    sequences = tuple(ROWS)
    methods = ("fork", "spawn")

    def make(self, folder, sequences):
        write_files(folder / "data", sequences)
        return open_store(folder / "data", backend=Records())


@pytest.fixture
def folder(tmp_path):
    return write_files(tmp_path / "data", ROWS)


def opened(location, **options):
    return FormatBackend(Records())(location, progress=False, **options)


@pytest.mark.parametrize("backend", [Records(), Records, FormatBackend(Records())])
def test_a_format_its_class_or_a_backend_is_given_as_an_object(folder, backend):
    check_store(open_store(folder, backend=backend), ROWS)


@pytest.mark.parametrize(
    "form",
    [
        "{0}/part-0.recs::{0}/more/part-1.recs::{0}/more/part-2.recs",
        "{0}/**/*.recs",
        "{0}/{{part-0,more/part-1,more/part-{{2..2}}}}.recs",
    ],
)
def test_files_globs_and_braces_are_locations(folder, form):
    store = opened(form.format(folder))
    names = [store.keys([number])[0] for number in range(len(store))]
    assert sorted(names) == sorted(one["name"] for one in ROWS)
    assert len(store.shards) == 3


def test_the_index_is_kept_next_to_the_files_and_read_again(folder, monkeypatch):
    first = opened(folder)
    kept = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.idx"))
    assert kept == ["seqdata-index/index.idx"]
    monkeypatch.setattr(Records, "index", None)  # it is not asked again
    again = opened(folder)
    assert again.fingerprint == first.fingerprint
    check_store(again, ROWS)


def test_a_format_made_with_other_options_has_an_index_of_its_own(folder):
    assert "note" in opened(folder).fields
    store = FormatBackend(Records(with_notes=False))(folder)
    assert list(store.fields) == ["frames", "label", "name"]


def test_a_store_is_reopened_and_compared_in_another_process(folder):
    store = pickle.loads(pickle.dumps(opened(folder)))
    check_store(store, ROWS)
    sent = pickle.dumps(store)
    changed = write_file(folder / "part-0.recs", sequences(16, seed=1))
    forget_index(changed, folder)
    opened(changed)
    opened(folder)
    with pytest.raises(FingerprintMismatch, match="must be the data that was opened"):
        pickle.loads(sent)


def test_batches_come_from_worker_processes(folder):
    def drawn(workers):
        loader = Loader(
            opened(folder), Bucketed(4), fields=["frames", "label"], num_workers=workers
        )
        found = {number: row for batch in loader for number, row in rows(batch)}
        loader.shutdown()
        return found

    def rows(batch):
        frames, labels = batch.data["frames"], batch.data["label"]
        for at, number in enumerate(batch.ids.tolist()):
            yield number, (frames[at, : batch.lengths[at]].tolist(), int(labels[at]))

    found = drawn(0)
    assert found == drawn(2)
    assert found[7] == (ROWS[7]["frames"].tolist(), int(ROWS[7]["label"]))


def extent(folder, number, name):
    """Return the file and bytes of a value of the first file."""
    store = opened(folder)
    members = store.manifest[0].members[name]
    begin = int(members.begins[number])
    return folder / "part-0.recs", begin, begin + int(members.sizes[number])


def flip(path, at):
    raw = bytearray(path.read_bytes())
    raw[at] ^= 1
    path.write_bytes(raw)


@pytest.mark.parametrize("name", ["frames", "label", "name", "note"])
def test_a_flipped_bit_is_named_by_file_sequence_field_and_bytes(folder, name):
    path, begin, end = extent(folder, 3, name)
    flip(path, end - 1)
    text = (
        rf'shard 0 \("part-0.recs"\), sequence 3 .*field "{name}", bytes {begin}..{end}: must '
        rf"have crc32"
    )
    store = opened(folder)
    axis = "letters" if name == "note" else "time"
    length = len(ROWS[3]["note" if name == "note" else "frames"])
    spans = np.array([[3, 0, length]])
    for _ in range(2):
        with pytest.raises(CorruptSampleError, match=text):
            store.read(spans, [name], axis=axis)[name][0]


def test_only_the_blocks_of_a_window_are_verified(folder):
    path, begin, _ = extent(folder, 5, "frames")
    flip(path, begin + 100_000)
    store = opened(folder)
    assert np.array_equal(
        store.read(np.array([[5, 0, 50]]), ["frames"])["frames"][0], ROWS[5]["frames"][:50]
    )
    with pytest.raises(CorruptSampleError):
        store.read(np.array([[5, 8_300, 8_400]]), ["frames"])["frames"][0]


def test_verify_and_stats_and_doctor_know_it(folder, tmp_path):
    backend = "tests.storage.indexed.records:Records"
    del backend
    store = opened(folder)
    assert "40 sequences" in store.title
    total, reports = FormatBackend(Records()).audit(
        str(folder), shard=None, repair=False, on_progress=lambda _: None
    )
    found = list(reports)
    assert total == sum(path.stat().st_size for path in folder.rglob("*.recs"))
    assert [one.damages for one in found] == [0, 0, 0]
    path, begin, _ = extent(folder, 3, "frames")
    flip(path, begin)
    _, reports = FormatBackend(Records()).audit(
        str(folder), shard=0, repair=False, on_progress=lambda _: None
    )
    (report,) = reports
    assert report.damages == 1
    assert 'sequence 3 ("s0-003"), field "frames"' in report.findings[0].text
    assert report.by == "checksums"


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), CorruptShardError, "must have"),
        (lambda path: path.unlink(), MissingShardError, "is not there"),
        (lambda path: flip(path, 20), FingerprintMismatch, "it is another"),
    ],
)
def test_a_file_that_is_not_the_one_that_was_indexed_is_refused(folder, change, error, text):
    opened(folder)
    change(folder / "more" / "part-1.recs")
    with pytest.raises(error, match=text):
        opened(folder)


@pytest.mark.parametrize("content", [b"", b"RECS", b"RECT\0\0\0\0", b"RECS\1\0\0\0"])
def test_what_a_format_cannot_read_is_a_damage_that_names_the_file(tmp_path, content):
    (tmp_path / "a.recs").write_bytes(content)
    with pytest.raises(DataError, match=r"a\.recs.*cannot be read by Records"):
        opened(tmp_path / "a.recs")


def test_files_of_other_fields_do_not_go_together(folder):
    class Other(Records):
        def index(self, file):
            found = super().index(file)
            fields = dict(found.fields)
            if file.name != "part-0.recs":
                fields.pop("note")
            return type(found)(fields, found.ids)

    with pytest.raises(
        DecodeError, match=r"must have the fields frames, .*, but has frames, label, name"
    ) as caught:
        FormatBackend(Other())(folder)
    assert "seqdata verify" not in str(caught.value)  # it would find nothing wrong


def test_files_may_be_very_small_and_hold_nothing(tmp_path):
    write_file(tmp_path / "a.recs", [])
    write_file(tmp_path / "b.recs", ROWS[:1])
    for _ in range(2):
        check_store(opened(tmp_path), ROWS[:1])
    with pytest.raises(DataError, match="must hold at least one sequence, but holds none"):
        opened(tmp_path / "a.recs")


def test_a_folder_without_such_files_says_which_it_looked_for(tmp_path):
    with pytest.raises(ConfigError, match=r"must hold at least one file that ends with '\.recs'"):
        opened(tmp_path)


def test_backends_must_be_a_name_a_format_or_a_function(folder):
    with pytest.raises(ConfigError, match="must be a name, a FileFormat or a function that opens"):
        open_store(folder, backend=7)


def test_the_index_is_made_by_the_command_where_a_package_claims_the_suffix(
    folder, claimed, monkeypatch
):
    runner = CliRunner()
    done = runner.invoke(app, ["index", str(folder), "--workers", "0"])
    assert done.exit_code == 0, done.output
    assert "indexed 3 of 3 shards, 40 sequences" in done.output
    assert "every byte is as written" in runner.invoke(app, ["verify", str(folder)]).output
    assert runner.invoke(app, ["stats", str(folder / "part-0.recs")]).exit_code == 0
    check_store(open_store(folder), ROWS)
    check_store(open_store(f"{folder}/*.recs"), ROWS[:16])


def test_two_packages_that_claim_files_of_one_folder_are_named(folder, claimed):
    claimed("other", ".other")
    for number in range(50):  # a file system lists them in an order of its own
        (folder / f"x{number:02}.other").write_bytes(b"")
    with pytest.raises(
        Exception, match=r"'more/part-1.recs' \(backend 'records'\) and 'x00.other'"
    ):
        open_store(folder)
    shutil.rmtree(folder / "more")


@dataclass(frozen=True)
class Tokens(FileFormat):
    """Two bytes a token; documents end where a file next to it says."""

    suffixes = (".tok",)

    def index(self, file):
        raw = file.sibling(file.name.rpartition("/")[2].replace(".tok", ".ends")).read(0, 1 << 20)
        ends = np.frombuffer(raw, "<i8") * 2
        return FileIndex({"tokens": Extents(np.append(0, ends[:-1]), ends, "<u2")})


@pytest.fixture
def tokens(tmp_path):
    np.arange(100, dtype="<u2").tofile(tmp_path / "a.tok")
    np.array([10, 10, 60, 100]).astype("<i8").tofile(tmp_path / "a.ends")
    return tmp_path / "a.tok"


def test_what_lies_next_to_a_file_belongs_to_its_index(tokens):
    store = open_store(tokens, backend=Tokens())
    assert store.lengths.tolist() == [10, 0, 50, 40]
    assert store.keys([0, 3]) == ["a.tok/0", "a.tok/3"]
    check_store(store, [{"tokens": np.arange(*one, dtype=np.uint16)} for one in
                        [(0, 10), (10, 10), (10, 60), (60, 100)]])  # fmt: skip
    sent = pickle.dumps(store)
    np.array([20, 30, 40, 100]).astype("<i8").tofile(tokens.with_name("a.ends"))
    again = open_store(tokens, backend=Tokens())
    assert again.lengths.tolist() == [20, 10, 10, 60]
    assert again.fingerprint != store.fingerprint
    with pytest.raises(FingerprintMismatch):
        pickle.loads(sent)


def test_indexing_makes_the_index_of_a_changed_neighbour_again(tokens):
    backend = FormatBackend(Tokens())
    assert backend.build_index(tokens)["sequences"] == 4
    np.array([20, 100]).astype("<i8").tofile(tokens.with_name("a.ends"))
    facts = backend.build_index(tokens)
    assert (facts["indexed"], facts["sequences"]) == (1, 2)
    assert backend.build_index(tokens)["indexed"] == 0


def test_a_file_without_its_neighbour_is_refused(tokens):
    tokens.with_name("a.ends").unlink()
    with pytest.raises(MissingShardError, match=r'sibling of a.tok \("a.ends"\): is not there'):
        open_store(tokens, backend=Tokens())


def test_a_neighbour_that_is_lost_later_is_an_error_that_says_what_to_run(tokens):
    open_store(tokens, backend=Tokens())
    tokens.with_name("a.ends").rename(tokens.with_name("b.ends"))
    text = r'"a\.ends"\): existed when \'a\.tok\' was indexed, but is missing\. Restore it, or, '
    with pytest.raises(FingerprintMismatch, match=text):
        open_store(tokens, backend=Tokens())


def field_of(**changes):
    """Return a format whose only field is wrong."""
    given = {"begins": [0, 4], "ends": [4, 8], "dtype": "<i4", **changes}
    given |= {name: np.array(given[name]) for name in ("begins", "ends")}

    class Wrong(Tokens):
        def index(self, file):
            return FileIndex({"x": Extents(**given)})

    return Wrong()


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"dtype": "object"}, "`dtype` must be one of bool, int8"),
        ({"dtype": "nonsense"}, "`dtype` must be one of"),
        ({"ends": [4, 3]}, r"must begin at 0 or later, .*, but is '4..3 of sequence 1"),
        ({"ends": [4]}, "`begins` and `ends` must be integers"),
        ({"begins": [0.0, 4.0]}, "`begins` and `ends` must be integers"),
        ({"ends": [4, 7]}, "must have a multiple of 4 bytes"),
        ({"axis": None, "ends": [4, 12]}, "must have 4 bytes"),
        ({"lengths": np.array([1, 2])}, "for each timestep of `lengths`"),
        ({"lengths": np.array([1])}, "`lengths` must be integers"),
        ({"shape": (0,)}, "`shape` must have at least one number"),
        ({"dtype": "str"}, "strings must have `axis=None`"),
        ({"values": np.zeros(2)}, r"`values` must be \(2, \*shape\), of `axis=None`"),
        ({"decoder": len}, "`decoder` must be a method of the format whose name begins with"),
    ],
)
def test_what_a_format_says_is_compared_before_it_is_believed(tokens, changes, text):
    with pytest.raises(PluginError, match=text):
        open_store(tokens, backend=field_of(**changes))


def test_a_file_that_ends_before_its_values_is_damaged_and_not_the_format(tokens):
    with pytest.raises(CorruptShardError, match=r"sequence 1 must end inside the 200 bytes"):
        open_store(tokens, backend=field_of(ends=[4, 999]))


def test_other_byte_orders_and_empty_values_are_read(tmp_path):
    class Swapped(Tokens):
        def index(self, file):
            nothing = np.full(2, -1)
            fields = {
                "x": Extents(np.array([1, 9]), np.array([9, 13]), ">i4"),
                "y": Extents(nothing, nothing, "int8", axis=None, values=np.array([3, 4])),
            }
            return FileIndex(fields, ["a", "b"])

    (tmp_path / "a.tok").write_bytes(b"?" + np.array([1, 2, 3], ">i4").tobytes())
    store = open_store(tmp_path / "a.tok", backend=FormatBackend(Swapped()))
    rows = [{"x": np.array([1, 2], np.int32), "y": np.int8(3)}, {"x": np.int32([3]), "y": 4}]
    columns = store.read(np.array([[0, 1, 2], [1, 0, 1]]), ["x", "y"])
    assert [columns["x"][i].tolist() for i in (0, 1)] == [[2], [3]]
    assert [int(columns["y"][i][0]) for i in (0, 1)] == [int(one["y"]) for one in rows]
