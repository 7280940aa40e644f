"""``seqdata plan``: an epoch before it is trained."""

import json
import sys

import numpy as np
import pytest
from click.testing import CliRunner

from seqdata.api import open_store, write_store
from seqdata.cli._report.statistics import compute_random_padding, compute_world_stats
from seqdata.cli.app import app
from seqdata.index import SequenceIndex
from seqdata.planning.build import describe_policy
from seqdata.policies.fixed import Bucketed
from seqdata.policies.packed import Packed
from seqdata.policies.tbptt import TBPTT
from seqdata.policies.token_budget import TokenBudget
from seqdata.policies.windows import Windows
from tests.cli.commands import read_rows, run_plan

LENGTHS = [int(length) for length in np.random.Philox(1).random_raw(200) % 90]


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plan") / "store"
    rows = [{"id": f"s{i}", "x": np.zeros(n, dtype=np.int8)} for i, n in enumerate(LENGTHS)]
    write_store(folder, rows)
    return str(folder)


def test_a_plan_is_reported_per_world(store):
    text = run_plan(store, "--max-tokens", 1000, "--world", "1,2,8")
    plan = TokenBudget(1000).plan(SequenceIndex.from_lengths(LENGTHS), seed=0, epoch=0)
    figures, *table = text.splitlines()[-5:]
    random = compute_random_padding(plan, plan.measures, 0)
    padding = f"{100 - 100 / plan.report.waste:.1f} % padding"
    compared = f"(random batches of this size: {100 * random:.0f} %)"
    assert figures == f"{len(plan)} batches · {sum(LENGTHS):,} timesteps · {padding}    {compared}"
    assert table[0] == "GPUs   steps   padding batches in the last step"
    for size, line in zip((1, 2, 8), table[1:], strict=True):
        steps = -(-len(plan) // size)
        count = steps * size - len(plan)
        share = 100 * count / (steps * size)
        hint = 'tail="drop" skips the last step'
        remark = f"   ({share:.0f} % of the epoch; {hint})" if count else ""
        assert line == f"{size:>4}   {steps:>5}   {count}{remark}"
    report = plan.report
    assert f"most expensive: batch {report.worst}, {report.worst_rows} rows of up to" in text
    empty = LENGTHS.count(0)
    noun = "sequence" if empty == 1 else "sequences"
    assert f"dropped: {empty} {noun}: s{LENGTHS.index(0)}" in text
    assert text.startswith("TokenBudget(max_tokens=1000)\norder: ")
    assert "imbalance: 1.0" in text
    assert "on 8 GPUs (how much longer the slowest GPU's rows are than the average;" in text


def test_the_same_as_json(store):
    facts = json.loads(run_plan(store, "--max-tokens", 1000, "--world", "4", "--json", "--seed", 3))
    index = SequenceIndex.from_lengths(LENGTHS)
    plan = TokenBudget(1000).plan(index, seed=3, epoch=0)
    assert facts["batches"] == len(plan)
    assert facts["seed"] == 3
    assert facts["waste"] == pytest.approx(plan.report.waste)
    assert facts["worst"]["batch"] == plan.report.worst
    assert facts["dropped"]["count"] == LENGTHS.count(0)
    assert facts["dropped"]["first"][0] == f"s{LENGTHS.index(0)}"
    assert facts["split"] == {"count": 0, "first": []}
    (world,) = facts["worlds"]
    assert (world["size"], world["steps"]) == (4, -(-len(plan) // 4))


def test_options_of_the_policy_are_handed_on(store):
    facts = json.loads(
        run_plan(
            store, "--batching", "bucketed", "--batch-size", 16, "--max-length", 50,
            "--too-long", "truncate", "--no-shuffle", "--axis", "time", "--epoch", 2, "--json",
        )
    )  # fmt: skip
    assert "Bucketed(batch_size=16, shuffle=False, axis='time', max_length=50" in facts["policy"]
    assert facts["truncated"]["count"] == sum(length > 50 for length in LENGTHS)
    assert facts["epoch"] == 2
    assert facts["worst"]["longest"] == 50


def test_an_epoch_changes_the_plan_but_not_its_size(store):
    one, two = (
        json.loads(run_plan(store, "--max-tokens", 500, "--epoch", epoch, "--json"))
        for epoch in (0, 1)
    )
    assert one["fingerprint"] != two["fingerprint"]
    assert one["batches"] == two["batches"]


@pytest.mark.slow
def test_a_picture_is_drawn(store, tmp_path):
    path = tmp_path / "new" / "plan.png"
    assert f"drawn: {path}" in run_plan(store, "--max-tokens", 500, "--plot", path)
    assert path.read_bytes().startswith(b"\x89PNG")


def test_a_picture_without_matplotlib_names_the_extra(store, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    message = run_plan(store, "--max-tokens", 500, "--plot", tmp_path / "p.png", code=2)
    assert "matplotlib, which is not installed; pip install 'lightning-seqdata[plot]'" in message


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ([], 2, "policy 'token-budget': missing a required argument: --max-tokens"),
        (["--max-tokens", 0], 2, "policy 'token-budget': --max-tokens must be an integer"),
        (["--max-tokens", 10], 1, "longer than --max-tokens 10"),
        (["--batching", "bucketd", "--batch-size", 2], 1, "did you mean 'bucketed'?"),
        (["--max-tokens", 99, "--axis", "text"], 1, "no axis 'text'; pass --axis. Axes: time"),
        (
            ["--max-tokens", 99, "--world", "1,0"],
            2,
            "must be numbers of ranks like 1,2,8, but is '1,0'",
        ),
        (["--max-tokens", 99, "--world", "two"], 2, "must be numbers of ranks"),
        (["--max-tokens", 99, "--seed", -1], 2, "--seed"),
    ],
)
def test_bad_arguments_are_a_message_and_an_exit_code(store, arguments, code, message):
    assert message in run_plan(store, *arguments, code=code)


def test_lanes_are_planned_by_either_name_of_the_option(store):
    options = ("--lanes", 8, "--chunk", 16, "--world", "1,3")
    text = run_plan(store, "--batching", "tbptt", *options)
    assert text == run_plan(store, "--batching", "tbptt", *options)
    plan = TBPTT(8, 16).plan(SequenceIndex.from_lengths(LENGTHS), seed=0, epoch=0)
    idle = 1 - plan.totals(0, len(plan))[1] / (8 * len(plan))
    assert f"8 lanes: {100 * idle:.2f} % of the rows are idle\n" in text
    assert "\nTBPTT(lanes=8, chunk=16)\n" in text
    assert "random batches" not in text


def test_lanes_that_are_mostly_idle_come_with_a_remedy(store):
    options = ("--batching", "tbptt", "--chunk", 16, "--world", 1)
    remedy = "% of the rows are idle; try fewer --lanes, or --continuous for few long sequences\n"
    assert remedy in run_plan(store, *options, "--lanes", 2 * len(LENGTHS))
    assert "0.00 % of the rows are idle\n" in run_plan(
        store, *options, "--lanes", 8, "--continuous"
    )


@pytest.mark.parametrize(
    ("options", "policy"),
    [
        (["--continuous"], TBPTT(4, 16, continuous=True)),
        (["--segments", "--jitter"], TBPTT(4, 16, segments=True, jitter=True)),
        (["--advance", 10], TBPTT(4, 16, advance=10)),
        (["--no-shuffle"], TBPTT(4, 16, shuffle=False)),
    ],
)
def test_every_option_of_lanes_has_a_switch(store, options, policy):
    facts = json.loads(
        run_plan(store, "--batching", "tbptt", "--lanes", 4, "--chunk", 16, "--json", *options)
    )
    plan = policy.plan(SequenceIndex.from_lengths(LENGTHS), seed=0, epoch=0)
    assert facts["policy"] == describe_policy(policy)
    assert (facts["batches"], facts["lanes"]) == (len(plan), 4)


@pytest.mark.parametrize(
    ("options", "policy"),
    [
        (["packed", "--rows", 4, "--row-length", 100], Packed(4, 100)),
        (["windows", "--size", 8, "--stride", 2, "--horizon", 3], Windows(8, 2, horizon=3)),
        (
            ["windows", "--size", 8, "--random", "--per-sequence", 3, "--batch-size", 5],
            Windows(8, random=True, per_sequence=3, batch_size=5),
        ),
    ],
)
def test_packed_rows_and_windows_are_planned(store, options, policy):
    facts = json.loads(run_plan(store, "--json", "--batching", *options))
    plan = policy.plan(SequenceIndex.from_lengths(LENGTHS), seed=0, epoch=0)
    assert facts["policy"] == describe_policy(policy)
    assert facts["batches"] == len(plan)


def test_a_shift_leaves_a_stream_shorter_once(store):
    options = ("--batching", "tbptt", "--lanes", 4, "--chunk", 16, "--shift", 1, "--json")
    facts = [json.loads(run_plan(store, *options, *more)) for more in ([], ["--continuous"])]
    empty = LENGTHS.count(0)
    assert facts[0]["timesteps"] == sum(LENGTHS) - len(LENGTHS) + empty
    assert facts[1]["timesteps"] == sum(LENGTHS) - 1


def test_lanes_are_drawn(store, tmp_path):
    drawn = tmp_path / "lanes.png"
    text = run_plan(store, "--batching", "tbptt", "--lanes", 4, "--chunk", 16, "--plot", drawn)
    assert drawn.read_bytes().startswith(b"\x89PNG")
    assert f"drawn: {drawn}" in text


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("parts")
    for name, count, length in (("books", 60, 4), ("code", 20, 8)):
        write_store(folder / name, [{"x": np.zeros(length, dtype=np.int8)}] * count)
    return [str(folder / name) for name in ("books", "code")]


def test_a_mixture_shows_the_shares_and_passes_of_its_parts(parts):
    arguments = [*parts, "--mix", "0.75,0.25", "--batching", "fixed", "--batch-size", 2]
    text = run_plan(*arguments, "--batches", 96, "--world", "1,8")
    rows = read_rows(text)
    table = {row[0]: row[1:] for row in rows if len(row) == 6}
    assert table["books"][:2] == ["72", "75.00 %"]
    assert table["code"] == ["24", "25.00 %", "384", "40.00 %", "2.40"]
    assert table["books"][4] == "2.40"
    assert [row[:2] for row in rows[-2:]] == [["1", "96"], ["8", "12"]]


def test_a_mixture_as_json(parts):
    arguments = [*parts, "--mix", "1,1", "--batching", "fixed", "--batch-size", 2]
    facts = json.loads(run_plan(*arguments, "--by", "timesteps", "--batches", 2400, "--json"))
    assert [part["part"] for part in facts["parts"]] == ["books", "code"]
    assert [part["timestep_share"] for part in facts["parts"]] == pytest.approx(
        [0.5, 0.5], abs=0.01
    )
    assert facts["parts"][0]["passes"] == pytest.approx(1600 / 30, abs=0.6)
    assert facts["policy"].startswith("Mix(parts={'books': Part(weight=1.0")


def test_a_temperature_makes_shares_even(parts):
    arguments = [*parts, "--mix", "1,1", "--batching", "fixed", "--batch-size", 2]
    facts = json.loads(run_plan(*arguments, "--temperature", 2, "--batches", 2400, "--json"))
    assert facts["parts"][1]["share"] == pytest.approx(20**0.5 / (20**0.5 + 60**0.5), abs=0.01)


def test_parts_of_one_name_are_named_by_their_paths(parts, tmp_path):
    write_store(tmp_path / "books", [{"x": np.zeros(3, dtype=np.int8)}])
    stores = [parts[0], str(tmp_path / "books")]
    facts = json.loads(run_plan(*stores, "--mix", "1,1", "--max-tokens", 9, "--json"))
    assert [part["part"] for part in facts["parts"]] == stores


def test_stores_and_weights_must_match(parts):
    text = run_plan(*parts, "--mix", "1,1,1", "--max-tokens", 9, code=2)
    assert "`--mix` must have a weight for each of 2 stores, but has 3" in text
    text = run_plan(*parts, "--mix", "1,a", "--max-tokens", 9, code=2)
    assert "must be weights like 0.7,0.3, but is '1,a'" in text
    assert "the weight of part 'code' must be a finite number" in run_plan(
        *parts, "--mix", "1,-1", "--max-tokens", 9, code=2
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--mix", "1,1,1"], "`--mix` must have a weight for each of 2 stores, but has 3"),
        (["--mix", "1,-1"], "the weight of part 'code' must be a finite number"),
        (["--mix", "0,0"], "at least one `weight` must be above 0"),
        (["--mix", "1,1", "--by", "rows"], "--by must be one of"),
        (["--mix", "1,1", "--batches", 0], "--batches must be"),
        (["--mix", "1,1", "--temperature", -1], "--temperature must be at least 0.01"),
        (["--by", "timesteps"], "`--by` can only be used with `--mix`, but there is none"),
        (["--batches", 9], "only be used with `--mix` or `--curriculum`, but there is none"),
        (["--temperature", 4, "--batches", 9], "`--batches`, `--temperature` can only"),
        (["--shuffle", "blocks", "--no-shuffle"], "`--shuffle` and `--no-shuffle` are both given"),
        (["--mix", "1,1"], "missing a required argument"),
    ],
)
def test_what_is_wrong_with_a_mixture_is_said_before_its_policy_is_asked_for(
    parts, options, message
):
    assert message in run_plan(*parts, *options, code=2)


def test_batches_of_an_update_are_of_one_part(parts):
    arguments = [*parts, "--mix", "1,1", "--max-tokens", 9, "--batches-per-update", 3, "--json"]
    assert "batches_per_update=3" in json.loads(run_plan(*arguments))["policy"]


def test_each_world_is_planned_for_its_ranks_unless_an_update_or_the_policy_says(store):
    options = ["--batching", "bucketed", "--batch-size", 2, "--world", "1,2,4", "--json"]
    index = SequenceIndex.from_store(open_store(store))

    def facts_of(*more):
        facts = json.loads(run_plan(store, *options, *more))
        return facts["fingerprint"], facts["order"], [each["balance"] for each in facts["worlds"]]

    def expected(*ranks):
        plans = [Bucketed(2, balance_ranks=each).plan(index, seed=0, epoch=0) for each in ranks]
        balances = [
            compute_world_stats(plan, plan.measures, [size])[0].balance
            for plan, size in zip(plans, (1, 2, 4), strict=True)
        ]
        noun = "rank" if ranks[0] == 1 else "ranks"
        order = f"shuffled over all data, balanced for {ranks[0]} {noun}"
        return plans[0].fingerprint, order, balances

    assert facts_of() == expected(1, 2, 4)
    assert facts_of("--batches-per-update", 4) == expected(4, 4, 4)
    assert facts_of("--balance-ranks", 2) == expected(2, 2, 2)
    assert "order: shuffled over all data, balanced for 1 rank\n" in run_plan(store, *options[:-1])


def test_the_order_and_the_repeats_are_said(store, tmp_path):
    blocks = run_plan(store, "--max-tokens", 1000, "--shuffle", "blocks", "--json")
    assert "shuffle='blocks'" in json.loads(blocks)["policy"]
    assert json.loads(blocks)["repeats"] == 0
    assert "order: not shuffled" in run_plan(store, "--max-tokens", 1000, "--no-shuffle")


def test_a_limit_is_raised_over_the_run(store, parts):
    rules = ["--max-tokens", 1000, "--curriculum", "0:40,3:60,6:None"]
    facts = [
        json.loads(run_plan(store, *rules, "--segment", 4, "--epoch", epoch, "--json"))
        for epoch in range(3)
    ]
    assert len({fact["batches"] for fact in facts}) == 1
    assert [fact["dropped"]["count"] for fact in facts] == [
        sum(length > limit or not length for length in LENGTHS) for limit in (40, 60, 90)
    ]
    rules_text = "max_length=((0, 40), (3, 60), (6, None)), by=None, segment=4, batches=None)"
    assert facts[0]["policy"].endswith(rules_text)
    assert json.loads(run_plan(store, *rules, "--batches", 7, "--json"))["batches"] == 7
    mixed = run_plan(*parts, "--mix", "1,1", "--batches", 24, *rules, "--segment", 5, "--json")
    assert json.loads(mixed)["batches"] == 24


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--curriculum", "40"], "must be pairs like 0:256,2:1024,5:none, but is '40'"),
        (["--curriculum", "1:40"], "must rise from 0, with lengths of at least 1, like 0:256"),
        (["--curriculum", "0:0"], "must rise from 0, with lengths of at least 1, like 0:256"),
        (["--curriculum", "0:40", "--segment", 0], "--segment must be an integer of at least 1"),
        (["--segment", 5], "`--segment` requires `--curriculum`, but there is none. Pass"),
        (["--zip", "40", "--curriculum", "0:40"], "`--curriculum` cannot be combined with `--zip`"),
        (
            ["--batching", "tbptt", "--lanes", 4, "--chunk", 8, "--curriculum", "0:40"],
            "`policy` must have the options max_length and too_long, but TBPTT has no",
        ),
    ],
)
def test_what_is_wrong_with_a_curriculum_is_said(store, options, message):
    policy = [] if "tbptt" in options else ["--max-tokens", 1000]
    assert message in run_plan(store, *policy, *options, code=2)


def test_several_stores_are_planned_as_one(parts):
    arguments = ["--batching", "fixed", "--batch-size", 2, "--json"]
    facts = json.loads(run_plan(*parts, *arguments))
    assert (facts["batches"], facts["timesteps"]) == (40, 60 * 4 + 20 * 8)
    assert "parts" not in facts


def test_stores_that_are_not_one_are_refused(parts, tmp_path):
    write_store(tmp_path / "other", [{"y": [1.0]}])
    text = run_plan(parts[0], tmp_path / "other", "--max-tokens", 9, code=2)
    assert "concat: stores must have the same fields, but store 1 differs from store 0" in text
    assert str(tmp_path / "other") in text


def test_ids_are_printed_letter_by_letter(tmp_path):
    rows = [{"id": f"spk:a:{i}", "x": np.zeros(i + 1)} for i in range(4)]  # rich has an :a:
    write_store(tmp_path / "store", rows)
    done = run_plan(
        str(tmp_path / "store"), "--batching", "fixed", "--batch-size", "2",
        "--max-length", "2", "--too-long", "drop",
    )  # fmt: skip
    assert "dropped: 2 sequences: spk:a:2, spk:a:3" in done


@pytest.mark.parametrize(
    ("option", "name", "text"),
    [("--plot", "plan.pdf", "`--plot` must be a path that ends in .png, but is"),
     ("--ledger", "left.csv", "`--ledger` must be a path that ends in .jsonl, the format that is")],
)  # fmt: skip
def test_a_file_is_named_as_what_is_written(store, tmp_path, option, name, text):
    path = tmp_path / name
    done = CliRunner().invoke(app, ["plan", str(store), "--max-tokens", "500", option, str(path)])
    assert done.exit_code == 2
    assert text in done.stderr
    assert not path.exists()
