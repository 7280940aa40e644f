"""The rows of all ranks become one store, or an error that names what is missing or there twice."""

import numpy as np
import pytest

from seqdata.errors import ConfigError, CorruptShardError, IncompleteEpochError, PlanError
from seqdata.lightning.predictions.merge import PredictionTarget, write_predictions
from seqdata.lightning.predictions.outputs import PredictedRows, PredictionField
from seqdata.lightning.predictions.spill import SpillWriter, merge_spills
from seqdata.storage.memory import MemoryStore
from tests.lightning.predictions.predicting import read

STORE = MemoryStore.from_sequences([{"id": f"s{n}", "x": np.zeros((4, 1))} for n in range(3)])
STEPS = PredictionField("float64", (), "timestep")


def rows_at(*places, field=STEPS):
    """Return rows whose value at each timestep says where it is from."""
    made = np.array(places, dtype=np.int64)
    values = [n * 100.0 + np.arange(start, stop) for n, start, stop in places]
    return PredictedRows(made, {"p": field}, {"p": np.concatenate(values)}, ())


def spilled(folder, *ranks):
    found = []
    for rank, batches in enumerate(ranks):
        spill = SpillWriter(folder, 0, rank)
        for number, batch in enumerate(batches):
            spill.add(batch, f"in batch {number}")
        found.append(spill.close())
    return found


def merge(folder, *ranks, rows, spans=False, partial=False):
    target = PredictionTarget(STORE, folder / "out", "time", rows, spans, partial, False)
    write_predictions(merge_spills(folder, spilled(folder, *ranks)), target)
    return read(folder / "out")


def test_pieces_of_several_ranks_are_put_in_order(tmp_path):
    one = [rows_at((2, 2, 4), (0, 0, 4)), rows_at((1, 0, 1))]
    two = [rows_at((1, 1, 4)), rows_at((2, 0, 2))]
    made = merge(tmp_path, one, two, rows=5)
    assert made["p"] == [[n * 100.0 + at for at in range(4)] for n in range(3)]
    assert made["spans"] == [[[0, 4]], [[0, 1], [1, 4]], [[0, 2], [2, 4]]]
    assert made["id"] == ["s0", "s1", "s2"]


def test_rows_that_are_missing_are_counted(tmp_path):
    ranks = [[rows_at((0, 0, 4), (1, 0, 4))]]
    with pytest.raises(
        IncompleteEpochError, match="all 3 planned rows must be predicted, but 2 were"
    ):
        merge(tmp_path, *ranks, rows=3)
    assert merge(tmp_path, *ranks, rows=3, partial=True)["position"] == [0, 1]


def test_windows_that_are_missing_are_counted(tmp_path):
    lost = [[rows_at((0, 0, 2), (1, 0, 2)), rows_at((1, 2, 4))]]  # of 0 the second one
    with pytest.raises(
        IncompleteEpochError, match="all 4 planned rows must be predicted, but 3 were"
    ):
        merge(tmp_path, *lost, rows=4, spans=True)
    assert not (tmp_path / "out").exists()
    assert merge(tmp_path, *lost, rows=4, spans=True, partial=True)["position"] == [0, 1, 1]


def test_a_sequence_that_is_missing_is_named(tmp_path):
    with pytest.raises(PlanError, match=r"drops 1 of 3 sequences, the first is sequence 1 \("):
        merge(tmp_path, [rows_at((0, 0, 4), (2, 0, 4))], rows=2)


@pytest.mark.parametrize("again", [(1, 0, 4), (1, 2, 3), (1, 3, 5)])
def test_a_sequence_that_is_there_twice_is_named(tmp_path, again):
    both = [rows_at((0, 0, 4), (1, 0, 4))], [rows_at((2, 0, 4), again)]
    with pytest.raises(PlanError, match=r"sequence 1 \('s1'\) was predicted twice from timestep"):
        merge(tmp_path, *both, rows=4)
    assert not (tmp_path / "out").exists()


def test_a_span_that_is_there_twice_is_named(tmp_path):
    places = (0, 0, 4), (0, 0, 2), (0, 2, 4)
    assert merge(tmp_path, [rows_at(*places)], rows=3, spans=True)["position"] == [0, 0, 0]
    with pytest.raises(PlanError, match=r"sequence 0 \('s0'\) was predicted twice from timestep 2"):
        merge(tmp_path, [rows_at(*places, (0, 2, 4))], rows=4, spans=True)


@pytest.mark.parametrize(("first", "gap"), [((1, 1, 4), "0..1"), ((1, 0, 1), "1..2")])
def test_a_gap_is_named(tmp_path, first, gap):
    places = [(0, 0, 4), first, (1, 2, 4), (2, 0, 4)]
    places = [one for one in places if one != (1, 2, 4) or gap == "1..2"]
    with pytest.raises(PlanError, match=rf"\('s1'\) has no prediction of timesteps {gap}\. Pass"):
        merge(tmp_path, [rows_at(*places)], rows=len(places))


def test_a_rank_whose_files_cannot_be_seen_is_named(tmp_path):
    told = spilled(tmp_path, [rows_at((0, 0, 4))], [rows_at((1, 0, 4))])
    values = tmp_path / "0-1-0.values"
    values.write_bytes(b"123")
    with pytest.raises(ConfigError, match=r"rank 1 wrote 32 bytes to '0-1-0.values', which rank 0 "
                       r"cannot see in .* \(has 3 bytes\)\. Pass a location"):  # fmt: skip
        merge_spills(tmp_path, told)
    values.unlink()
    with pytest.raises(
        ConfigError, match=r"\(does not exist\)\. Pass a location that all ranks sha"
    ):
        merge_spills(tmp_path, told)


@pytest.mark.parametrize("name", ["0-1.spans", "0-1-0.values"])
def test_a_bit_that_flips_in_what_a_rank_wrote_is_told(tmp_path, name):
    told = spilled(tmp_path, [rows_at((0, 0, 4))], [rows_at((1, 0, 4))])
    path, raw = tmp_path / name, (tmp_path / name).read_bytes()
    for bit in range(0, 8 * len(raw), 7):
        flipped = bytearray(raw)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        with pytest.raises(CorruptShardError, match="must be what rank 1 wrote") as caught:
            merge_spills(tmp_path, told)
        assert (caught.value.details["file"], caught.value.details["rank"]) == (str(path), 1)
    path.write_bytes(raw)
    merge_spills(tmp_path, told)


def test_ranks_that_guessed_differently_are_named(tmp_path):
    other = rows_at((1, 0, 4), field=PredictionField("float64", (4,), "sequence"))
    told = spilled(tmp_path, [rows_at((0, 0, 4))], [other])
    with pytest.raises(ConfigError, match=r"but is float64 \(4,\) per sequence on rank 1, "
                       r"and float64 \(\) per timestep elsewhere"):  # fmt: skip
        merge_spills(tmp_path, told)


def test_nothing_at_all_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match="at least one row must be predicted"):
        merge_spills(tmp_path, spilled(tmp_path, [], []))


def test_a_removed_spill_leaves_no_file(tmp_path):
    spill = SpillWriter(tmp_path, 0, 0)
    spill.add(rows_at((0, 0, 4)), "in batch 0")
    spill.remove()
    assert not list(tmp_path.iterdir())
