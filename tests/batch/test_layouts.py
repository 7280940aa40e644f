"""The four layouts of a batch: the same values, however they lie; windows and their views."""

import itertools

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import PackedSequence, pad_packed_sequence
from torch.utils._python_dispatch import TorchDispatchMode

from seqdata import TBPTT, Loader, Packed, TokenBudget, Windows
from seqdata.batch.layouts import LAYOUTS
from seqdata.errors import ConfigError
from seqdata.policies.fixed import Bucketed
from seqdata.sharing import World
from seqdata.storage.memory import MemoryStore

RANDOM = np.random.default_rng(0)
ROWS = [
    {
        "x": RANDOM.normal(size=(length, 3)).astype(np.float32),
        "tokens": RANDOM.integers(0, 99, length),
        "text": RANDOM.integers(0, 9, length % 5 + 1),
        "y": length,
        "id": f"s{length}",
    }
    for length in (4, 1, 7, 3, 12, 5)
]
AXES = {"text": "text"}


def batches(collator, policy=None, **options):
    store = MemoryStore.from_sequences(ROWS, axes=AXES)
    return list(Loader(store, policy or Bucketed(3), collator=collator, seed=1, **options))


def assert_equal(one, other):
    assert one.data.keys() == other.data.keys()
    for name in one.data:
        if isinstance(one[name], list):
            assert one[name] == other[name]
        else:
            assert torch.equal(one[name], other[name]), name


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_holds_the_same_values(layout):
    for batch, padded in zip(batches(layout), batches("padded"), strict=True):
        assert batch.layout == layout
        batch.validate()
        assert_equal(batch.as_layout("padded"), padded)


@pytest.mark.parametrize("source", LAYOUTS)
@pytest.mark.parametrize("target", LAYOUTS)
def test_layouts_turn_into_each_other_without_loss(source, target):
    for batch, there in zip(batches(source), batches(target), strict=True):
        made = batch.as_layout(target)
        assert made.layout == target
        assert_equal(made.as_layout("padded"), there.as_layout("padded"))
        assert_equal(made.as_layout(source).as_layout("padded"), batch.as_layout("padded"))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_inputs_and_targets_are_one_timestep_apart_in_every_layout(layout):
    options = {"fields": ("tokens",), "shift": 1, "policy": TokenBudget(20)}
    for batch in batches(layout, **options):
        padded = batch.as_layout("padded")
        for row, number in enumerate(batch.ids.tolist()):
            length = int(batch.lengths[row])
            whole = torch.from_numpy(ROWS[number]["tokens"])
            assert torch.equal(padded["tokens"][row, :length], whole[:-1])
            assert torch.equal(padded["targets"][row, :length], whole[1:])


def test_packed_fields_are_ready_for_an_lstm():
    batch = batches("packed")[0]
    assert isinstance(batch["x"], PackedSequence)
    assert batch.packed("x") is batch["x"]
    values, lengths = pad_packed_sequence(batch["x"], batch_first=True)
    assert torch.equal(lengths, batch.lengths)
    assert torch.equal(values, batches("padded")[0]["x"])
    assert torch.equal(batch.packed("text").data, batches("padded")[0].packed("text").data)


def test_jagged_fields_are_nested_tensors_over_flat_values():
    batch, flat = batches("jagged")[0], batches("varlen")[0]
    assert batch["x"].layout == torch.jagged
    assert torch.equal(batch["x"].values(), flat["x"])
    assert batch["x"].shape[0] == len(batch)


def test_flat_values_come_with_what_attention_kernels_want():
    batch = batches("varlen")[0]
    ends = np.cumsum(batch.lengths.numpy())
    assert batch.cu_seqlens.dtype == torch.int32
    assert batch.cu_seqlens.tolist() == [0, *ends.tolist()]
    expected = [k for length in batch.lengths.tolist() for k in range(length)]
    assert batch.position_ids.tolist() == expected
    assert len(batch["tokens"]) == int(batch.lengths.sum())


def test_documents_packed_into_rows_are_told_apart():
    rows = [{"tokens": np.arange(length)} for length in (6, 4, 9, 1, 3, 7)]
    batch = next(iter(Loader(rows, Packed(rows=2, row_length=10), collator="varlen")))
    sizes = batch.cu_seqlens.diff().tolist()
    assert sizes == (batch.segments[:, 3] - batch.segments[:, 2]).tolist()
    expected = [k for length in sizes for k in range(length)]
    assert batch["tokens"].tolist() == expected  # each counts from 0
    assert batch.position_ids.tolist() == expected
    assert batch.lengths.tolist() == [
        int((batch.segments[batch.segments[:, 0] == row, 3]).sum()) for row in range(2)
    ]
    padded = batch.as_layout("padded")
    assert padded["tokens"].shape == (2, int(batch.lengths.max()))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_counts_lies_beside_the_values(layout):
    loader = Loader(
        MemoryStore.from_sequences(ROWS, axes=AXES), Bucketed(4), collator=layout, seed=1,
        world=World(1, 3),
    )  # fmt: skip
    (dummy,) = loader  # 2 batches on 3 ranks: rank 1 has a batch, rank 2 padding rows
    assert int(dummy.score.sum()) == dummy.num_tokens
    other = Loader(
        MemoryStore.from_sequences(ROWS, axes=AXES), Bucketed(4), collator=layout, seed=1,
        world=World(2, 3),
    )  # fmt: skip
    (dummy,) = other
    assert not dummy.score.any()
    assert int(dummy.mask.sum()) == int(dummy.lengths.sum())
    if layout == "packed":
        with pytest.raises(ConfigError, match="must have at least one row to be packed"):
            dummy.real()
    else:
        assert len(dummy.real()) == 0


def test_a_score_lies_in_the_order_of_packed_values():
    batch = batches("packed")[0]
    marks = batch.as_layout("padded").mask
    assert batch.score.shape == (int(marks.sum()),)


def test_an_unknown_layout_is_refused():
    with pytest.raises(ConfigError, match="layout 'ragged' is unknown"):
        batches("padded")[0].as_layout("ragged")


def series(*lengths):
    return [{"load": np.arange(n, dtype=np.float32)[:, None], "site": n} for n in lengths]


def test_windows_have_a_context_and_a_future_as_views():
    policy = Windows(size=4, stride=2, batch_size=3, horizon=2, shuffle=False)
    (batch,) = Loader(series(10), policy)
    assert batch.lengths.tolist() == [4, 4, 4]
    assert batch["load"].shape == (3, 6, 1)
    assert batch.context["load"][:, :, 0].tolist() == [[0, 1, 2, 3], [2, 3, 4, 5], [4, 5, 6, 7]]
    assert batch.future["load"][:, :, 0].tolist() == [[4, 5], [6, 7], [8, 9]]
    assert batch.context["load"].data_ptr() == batch["load"].data_ptr()
    assert batch["site"].tolist() == [10, 10, 10]
    assert batch.start.tolist() == [0, 2, 4]
    batch.validate()


@pytest.mark.parametrize("layout", ["packed", "jagged", "varlen"])
def test_flat_values_of_windows_with_a_horizon_have_marks_and_offsets_of_their_own(layout):
    policy = Windows(size=4, stride=2, batch_size=3, horizon=2, shuffle=False)
    batch = next(iter(Loader(series(10), policy, collator=layout)))
    padded = batch.as_layout("padded")
    values = batch["load"]
    values = values.values() if layout == "jagged" else getattr(values, "data", values)
    assert len(values) == len(batch.mask) == len(batch.score) == len(batch) * (4 + 2)
    context = padded.context["load"].flatten()
    assert torch.equal(values[batch.mask].flatten().sort()[0], context.sort()[0])
    assert int(batch.score.sum()) == batch.num_tokens
    batch.validate()
    assert batch.cu_seqlens.tolist() == [0, 6, 12, 18]
    assert batch.position_ids.tolist() == list(range(6)) * 3


def test_windows_without_a_horizon_are_all_context():
    (batch,) = Loader(series(8), Windows(size=4, batch_size=2, shuffle=False))
    assert batch.context["load"].shape == (2, 4, 1)
    assert batch.future["load"].shape == (2, 0, 1)


@pytest.mark.parametrize("layout", ["packed", "jagged", "varlen"])
def test_windows_keep_their_future_in_every_layout(layout):
    policy = Windows(size=4, stride=2, batch_size=3, horizon=2, shuffle=False)
    (padded,), (other,) = Loader(series(10), policy), Loader(series(10), policy, collator=layout)
    assert torch.equal(other.future["load"], padded.future["load"])
    assert torch.equal(other.as_layout("padded")["load"], padded["load"])


def test_crops_are_the_same_on_any_world_and_after_a_resume():
    policy = Windows(size=5, random=True, per_sequence=2, batch_size=2)
    whole = [batch.start.tolist() for batch in Loader(series(20, 30, 40), policy, seed=3)]
    loaders = [Loader(series(20, 30, 40), policy, seed=3, world=World(r, 3)) for r in range(3)]
    dealt = [[batch.start.tolist() for batch in loader] for loader in loaders]
    assert [starts for step in zip(*dealt, strict=True) for starts in step] == whole


def test_a_shift_with_a_horizon_is_refused():
    with pytest.raises(ConfigError, match=r"`shift` must be 0 .* of a horizon of 2, but is 1"):
        next(iter(Loader(series(10), Windows(size=4, horizon=2), shift=1)))


def test_each_crop_of_a_sequence_is_augmented_by_itself_on_any_world():
    def mark(sequence, rng):
        return {**sequence, "noise": rng.random()}

    def noises(world):
        policy = Windows(size=5, random=True, per_sequence=3, batch_size=2)
        loader = Loader(series(50, 60, 70, 80), policy, seed=3, transform=mark, world=world)
        return {
            (number, start): noise
            for batch in loader
            for number, start, noise in zip(
                batch.ids.tolist(), batch.start.tolist(), batch["noise"].tolist(), strict=True
            )
            if batch.weight.any()
        }

    alone = noises(World())
    assert len(set(alone.values())) == len(alone) >= 10
    dealt = [noises(World(rank, 4)) for rank in range(4)]
    assert {key: noise for part in dealt for key, noise in part.items()} == alone


SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}


class NoneUnsigned(TorchDispatchMode):
    """Refuses unsigned integers where torch has no operation for them on every device."""

    missing = ("index", "index_select", "index_copy", "index_copy_", "_pack_padded_sequence")

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        dtypes = [value.dtype for value in args if isinstance(value, torch.Tensor)]
        if name in self.missing and not SIGNED.keys().isdisjoint(dtypes):
            raise NotImplementedError(f"{name} of {dtypes}")
        return func(*args, **(kwargs or {}))


def bits(value):
    """Return the values of a field in any layout as signed integers."""
    if isinstance(value, PackedSequence):
        return bits(value.data)
    if value.is_nested:
        return bits(value.values())
    return value.view(SIGNED.get(value.dtype, value.dtype))


def assert_same_bits(batch, signed, dtype):
    for name in ("x", "v", "text", "y"):
        assert getattr(batch[name], "data", batch[name]).dtype == dtype, name
        assert torch.equal(bits(batch[name]), bits(signed[name])), name


def rows_of_bits(dtype):
    """Return sequences of random bits, as an unsigned dtype and as the signed one."""
    random, name = np.random.default_rng(0), str(dtype).removeprefix("torch.")
    shapes = {"x": (), "v": (2,)}
    rows = [
        {"text": np.arange(length % 5 + 1), "y": np.full(1, length)}
        | {
            key: random.integers(0, 2**64, (length, *shape), "uint64")
            for key, shape in shapes.items()
        }
        for length in (4, 1, 7, 3, 12, 5)
    ]
    unsigned = [{key: (~row[key].astype("uint64")).astype(name) for key in row} for row in rows]
    signed = [{key: row[key].view(name[1:]) for key in row} for row in unsigned]
    return [[{**row, "y": row["y"][0]} for row in kind] for kind in (unsigned, signed)]


UNSIGNED = [  # a policy of each way to lay rows, and the collators that can
    (Bucketed(3), LAYOUTS),
    (Packed(2, 20), LAYOUTS),
    (Windows(2, horizon=1, batch_size=8), LAYOUTS),
    (TBPTT(2, 6), ["padded"]),  # idle rows cannot be packed
]


@pytest.mark.parametrize(
    ("dtype", "policy", "collators"),
    [
        pytest.param(
            dtype, *one, id=f"{str(dtype).removeprefix('torch.')}-{type(one[0]).__name__}",
            marks=[] if dtype is torch.uint32 or one is UNSIGNED[0] else pytest.mark.nightly,
        )
        for dtype, one in itertools.product(SIGNED, UNSIGNED)
    ],
)  # fmt: skip
def test_unsigned_values_are_those_of_the_same_bits(dtype, policy, collators):
    stores = [MemoryStore.from_sequences(rows, axes=AXES) for rows in rows_of_bits(dtype)]
    for collator in collators:
        loaders = [Loader(s, policy, collator=collator, whole=("text",)) for s in stores]
        for pair in zip(*loaders, strict=True):
            with NoneUnsigned():
                if collators is LAYOUTS:
                    for layout in LAYOUTS:
                        assert_same_bits(*(b.validate().as_layout(layout) for b in pair), dtype)
                for batch in pair:
                    batch.weight = batch.weight * (torch.arange(len(batch)) > 0)
                if not bool(pair[0].weight.any()):
                    continue
                for layout in LAYOUTS:
                    assert_same_bits(*(batch.real().as_layout(layout) for batch in pair), dtype)
