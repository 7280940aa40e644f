"""The report of ``seqdata doctor --model``: figures for people, and the same as plain data."""

import io
import json

import pytest
from rich.console import Console

from seqdata.cli._doctor.parallel import ParallelReport, format_count
from seqdata.cli._doctor.parallel_options import ParallelOption, UpdateShape
from seqdata.cli._doctor.stack_counts import PartCounts, StackCounts


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0"), (12, "12"), (999, "999"), (1000, "1 k"), (2.14e6, "2.14 M"), (3e9, "3 G"),
     (5e12, "5 T"), (7e15, "7 P"), (7e18, "7e+03 P")],
)  # fmt: skip
def test_counts_are_short(count, text):
    assert format_count(count) == text


def part(name, cell, cost):
    return PartCounts(
        name=name, cell=cell, inputs=8, outputs=16, parameters=cost, cost=cost, kept=16
    )


def option(axis, data=1, size=1, speedup=1.0, **changes):
    return ParallelOption(
        **{
            "axis": axis, "data": data, "size": size, "formula": "W", "speedup": speedup,
            "bubble": 0.25, "memory": 1 << 20, "sent": 1 << 10, "operations": (1000,) * size,
            "gives_up": "nothing", "code": f"Trainer({axis})", **changes,
        }
    )  # fmt: skip


def make(options, chosen, measured=None, **changes):
    counts = StackCounts(
        name="LM", parts=(part("rnn.l0", "lstm", 1536), part("out", "", 100)), parameters=1636,
        shared=0, itemsize=4, recurrent=("rnn",), is_bidirectional=False, names_parts=None,
    )  # fmt: skip
    shape = UpdateShape(16, 32, 2, changes.pop("is_carried", True))
    return ParallelReport(
        counts=counts, shape=shape, accelerator="cpu", devices=2, found=1, memory=None,
        options=options, chosen=options[chosen], measured=measured, **changes,
    )  # fmt: skip


def shown(report):
    file = io.StringIO()
    console = Console(file=file, width=140)
    for line in report.iter_lines():
        console.print(line)
    return file.getvalue()


OPTIONS = [option("none"), option("layers", 1, 2, 1.5), option("data", 2, 1, 1.9, why_not="odd")]


def test_the_option_to_use_comes_after_the_table_with_its_code():
    text = shown(make(OPTIONS, 1))
    table, _, rest = text.partition("\n\n")
    assert len(table.splitlines()) == 1 + len(OPTIONS)
    assert rest.startswith("Use: layers, speedup 1.50\n  Trainer(layers)\n\n")
    assert "1 recurrent layers, 1,636 weights of 4 bytes" in text
    assert "2 batches of 16 lanes x 32 timesteps" in text
    assert "data: speedup W; gives up nothing\n  not here: odd" in text
    assert "operations of a replica's devices: 1 k + 1 k; sent a batch: 512 bytes" in text
    assert "on CPUs a device is a process with one thread" in text
    assert "\n\nUse: none\n  Trainer(none)\n\n" in shown(make(OPTIONS, 0))


def test_rows_are_named_as_what_they_are():
    assert "16 rows x 32" in shown(make(OPTIONS, 0, is_carried=False))


def test_what_was_measured_comes_before_what_was_counted():
    report = make(OPTIONS, 1, measured=(1.0, 1.25, 0.5))
    assert report.get_speedup(OPTIONS[1]) == 1.25
    assert make(OPTIONS, 1).get_speedup(OPTIONS[1]) == 1.5
    assert "measured" in shown(report)
    assert "Use: layers, speedup 1.25" in shown(report)


def test_json_has_all_of_it():
    plain = json.loads(json.dumps(make(OPTIONS, 1, measured=(1.0, 1.25, 0.5)).to_json()))
    assert plain["recommended"] == {"option": 1, "code": "Trainer(layers)"}
    assert [each["devices"] for each in plain["options"]] == [1, 2, 2]
    assert [each["measured_speedup"] for each in plain["options"]] == [1.0, 1.25, 0.5]
    assert plain["machine"] == {"accelerator": "cpu", "devices": 1, "memory": None}
    assert "measured_speedup" not in make(OPTIONS, 1).to_json()["options"][0]
    assert [each["name"] for each in plain["one_device"]][1:3] == ["cuDNN", "FlashRNN"]
