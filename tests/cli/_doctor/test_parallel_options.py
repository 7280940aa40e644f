"""What splitting brings: formulas by hand, memory and bytes from counts."""

from typing import Any

import pytest
from torch import nn

from seqdata.cli._doctor.parallel_options import (
    OptionTable,
    UpdateShape,
    choose_option,
    require_memory,
)
from seqdata.cli._doctor.stack_counts import StackCounts, count_model


class Stack(nn.Module):
    def __init__(self, rnn: nn.Module) -> None:
        super().__init__()
        self.rnn = rnn

    def parallel_stages(self) -> list[nn.Module]:
        return [self.rnn]


def stack(layers: int = 4, **options: Any) -> StackCounts:
    return count_model(
        Stack(nn.LSTM(8, 8, layers, batch_first=True, **options)), "stack", is_cpu=False
    )


def table(
    counts: StackCounts | None = None, rows: int = 16, timesteps: int = 32, batches: int = 8,
    *, is_carried: bool = True,
) -> OptionTable:  # fmt: skip
    return OptionTable(counts or stack(), UpdateShape(rows, timesteps, batches, is_carried), "cpu")


@pytest.mark.parametrize(
    ("stages", "items", "speedup", "apart"),
    [(2, 8, 1.78, 1.92), (4, 16, 3.37, 3.76), (2, 4, 1.6, 1.85), (4, 1, 1.0, 2.0)],
)
def test_a_wavefront_of_equal_stages_has_the_speedup_of_the_formula(stages, items, speedup, apart):
    found = table(batches=items).layers(stages, 1)
    assert found.speedup == pytest.approx(items * stages / (items + stages - 1))
    assert found.speedup == pytest.approx(speedup, abs=0.005)
    assert found.split_backward == pytest.approx(apart, abs=0.005)
    assert found.bubble == pytest.approx((stages - 1) / (items + stages - 1))


def test_the_most_expensive_stage_sets_the_pace():
    found = table(stack(3), batches=4).layers(2, 1)  # of 1 and 2 layers
    assert found.speedup == pytest.approx(4 * 3 / (3 + 3 * 2))


@pytest.mark.parametrize(("parts", "speedup"), [(2, 8 / 5), (4, 16 / 7)])
def test_a_ring_has_the_speedup_of_the_formula(parts, speedup):
    found = table().time(parts, 1)  # four lane groups
    assert found.speedup == pytest.approx(speedup)
    assert found.split_backward == pytest.approx(4 * parts / (4 + (parts - 1) / 3))
    few = table(rows=2).time(parts, 1)
    assert few.speedup == pytest.approx(2 * parts / (2 + parts - 1))
    assert f"RingStrategy({parts}, lane_groups=2)" in few.code


def test_rows_that_do_not_divide_cost_what_the_fullest_device_has():
    assert table(rows=6).data(4).speedup == pytest.approx(6 / 2)
    refused = table(rows=3).data(4)
    assert "3 rows: 1 of 4 devices have none" in refused.why_not


def test_batches_of_whole_rows_are_dealt_and_not_split():
    """Each device has whole batches of the update, with all their rows."""
    found = table(rows=3, batches=8, is_carried=False)
    option = found.data(4)
    assert option.speedup == 8 / 2
    assert option.formula == "N / ceil(N / W) = 8 / 2"
    assert option.memory == found.data(1).memory
    assert option.operations == (found.data(1).operations[0] // 4,)
    assert not option.why_not
    refused = found.data(3)
    assert refused.speedup == pytest.approx(8 / 3)
    assert "8 batches of an update: no multiple of 3 replicas. Pass --chunks 9" in refused.why_not


def test_whole_rows_keep_their_updates_by_the_datamodule():
    found = table(is_carried=False)
    assert found.data(2).code == (
        "data = SequenceDataModule(..., batches_per_update=8)\n"
        'Trainer(accelerator="cpu", devices=2, strategy="ddp")'
    )
    assert "batches_per_update=8" in found.data(1).code
    assert table(is_carried=False, batches=1).data(1).code == (
        'Trainer(accelerator="cpu", devices=1)'
    )
    assert not any("accumulate_grad" in option.code for option in found.list_options(4))
    carried = table()
    assert 'strategy="ddp", accumulate_grad_batches=8)' in carried.data(2).code
    assert not any("batches_per_update" in option.code for option in carried.list_options(4))


def test_replicas_of_a_mesh_are_dealt_whole_rows_too():
    found = table(is_carried=False)
    waves, ring = found.layers(2, 2), found.time(2, 2)
    assert "WavefrontStrategy(2, chunks=4, data=2))" in waves.code
    assert waves.formula == "W N S / (N + S - 1) = 2 x 4 x 2 / 5"
    assert waves.speedup == pytest.approx(2 * 4 * 2 / 5)
    assert waves.gives_up.startswith("an update is 8 batches")
    assert waves.memory == found.layers(2, 1).memory
    assert ring.speedup == pytest.approx(2 * found.time(2, 1).speedup)
    assert ring.memory == found.time(2, 1).memory
    odd = table(is_carried=False, batches=3)
    assert "no multiple of 2 replicas. Pass --chunks 4" in odd.layers(2, 2).why_not
    assert "no multiple of 2 replicas. Pass --chunks 4" in odd.time(2, 2).why_not


def test_hybrids_multiply():
    found = table(batches=8)
    assert found.layers(2, 2).speedup == pytest.approx(2 * found.layers(2, 1).speedup)
    assert found.time(2, 2).speedup == pytest.approx(2 * found.time(2, 1).speedup)
    assert found.layers(2, 2).devices == 4
    assert "WavefrontStrategy(2, chunks=8, data=2), accumulate_grad_batches=8" in (
        found.layers(2, 2).code
    )


def test_memory_is_weights_gradients_moments_and_kept_values():
    layer = 4 * 8 * 16 + 64
    kept = 8 + 7 * 8  # of a layer, per row and timestep
    found = table()
    assert found.data(1).memory == 4 * (4 * 4 * layer + 4 * kept * 16 * 32)
    assert found.data(4).memory == 4 * (4 * 4 * layer + 4 * kept * 4 * 32)
    # stage 0 of 2 has two graphs of two layers; of other stages it has the weights only
    assert found.layers(2, 1).memory == 4 * (4 * layer + 3 * 2 * layer + 2 * 2 * kept * 16 * 32)
    # part 0 of 2 has two graphs of a quarter of the rows and half of the timesteps
    assert found.time(2, 1).memory == 4 * (4 * 4 * layer + 2 * 4 * kept * 4 * 16)


def test_bytes_are_those_of_activations_states_and_gradients():
    weights = 4 * (4 * 8 * 16 + 64)
    found = table()
    assert found.data(1).sent == 0
    assert found.data(4).sent == 4 * weights * 2 * 3 // 4
    assert found.layers(2, 1).sent == 4 * 8 * 16 * 32 * 8  # chunks, rows, timesteps, size
    assert found.layers(4, 1).sent == 2 * 4 * 8 * 16 * 32 * 8  # to both sides
    states = 4 * 8 * 16 * (4 * 16)  # chunks, rows, h and c of each layer
    assert found.time(2, 1).sent == 2 * states + 4 * weights  # left, and to all at the end
    assert table(is_carried=False).time(2, 1).sent == states + 4 * weights
    assert found.time(4, 1).sent == 2 * states + 4 * weights * 2 * 3 // 4


def test_operations_are_six_for_each_weight_and_timestep():
    found = table().layers(2, 1)
    layer = 4 * 8 * 16 + 64
    assert found.operations == (6 * 2 * layer * 16 * 32 * 8,) * 2
    assert sum(table().time(4, 1).operations) == sum(found.operations)


def test_what_cannot_be_split_has_its_reason():
    both = table(stack(2, bidirectional=True))
    for option in (both.layers(2, 1), both.time(2, 1)):
        assert "the backward direction begins where the sequence ends" in option.why_not
    assert not both.data(2).why_not
    assert table(stack(1)).layers(2, 1).why_not == "1 recurrent layer: too few for 2 stages"
    assert not table(stack(1)).time(2, 1).why_not
    assert "too short" in table(timesteps=3).time(4, 1).why_not
    unnamed = count_model(nn.LSTM(8, 8, 2), "x", is_cpu=True)
    assert "does not name its parts: write `parallel_stages`" in table(unnamed).time(2, 1).why_not

    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder, self.decoder = nn.LSTM(2, 3), nn.LSTM(2, 3)

    several = table(count_model(Two(), "x", is_cpu=True)).layers(2, 1)
    assert "several recurrent parts (encoder and decoder)" in several.why_not


def test_the_fastest_is_chosen_and_the_simpler_one_of_equals():
    axes = [option.axis for option in table().list_options(4)]
    assert axes == ["one device", "data", "layers", "time", "data x layers", "data x time"]
    assert choose_option(list(table().list_options(4))).axis == "data"
    assert choose_option(list(table(rows=1).list_options(2))).axis == "layers"
    assert choose_option(list(table(stack(1), rows=1).list_options(2))).axis == "one device"
    rows_of_3 = list(table(stack(1), rows=3).list_options(4))
    assert choose_option(rows_of_3).axis == "time"


def test_an_option_that_does_not_fit_a_device_is_refused():
    ring, whole = table(timesteps=10_000).time(2, 1), table(timesteps=10_000).data(1)
    between = (ring.memory + whole.memory) // 2
    assert "GiB, but a device has" in require_memory(whole, between).why_not
    assert not require_memory(ring, between).why_not
    assert not require_memory(whole, None).why_not
