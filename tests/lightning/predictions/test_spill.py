"""Predictions that ranks append to files: all of them come back, sorted, or the damage is named."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seqdata.errors import ConfigError, CorruptShardError
from seqdata.lightning.predictions.outputs import PredictedRows, PredictionField
from seqdata.lightning.predictions.spill import SpillWriter, merge_spills

FIELDS = {
    "steps": PredictionField("float32", (2,), "timestep"),
    "flag": PredictionField("bool", (), "sequence"),
}


def rows(*spans, fields=FIELDS):
    spans = np.array(spans, dtype=np.int64).reshape(-1, 3)
    steps = [np.arange(start, stop) + 100 * number for number, start, stop in spans.tolist()]
    steps = np.concatenate([np.empty(0), *steps])
    values = {
        "steps": np.stack([steps, -steps], axis=1).astype(np.float32), "flag": spans[:, 1] > 0,
    }  # fmt: skip
    return PredictedRows(spans, fields, {name: values[name] for name in fields}, ())


def spill(folder, *ranks):
    manifests = []
    for rank, batches in enumerate(ranks):
        writer = SpillWriter(folder, 0, rank)
        for number, batch in enumerate(batches):
            writer.add(batch, f"in batch {number}")
        manifests.append(writer.close())
    return manifests


spans_of_ranks = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 4), st.integers(0, 4), st.integers(0, 3)),
    unique_by=lambda each: each[:2], min_size=1, max_size=8,
)  # fmt: skip


@settings(max_examples=25)
@given(spans_of_ranks)
def test_rows_are_sorted_whichever_rank_wrote_them(tmp_path_factory, drawn):
    folder = tmp_path_factory.mktemp("spill")
    spans = [(number, start, start + size) for number, start, size, _ in drawn]
    ranks = [
        [rows(span) for span, each in zip(spans, drawn, strict=True) if each[3] == rank]
        for rank in range(4)
    ]
    merged = merge_spills(folder, spill(folder, *ranks))
    assert merged.spans.tolist() == [list(span) for span in sorted(spans)]
    for at, (number, start, stop) in enumerate(sorted(spans)):
        steps = merged.get_value("steps", at, at + 1)
        assert steps[:, 0].tolist() == [100 * number + step for step in range(start, stop)]
        assert merged.get_value("flag", at, at + 1) == (start > 0)


def test_pieces_of_a_sequence_are_put_together(tmp_path):
    manifests = spill(tmp_path, [rows((1, 2, 4))], [rows((1, 0, 2)), rows((0, 0, 1))])
    merged = merge_spills(tmp_path, manifests)
    assert merged.get_value("steps", 1, 3)[:, 0].tolist() == [100, 101, 102, 103]


def test_a_rank_without_rows_has_no_files(tmp_path):
    manifests = spill(tmp_path, [], [rows((0, 0, 1))])
    assert (manifests[0].fields, manifests[0].files, manifests[0].rows) == ({}, {}, 0)
    assert len(merge_spills(tmp_path, manifests).spans) == 1
    with pytest.raises(ConfigError, match="must be predicted, but every row had weight 0"):
        merge_spills(tmp_path, manifests[:1])


def test_rows_of_another_form_are_refused(tmp_path):
    writer = SpillWriter(tmp_path, 0, 0)
    writer.add(rows((0, 0, 1)), "in batch 0")
    fewer = {"steps": FIELDS["steps"]}
    with pytest.raises(
        ConfigError, match="must have the same names everywhere, but are steps in batch 1"
    ):
        writer.add(rows((1, 0, 1), fields=fewer), "in batch 1")
    writer.remove()
    assert list(tmp_path.iterdir()) == []


def test_files_that_are_not_what_was_written_are_named(tmp_path):
    manifests = spill(tmp_path, [rows((0, 0, 3))])
    name = list(manifests[0].files)[1]
    path = tmp_path / name
    content = bytearray(path.read_bytes())
    content[0] ^= 1
    path.write_bytes(content)
    with pytest.raises(CorruptShardError, match="must be what rank 0 wrote") as caught:
        merge_spills(tmp_path, manifests)
    assert caught.value.details["rank"] == 0
    path.write_bytes(content[:-1])
    with pytest.raises(ConfigError, match=rf"rank 0 wrote 24 bytes to '{name}', .*has 23 bytes"):
        merge_spills(tmp_path, manifests)
    path.unlink()
    with pytest.raises(ConfigError, match=r"does not exist.*that all ranks share"):
        merge_spills(tmp_path, manifests)
