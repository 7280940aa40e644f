"""What the command says: one line on what is wrong, and what to type."""

import numpy as np
import pytest
from click.testing import CliRunner

from seqdata.cli.app import app


@pytest.fixture
def files(tmp_path):
    """The working folder, with one file of several kinds."""
    (tmp_path / "a.txt").write_text("hello\n", "utf-8")
    (tmp_path / "a.csv").write_text("series,t,v\n0,0,.1\n0,1,.2\n", "utf-8")
    (tmp_path / "a.wav").write_bytes(b"RIFF" + bytes(100))
    np.save(tmp_path / "a.npy", np.zeros(3))


MISTAKES = {
    "a command": (("stat", "STORE"), ("'stat'", "stats")),
    "a store": (("stats", "nowhere"), ("nowhere", "Check the path")),
    "a policy": (
        ("plan", "STORE", "--batching", "bucket", "--batch-size", 4),
        ("'bucket'", "did you mean 'bucketed'?"),
    ),
    "no size": (("plan", "STORE", "--batching", "bucketed"), ("batch_size", "--batch-size")),
    "a size of another policy": (
        ("plan", "STORE", "--batching", "bucketed", "--max-tokens", 4),
        ("batch_size", "--batch-size"),
    ),
    "ranks in words": (
        ("plan", "STORE", "--batching", "bucketed", "--batch-size", 4, "--world", "two"),
        ("'two'", "1,2,8"),
    ),
    "a pattern": (("write", "none/*.txt", "out"), ("none/*.txt", "Check the path")),
    "a store that is there": (("write", "a.txt", "STORE"), ("holds a store", "--overwrite")),
    "a recording": (("write", "a.wav", "out"), ("a.wav", "begins with", "RIFF", "ffmpeg")),
    "two sources": (("write", "a.txt", "a.npy", "out"), ("2 sources", "in quotes")),
    "rows of timesteps": (("write", "a.csv", "out"), ("--group",)),
    "a shard": (("verify", "STORE", "--shard", 99), ("99", "[0, 1)")),
    "a run file": (
        ("replay", "none.yaml", "--epoch", 0, "--batch", 1),
        ("none.yaml", "/seqdata-run.yaml|not/"),
    ),
    "a store to look at": (("doctor", "nowhere"), ("nowhere", "Check the path")),
    "an index that is not needed": (("index", "STORE"), ("tar shard", "needs no index")),
    "a backend": (("stats", "STORE", "--backend", "arow"), ("did you mean 'arrow'?",)),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_answered(name, written, files):
    arguments, parts = MISTAKES[name]
    given = [str(written) if word == "STORE" else str(word) for word in arguments]
    done = CliRunner().invoke(app, given)
    assert done.exit_code != 0
    assert "Traceback" not in done.output
    said = " ".join(done.output.split())
    for part in parts:
        if part[0] == "/":
            assert any(word in said for word in part[1:-1].split("|")), said
        else:
            assert part in said
