"""Values are delivered in the dtype that was asked for, and finite where that is asked."""

import numpy as np
import pytest
import torch

from seqdata import write_store
from seqdata.collators.padded import Padded
from seqdata.errors import ConfigError, DecodeError
from seqdata.lightning.datamodule import SequenceDataModule
from seqdata.loading.loader import Loader
from seqdata.policies.fixed import Fixed
from seqdata.policies.packed import Packed
from seqdata.policies.tbptt import TBPTT

RNG = np.random.default_rng(0)
ROWS = [
    {
        "id": f"s{n}",
        "x": RNG.normal(size=(n + 1, 2)),
        "tokens": np.arange(n + 1),
        "y": n,
        "z": n / 2,
    }
    for n in range(5)
]
FEW = Fixed(3, shuffle=False)
HOLED = [{"x": np.array([1.0, 2.0, value])} for value in (3.0, np.nan, 5.0, -np.inf)]


@pytest.mark.parametrize("policy", [FEW, Packed(2, 8, shuffle=False), TBPTT(2, 3, shuffle=False)])
@pytest.mark.parametrize("prefetch", [0, 2])
def test_floats_are_delivered_in_one_dtype(policy, prefetch):
    plain = Loader(ROWS, policy, prefetch=prefetch)
    for one, was in zip(
        Loader(ROWS, policy, dtype="float32", prefetch=prefetch), plain, strict=True
    ):
        assert [one[name].dtype for name in ("x", "z")] == [torch.float32] * 2
        assert [one[name].dtype for name in ("tokens", "y")] == [torch.int64] * 2
        assert torch.equal(one["x"], was["x"].float())
        assert torch.equal(one["z"], was["z"].float())
        assert torch.equal(one["tokens"], was["tokens"])


@pytest.mark.parametrize("collator", ["varlen", "packed", "jagged"])
def test_any_layout_and_a_stream_have_the_dtype(collator):
    (batch,) = Loader(ROWS, Fixed(5), dtype="float32", fields=("x",), collator=collator)
    values = batch["x"]
    assert getattr(values, "data", values).dtype == torch.float32
    policy = TBPTT(2, 3, continuous=True)
    for batch in Loader(ROWS, policy, dtype={"tokens": "int32"}, shift=1, fields=("tokens",)):
        assert batch["tokens"].dtype == torch.int32


def test_fields_have_dtypes_of_their_own():
    dtypes = {"tokens": "int16", "y": "float32", "z": "float32"}
    for batch in Loader(ROWS, FEW, dtype=dtypes):
        assert {name: str(batch[name].dtype)[6:] for name in dtypes} == dtypes
        assert batch["x"].dtype == torch.float64


def test_what_a_transform_and_a_collate_fn_give_and_get_is_converted():
    def double(sequence, rng):
        return {"x": sequence["x"] * 2, "new": sequence["x"]}

    (batch,) = Loader(ROWS, Fixed(5), transform=double, dtype="float32")
    assert [batch[name].dtype for name in ("x", "new")] == [torch.float32] * 2
    ((first, *_),) = Loader(ROWS, Fixed(5), collator=lambda rows: rows, dtype="float32")
    assert first["x"].dtype == torch.float32


@pytest.mark.parametrize(
    ("value", "dtype", "said"),
    [
        (1.5, "int64", "timestep 1 is 1.5, which does not fit int64"),
        (1e300, "float32", r"timestep 1 is 1e\+300, which does not fit float32"),
        (300, "int8", "timestep 1 is 300, which does not fit int8"),
        (-1, "uint8", "timestep 1 is -1, which does not fit uint8"),
        (2**60 + 1, "float32", "which does not fit float32. Pass another `dtype`"),
    ],
)
def test_numbers_that_do_not_fit_are_an_error(value, dtype, said):
    rows = [{"id": "a", "x": np.array([0, 1])}, {"id": "b", "x": np.array([0, value])}]
    rows = [{**row, "x": row["x"].astype(np.asarray(value).dtype)} for row in rows]
    with pytest.raises(DecodeError, match=rf'sequence 1 \("b"\), field .x.: .*{said}') as caught:
        list(Loader(rows, Fixed(2, shuffle=False), dtype={"x": dtype}))
    assert caught.value.details["timestep"] == 1


def test_values_that_are_not_finite_are_counted_as_errors_of_their_sequence(tmp_path):
    list(Loader(HOLED, FEW))
    for data in (HOLED, write_store(tmp_path / "store", HOLED, progress=False)):
        with pytest.raises(
            DecodeError, match=r"sequence 1.*field 'x': timestep 2 is nan, .*finite"
        ):
            list(Loader(data, FEW, check_values=True))
        with pytest.raises(DecodeError, match="timestep 2 is -inf, which must be finite"):
            list(
                Loader(
                    data, Fixed(1, shuffle=False), check_values=True, on_error="mask", max_errors=1
                )
            )
    loader = Loader(HOLED, Fixed(4, shuffle=False), check_values=True, on_error="mask")
    (batch,) = loader
    assert batch.weight.tolist() == [1, 0, 1, 0]
    assert [one["sequence"] for one in loader.errors] == [1, 3]
    assert bool(torch.isfinite(batch["x"]).all())


def test_a_value_per_sequence_has_no_timestep():
    rows = [{"x": np.zeros(2), "y": 1.0}, {"x": np.zeros(2), "y": np.nan}]
    with pytest.raises(DecodeError, match="sequence 1, field 'y' is nan, which must be") as caught:
        list(Loader(rows, Fixed(2, shuffle=False), check_values=True))
    assert "timestep" not in caught.value.details


def test_the_timestep_is_the_sequences_own():
    rows = [{"x": np.array([0.0] * 7 + [np.nan])}]
    with pytest.raises(DecodeError, match="timestep 7 is nan"):
        list(Loader(rows, TBPTT(1, 3), check_values=True))


@pytest.mark.parametrize("dtype", [None, "float32"])
def test_padding_of_nan_is_no_value(dtype):
    rows, collator = [{"x": np.ones(2)}, {"x": np.ones(1)}], Padded(padding=float("nan"))
    options = {"collator": collator, "check_values": True, "dtype": dtype}
    (batch,) = Loader(rows, Fixed(2, shuffle=False), **options)
    assert batch["x"].isnan().tolist() == [[False, False], [False, True]]


def test_a_batch_of_bad_sequences_alone_has_the_dtype_too():
    loader = Loader(
        HOLED[1::2], Fixed(2), check_values=True, on_error="mask", dtype="float32", max_errors=9
    )
    (batch,) = loader
    assert batch["x"].dtype == torch.float32
    assert batch.weight.tolist() == [0, 0]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"dtype": "float"}, "`dtype` must be one of .* but is 'float'. Pass its name"),
        (
            {"dtype": "int64"},
            "`dtype` for all fields must be a dtype of floats, .*dtype={'x': 'int64'}",
        ),
        ({"dtype": {"x": "f4"}}, r"`dtype\['x'\]` must be one of"),
        ({"check_values": 1}, "`check_values` must be True or False, but is 1"),
    ],
)
def test_options_that_are_invalid_are_refused(options, said):
    with pytest.raises(ConfigError, match=said):
        Loader(ROWS, FEW, **options)


def test_a_field_that_is_not_there_is_refused():
    with pytest.raises(ConfigError, match=r"`dtype`: no field .*w"):
        list(Loader(ROWS, FEW, dtype={"w": "int8"}))


def test_training_and_evaluation_have_transforms_of_their_own():
    def augment(sequence, rng):
        return {"x": sequence["x"] + 100}

    def plain(sequence, rng):
        return {"x": sequence["x"]}

    data = SequenceDataModule(
        train=ROWS, val=ROWS, test=ROWS, predict=ROWS, batching=FEW, dtype="float32",
        transform=augment, eval_transform=plain,
    )  # fmt: skip
    assert next(iter(data.train_dataloader()))["x"].max() > 50
    for loader in (data.val_dataloader(), data.test_dataloader(), data.predict_dataloader()):
        batch = next(iter(loader))
        assert batch["x"].max() < 50
        assert batch["x"].dtype == torch.float32
    data = SequenceDataModule(val=ROWS, batching=FEW, transform=augment)
    assert next(iter(data.val_dataloader()))["x"].max() > 50


@pytest.mark.nightly
def test_workers_convert_and_check(tmp_path):
    store = write_store(tmp_path / "store", ROWS, progress=False)
    made, here = (
        list(Loader(store, FEW, dtype="float32", check_values=True, num_workers=count))
        for count in (2, 0)
    )
    for one, other in zip(made, here, strict=True):
        assert one["x"].dtype == torch.float32
        assert torch.equal(one["x"], other["x"])
    holed = write_store(tmp_path / "holed", HOLED, progress=False)
    with pytest.raises(DecodeError, match="timestep 2 is nan") as caught:
        list(Loader(holed, FEW, check_values=True, num_workers=1))
    assert caught.value.details["timestep"] == 2


def test_complex_numbers_do_not_fit_a_real_dtype():
    rows = [np.arange(n, dtype="f4") + 1 for n in (2, 3)]

    def play(transform):
        loader = Loader(rows, Fixed(2, shuffle=False), transform=transform, dtype={"x": "float32"})
        return next(iter(loader))["x"]

    assert play(lambda s, r: {"x": s["x"] + 1}).tolist() == [[2, 3, 0], [2, 3, 4]]
    with pytest.raises(DecodeError, match=r"which does not fit float32\. Pass another `dtype`"):
        play(lambda s, r: {"x": np.fft.fft(s["x"])})


@pytest.mark.parametrize("collator", ["padded", "varlen", "packed", "jagged"])
@pytest.mark.parametrize(
    "policy", [Packed(2, 12), TBPTT(2, 3), TBPTT(2, 3, continuous=True), Fixed(3)]
)
def test_targets_have_the_dtype_of_their_field(policy, collator):
    if collator == "packed" and not isinstance(policy, Fixed):
        pytest.skip("rows of length 0 cannot be packed")
    rows = [{"tokens": np.arange(n + 2, dtype=np.uint16)} for n in range(9)]
    options = {"shift": 1, "collator": collator, "fields": ("tokens",)}
    for given in ({"tokens": "int64"}, {"tokens": "int64", "targets": "int64"}):
        for batch in Loader(rows, policy, dtype=given, **options):
            for name in ("tokens", "targets"):
                values = batch[name]
                assert getattr(values, "data", values).dtype == torch.int64


def test_targets_that_are_one_column_with_their_field_have_no_other_dtype():
    rows = [{"tokens": np.arange(5, dtype=np.uint16)}]
    said = r"`dtype\['targets'\]` must be that of 'tokens', int64, but is 'int32'\. Leave it out"
    with pytest.raises(ConfigError, match=said):
        list(Loader(rows, Fixed(1), shift=1, dtype={"tokens": "int64", "targets": "int32"}))


def test_a_value_of_targets_that_is_not_finite_is_named_by_its_own_timestep():
    rows = [{"x": np.array([1.0, 2.0, 3.0, np.nan])}]
    loader = Loader(rows, Fixed(1), shift=1, check_values=True, collator="varlen")
    with pytest.raises(DecodeError, match="timestep 3"):
        list(loader)
