"""Each example does what it says, at a small size."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from tests.example_runs import EXAMPLES, load_example, run_example

LABELS = ["b", "a", "ten"]


def records(out: Path, name: str) -> list[list]:
    return [json.loads(line) for line in (out / f"{name}.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def demo(tmp_path_factory) -> tuple[Path, list[str]]:
    out = tmp_path_factory.mktemp("demo")
    return out, run_example("first_run.py", "--smoke", "--out", out)


@pytest.mark.slow
def test_the_demo_goes_on_in_mid_epoch_exactly_where_it_was_stopped(demo):
    out, lines = demo
    whole, stopped, resumed = (records(out, name) for name in ("whole", "stopped", "resumed"))
    assert stopped + resumed == whole
    assert stopped[-1][0] == resumed[0][0] == 1  # both in the second epoch
    ids = [row[0] for step in whole for row in step[2:]]
    assert sorted(ids) == sorted(2 * list(range(150)))
    assert "  The parameters they end with differ by at most 0.0." in lines


@pytest.mark.slow
def test_the_demo_shows_lengths_plan_picture_and_falling_loss(demo):
    out, lines = demo
    text = "\n".join(lines)
    assert (out / "plan.png").read_bytes().startswith(b"\x89PNG")
    assert "Lengths along 'time'" in text
    assert "truncated: " in text
    bits = [float(found) for found in re.findall(r"([\d.]+) bits per byte", text)]
    assert bits[0] > bits[1] > bits[2] > bits[3]
    assert "What to try next" in text


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["a batch", "a byte", "the order"])
def test_the_demo_would_notice_what_is_lost(demo, tmp_path, loss):
    out, _ = demo
    for name in ("whole", "stopped", "resumed"):
        (tmp_path / f"{name}.jsonl").write_bytes((out / f"{name}.jsonl").read_bytes())
    resumed = records(out, "resumed")
    if loss == "a batch":
        resumed.pop()
    elif loss == "a byte":
        resumed[0][2][1] = "0" * 32
    else:
        resumed.reverse()
    (tmp_path / "resumed.jsonl").write_text("\n".join(map(json.dumps, resumed)))
    with pytest.raises(SystemExit, match="NOT PROVED"):
        load_example("first_run").prove(tmp_path, len(records(out, "stopped")))


@pytest.fixture
def speakers(tmp_path) -> tuple[Path, list[str]]:
    """A folder with .ts files of three speakers who are easy to tell apart."""
    random = np.random.default_rng(0)
    for part in ("TRAIN", "TEST"):
        lines, labels = ["# made up", "@problemName Three", "@data"], []
        for _ in range(60):
            label = int(random.integers(3))
            frames = random.normal(2.0 * label, 1.0, (int(random.integers(7, 30)), 4))
            channels = [",".join(f"{value:.4f}" for value in channel) for channel in frames.T]
            lines.append(":".join([*channels, LABELS[label]]))
            labels.append(LABELS[label])
        (tmp_path / f"Three_{part}.ts").write_text("\n".join(lines) + "\n\n")
    return tmp_path, labels


@pytest.mark.slow
def test_japanese_vowels_gives_labels_in_the_files_order(speakers):
    folder, labels = speakers
    written = folder / "predictions.json"
    lines = run_example(
        "japanese_vowels.py", folder, "--epochs", 20, "--seeds", 1, "--predictions", written
    )
    assert lines[0] == "60 sequences to train, 60 to test, 3 speakers"
    (found,) = json.loads(written.read_text())
    assert len(found) == 60
    share = np.mean(np.array(found) == labels)
    assert share >= 0.95
    assert lines[-1] == f"mean test accuracy {100 * share:.1f} % over 1 seeds"


@pytest.mark.slow
def test_japanese_vowels_has_a_short_form(speakers):
    lines = run_example("japanese_vowels.py", speakers[0], "--smoke")
    assert re.fullmatch(r"mean test accuracy \d+\.\d % over 2 seeds", lines[-1])
    differences = [float(line.split()[-1]) for line in lines if "logits differ" in line]
    assert len(differences) == 2
    assert max(differences) <= 1e-6


@pytest.mark.slow
def test_a_rare_speaker_is_found_when_drawn_by_weight(tmp_path):
    random = np.random.default_rng(0)
    for part in ("TRAIN", "TEST"):
        lines = ["@data"]
        for number in range(160):
            is_rare = number % 4 == 0
            frames = random.normal(0.8 * is_rare, 1.0, (int(random.integers(7, 20)), 4))
            channels = [",".join(f"{value:.4f}" for value in channel) for channel in frames.T]
            lines.append(":".join([*channels, "rare" if is_rare else "other"]))
        (tmp_path / f"Two_{part}.ts").write_text("\n".join(lines) + "\n")
    options = ("--speaker", "rare", "--kept", 6, "--epochs", 4, "--seeds", 1)
    lines = run_example("rare_speaker.py", tmp_path, *options)
    assert lines[0] == "126 sequences to train, 6 of the speaker's"
    plain, weighted = (float(f1) for f1 in re.findall(r"F1 (\d\.\d\d)", lines[-1]))
    assert weighted > plain + 0.3


@pytest.mark.slow
def test_sequences_without_a_label_are_trained_in_the_same_steps(speakers):
    options = ("--kept", 3, "--epochs", 12, "--seeds", 1)
    lines = run_example("semi_supervised.py", speakers[0], *options)
    assert lines[0] == "9 sequences with a label, 51 without"
    alone, both = (float(share) for share in re.findall(r"(\d+\.\d) %", lines[-1]))
    assert min(alone, both) > 60
    assert lines[-1].startswith(f"accuracy {alone:.1f} % from labels alone; {both:.1f} % with")


@pytest.mark.slow
def test_a_small_language_is_learned_better_by_temperature():
    lines = run_example("two_languages.py", "--smoke")
    shares = [float(found) / 100 for found in re.findall(r"small ([\d.]+) %", lines[-1])]
    losses = [float(found) for found in re.findall(r"([\d.]+) nats", lines[-1])]
    assert lines[-1] == "; ".join(lines[-3:-1])
    assert shares[0] == pytest.approx(2_429 / (2_429 + 34_418), abs=0.01)
    assert shares[1] > 3 * shares[0]
    assert losses[3] < losses[1] - 0.2  # the small one; the large one loses less than that
    assert losses[2] < losses[0] + 0.2


def test_examples_read_japanese_vowels_of_the_package_without_a_folder():
    x, labels = load_example("japanese_vowels").read_split(None, "TEST")
    assert [one.shape for one in x[:2]] == [(19, 12), (17, 12)]
    assert sorted(set(labels)) == list("123456789")
    assert len(x) == len(labels) == 370


def test_japanese_vowels_says_which_files_are_missing(tmp_path):
    with pytest.raises(SystemExit, match=r"has 0 files \*_TRAIN.ts, must have one"):
        load_example("japanese_vowels").read_split(tmp_path, "TRAIN")


def validations(lines: list[str]) -> list[float]:
    """Return the nats per character that the character model printed after each epoch."""
    found = [re.search(r"validation ([\d.]+) nats, .*, each once\)$", line) for line in lines[1:-1]]
    assert all(found)
    return [float(one[1]) for one in found]


@pytest.mark.slow
def test_the_character_model_remembers_what_frequencies_do_not_tell():
    lines = run_example("char_lm.py", "--smoke")
    assert lines[0] == "30,976 characters, 23 different; 24,439 parameters"
    nats = validations(lines)
    assert nats == sorted(nats, reverse=True)
    result, shortcut = map(float, re.findall(r"\d+\.\d+", lines[-1]))
    assert result == nats[-1] < 0.1 * shortcut


@pytest.mark.nightly
@pytest.mark.slow
def test_the_character_model_reads_any_text(tmp_path):
    (tmp_path / "text").write_text("Über 7 Brücken mußt du gehn.\n" * 40, "utf-8")
    options = ["--epochs", 1, "--lanes", 4, "--chunk", 16, "--hidden", 16]
    lines = run_example("char_lm.py", tmp_path / "text", *options)
    assert lines[0].startswith("1,044 characters, 20 different;")
    assert "(115 characters, each once)" in lines[1]
    assert len(validations(lines)) == 1


@pytest.mark.parametrize("scored", [[0, 1, 0], [0, 1, 2], [1, 1, 1]])
def test_the_character_model_would_notice_a_character_that_is_not_scored_once(scored):
    model = load_example("char_lm").ShowingLM(5, 2, 2)
    model.scored = np.array(scored)
    with pytest.raises(SystemExit, match="some character was not scored once"):
        model.on_validation_end()


@pytest.mark.slow
@pytest.mark.parametrize("draws", [150, pytest.param(2_000, marks=pytest.mark.nightly)])
def test_gradients_cut_at_random_are_right_on_average_and_those_always_cut_are_not(draws):
    always, mean, chance = load_example("artbp").compare(draws)
    assert always > 0.1
    assert mean <= 3 * chance < 0.1


@pytest.mark.slow
def test_the_comparison_of_cuts_prints_what_it_found():
    lines = run_example("artbp.py", "--draws", 5)
    assert lines[0] == "always cut: the gradient is 23.8% off"
    assert re.fullmatch(r"cut at random, mean of 5: [\d.]+% off, by chance [\d.]+%", lines[1])


SHORT = ["classify", "tag", "forecast"]


def result_and_shortcut(name: str, *arguments: str) -> tuple[float, float]:
    """Run a short example, which prints one line: its result, then that of a shortcut."""
    (line,) = run_example(f"{name}.py", *arguments)
    result, shortcut = re.findall(r"\d+\.\d+", line)
    return float(result), float(shortcut)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.nightly] * (name != "tag")) for name in SHORT]
)
def test_a_short_example_beats_its_shortcut(name):
    result, shortcut = result_and_shortcut(name)
    if name == "forecast":
        assert result <= 0.02 * shortcut
    else:
        assert shortcut < 0.6
        assert result >= shortcut + 0.35


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.nightly] * (name == "tag")) for name in SHORT]
)
def test_a_short_example_has_a_short_form(name):
    assert min(result_and_shortcut(name, "--smoke")) > 0


@pytest.mark.slow
def test_a_forecaster_with_fitted_statistics_beats_the_mean_in_the_unit_of_the_data():
    result, shortcut = result_and_shortcut("forecast_fitted", "--smoke")
    assert result < shortcut


@pytest.mark.parametrize("name", SHORT)
def test_a_short_example_is_under_40_lines(name):
    assert len((EXAMPLES / f"{name}.py").read_text().splitlines()) < 40
