import numpy as np
import pytest
import torch

from seqdata import TBPTT, Fixed, Loader, World
from seqdata.batch.batch import SequenceBatch
from seqdata.errors import ConfigError
from seqdata.loading.output import BATCH_KEYS, Output, make_output


def batch_of(**data):
    lengths = torch.tensor([2, 1])
    return SequenceBatch(
        data=data or {"x": torch.ones(2, 2)},
        lengths=lengths,
        ids=lengths,
        weight=torch.ones(2),
        start=lengths,
        number=5,
    )


def test_a_tuple_has_the_parts_in_the_order_they_are_named():
    batch = batch_of()
    lengths, x, number = Output(("lengths", "x", "number"))(batch)
    assert (lengths is batch.lengths, x is batch["x"], number) == (True, True, 5)


def test_a_dict_has_them_by_name():
    made = Output(("x", "mask"), is_dict=True)(batch_of())
    assert list(made) == ["x", "mask"]
    assert made["mask"].tolist() == [[True, True], [True, False]]


def test_every_part_of_a_batch_can_be_named():
    assert len(Output(BATCH_KEYS)(batch_of())) == len(BATCH_KEYS)


def test_a_field_goes_before_a_part_of_the_same_name():
    (weight,) = Output(("weight",))(batch_of(weight=torch.zeros(2, 3)))
    assert weight.shape == (2, 3)


def test_a_name_that_is_not_there_is_refused_with_the_nearest():
    with pytest.raises(ConfigError, match="loader: no field 'lenghts'; did you mean 'lengths'"):
        Output(("x", "lenghts"))(batch_of())
    with pytest.raises(ConfigError, match=r"loader: no field 'z'. Choose one of x, lengths, ids"):
        Output(("z",)).check(["x"])


def test_names_are_checked_before_a_batch_is_there():
    Output(("x", "mask")).check(["x"])


@pytest.mark.parametrize("names", ["x", (), [], True, 3, [1], b"x"])
def test_a_bare_string_and_no_name_are_refused(names):
    with pytest.raises(ConfigError, match=r"loader: `as_tuple` must be a tuple of names"):
        make_output(names, None)
    with pytest.raises(ConfigError, match=r"loader: `as_dict` must be a tuple of names"):
        make_output(None, names)


def test_a_tuple_and_a_dict_at_once_are_refused():
    with pytest.raises(ConfigError, match="`as_tuple` and `as_dict` cannot both be given"):
        make_output(("x",), ("x",))


def test_without_names_the_batch_itself_is_handed_out():
    assert make_output(None, None) is None


@pytest.mark.parametrize(
    ("names", "marks"), [(["x"], False), (["x", "weight"], True), (["score"], True)]
)
def test_weight_and_score_mark_dummy_rows(names, marks):
    assert bool(Output(names).find_marks(["x"])) is marks
    assert not Output(names).find_marks(["x", "weight", "score"])


@pytest.mark.parametrize("field", ["score", "weight"])
def test_a_field_of_that_name_does_not_mark_dummy_rows(field):
    rows = [{"x": np.ones(n, "f4"), field: float(n)} for n in (3, 4, 5)]
    other = "weight" if field == "score" else "score"
    said = rf"3 batches on 2 ranks leave 1 without one, .* Add '{other}', or pass tail='drop'"
    with pytest.raises(ConfigError, match=said):
        Loader(rows, Fixed(1), world=World(1, 2), as_tuple=("x", field))

    def rename(sequence, rng):
        return {"x": sequence["x"], field: len(sequence["x"])}

    plain = [row["x"] for row in rows]
    loader = Loader(plain, Fixed(1), world=World(1, 2), as_tuple=("x", field), transform=rename)
    with pytest.raises(ConfigError, match=f"must be told from others, but '{field}' is a field"):
        list(loader)


def test_idle_lanes_need_no_mark_since_they_are_empty():
    rows = [{"x": np.ones((n, 1), "f4"), "weight": np.ones(n, "f4")} for n in (9, 4)]
    chosen = {"as_tuple": ("x", "lengths", "weight")}
    lengths = [lengths.tolist() for _, lengths, _ in Loader(rows, TBPTT(2, 3), **chosen)]
    assert [0, 3] in lengths or [3, 0] in lengths


def test_lanes_that_leave_a_rank_without_one_need_more_lanes():
    with pytest.raises(ConfigError, match="Add 'weight', or pass at least 2 lanes"):
        Loader([np.ones(9)], TBPTT(1, 4), world=World(0, 2), as_tuple=("x", "lengths"))
