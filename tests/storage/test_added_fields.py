"""`store.with_fields` adds fields as a view: checked, composed, fingerprinted, written."""

import pickle

import numpy as np
import pytest

from seqdata.api import concat, open_store, split, write_store
from seqdata.errors import ConfigError, DecodeError, UnknownNameError
from seqdata.loading.loader import Loader
from seqdata.policies.fixed import Bucketed, Fixed
from seqdata.policies.windows import Windows
from seqdata.storage.span_store import locate_in_base

LENGTHS = [3, 1, 4, 2]


def make_store():
    rows = (
        {"id": f"u{i}", "x": np.arange(n, dtype="float32") + 10 * i} for i, n in enumerate(LENGTHS)
    )
    return open_store(list(rows))


def vectors():
    return [np.arange(n) + 100 * i for i, n in enumerate(LENGTHS)]


def test_values_come_in_the_order_of_the_store_or_by_id():
    labels = np.array([4, 5, 6, 7])
    found = make_store().with_fields(
        {"label": labels, "name": ["a", "bc", "", "d"], "phones": vectors(), "vec": np.eye(4)}
    )
    by_id = {f"u{i}": label for i, label in reversed(list(enumerate(labels)))}
    assert list(found.fields)[-4:] == ["label", "name", "phones", "vec"]
    assert found[1]["label"] == 5
    assert found["u2"]["phones"].tolist() == [200, 201, 202, 203]
    assert found[3]["vec"].tolist() == [0, 0, 0, 1]
    assert found[1]["name"] == "bc"
    assert found.fields["phones"].axis == "time"
    assert found.fields["vec"].axis is None
    same = make_store().with_fields({"label": by_id})
    assert [int(row["label"]) for row in same] == [4, 5, 6, 7]


def test_batches_have_them_cut_with_the_planned_axis():
    found = make_store().with_fields({"phones": vectors(), "label": [0, 1, 2, 3]})
    for batch in Loader(found, Bucketed(2)):
        assert (batch["phones"] // 100 * batch.mask == batch["label"][:, None] * batch.mask).all()
    for batch in Loader(found, Windows(2, 1, 3)):
        assert (batch["phones"] % 100 == batch["x"] % 10).all()
        assert batch.start.tolist() == (batch["x"][:, 0] % 10).tolist()


def test_an_axis_of_its_own():
    tokens = [[1, 2], [3], [4, 5, 6], [7]]
    found = make_store().with_fields({"text": tokens}, axes={"text": "text"})
    assert found.lengths_of["text"].tolist() == [2, 1, 3, 1]
    (batch,) = Loader(found, Fixed(4, shuffle=False))
    assert batch.lengths_of["text"].tolist() == [2, 1, 3, 1]
    (batch,) = Loader(found, Fixed(4, shuffle=False, axis="text"))
    assert batch["text"].tolist() == [[1, 2, 0], [3, 0, 0], [4, 5, 6], [7, 0, 0]]
    assert batch["x"].shape == (4, 4)


def test_views_compose_in_any_order():
    base = make_store()
    part = base.take([2, 0]).with_fields({"y": [7, 8]})
    assert [(row["id"], int(row["y"])) for row in part] == [("u2", 7), ("u0", 8)]
    again = part.with_fields({"z": {"u0": 1, "u2": 2}}).where(lambda row: row["z"] == 1)
    assert [(row["id"], int(row["y"])) for row in again] == [("u0", 8)]
    chosen = part.select("y", "x").rename({"y": "label"})
    assert [int(row["label"]) for row in chosen] == [7, 8]
    both = concat([part, part])
    assert [int(row["y"]) for row in both] == [7, 8, 7, 8]
    parts = split(base.with_fields({"w": [0, 0, 1, 1]}), {"a": 0.5, "b": 0.5}, by="w", exact=True)
    assert {tuple(int(row["w"]) for row in own) for own in parts.values()} == {(0, 0), (1, 1)}
    in_time = split(base.with_fields({"phones": vectors()}), {"a": 0.5, "b": 0.5}, along="time")
    assert [row["phones"].tolist() for row in in_time["a"]][-1] == [300]
    store, numbers, starts = locate_in_base(in_time["b"], np.array([0]))
    assert not hasattr(store, "base")
    assert numbers.tolist() == [0]
    assert starts[0] > 0


def test_the_fingerprint_is_that_of_base_and_values():
    def digest(**fields):
        return make_store().with_fields(fields).fingerprint

    assert digest(y=[1, 2, 3, 4]) == digest(y=[1, 2, 3, 4])
    prints = {
        make_store().fingerprint, digest(y=[1, 2, 3, 4]), digest(y=[1, 2, 3, 5]),
        digest(z=[1, 2, 3, 4]), digest(y=[1.0, 2.0, 3.0, 4.0]), digest(y=["1", "2", "3", "4"]),
        make_store().take([0, 1, 2, 3]).with_fields({"y": [1, 2, 3, 4]}).fingerprint,
    }  # fmt: skip
    assert len(prints) == 7


def test_it_is_written_and_pickled(tmp_path):
    found = make_store().take([3, 1]).with_fields({"y": [1, 2], "name": ["p", "q"]})
    write_store(tmp_path / "store", found)
    written = open_store(tmp_path / "store")
    assert [(row["id"], int(row["y"]), row["name"]) for row in written] == [
        ("u3", 1, "p"), ("u1", 2, "q"),
    ]  # fmt: skip
    copied = pickle.loads(pickle.dumps(written.with_fields({"z": [5, 6]})))
    assert [int(row["z"]) for row in copied] == [5, 6]
    assert copied.fingerprint == written.with_fields({"z": [5, 6]}).fingerprint


@pytest.mark.slow
def test_workers_read_them(tmp_path):
    write_store(tmp_path / "store", make_store())
    found = open_store(tmp_path / "store").with_fields({"phones": vectors(), "y": [0, 1, 2, 3]})
    here = [batch["phones"].tolist() for batch in Loader(found, Bucketed(2))]
    loader = Loader(found, Bucketed(2), num_workers=1)
    assert [batch["phones"].tolist() for batch in loader] == here
    loader.shutdown()


@pytest.mark.parametrize(
    ("fields", "axes", "error", "message"),
    [
        ({"y": [1, 2]}, None, ConfigError, "'y' must have a value for each of the 4 .* 2 values"),
        ({"y": 3}, None, ConfigError, "'y' must have a value for each of the 4 .* is of type int"),
        ({"x": [1] * 4}, None, ConfigError, "field 'x' must have a new name"),
        ({"id": list("abcd")}, None, ConfigError, "field 'id' must have a new name"),
        ({}, None, ConfigError, "`fields` must be a dict of field and values, but is {}"),
        ({"y": {"u0": 1}}, None, UnknownNameError, "must have a value for every id, .* for 'u1'"),
        (
            {"p": [[1, 2, 3], [1, 2], [1] * 4, [1] * 2]}, None, ConfigError,
            "field 'p' of sequence 'u1' must have 1 timesteps along 'time', .* but has 2. Check",
        ),
        ({"p": [[1]] * 4}, {"p": "b c"}, ConfigError, "axis of field 'p' must be a name"),
        ({"p": [[1]] * 4}, {"q": "time"}, UnknownNameError, "`axes`: no field 'q'"),
        ({"y": [1, 2, "a", 3]}, None, DecodeError, "sequence 2, field 'y'"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(fields, axes, error, message):
    with pytest.raises(error, match=message):
        make_store().with_fields(fields, axes)


def test_a_field_named_id_is_refused_where_sequences_have_no_ids():
    text = "field 'id' must have another name, since the ids of sequences are shown by it. Rename"
    with pytest.raises(ConfigError, match=text):
        open_store([[1], [2]]).with_fields({"id": ["a", "b"]})


@pytest.mark.parametrize("values", [{}, []])
def test_a_store_without_sequences_is_refused(values):
    empty = open_store([[1], [2]]).take([])
    with pytest.raises(ConfigError, match="the store must have at least one sequence, but is empt"):
        empty.with_fields({"y": values})
