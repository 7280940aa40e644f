"""Writers that are killed by the system, and continued."""

import gzip
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress

import pytest
from seqdata_text import tokenize

from seqdata_testing.waiting import patient, until

SCRIPT = """
import sys, time
import seqdata_text.text
from seqdata_text import tokenize

seqdata_text.text.PART_BYTES = 700
reports = []


def wait(sequences, size):
    reports.append(sequences)
    if len(reports) == 3:
        print("three parts", flush=True)
        time.sleep(1000)


tokenize(sys.argv[1], sys.argv[2], tokenizer=sys.argv[3], eos=True, num_workers=int(sys.argv[4]),
         progress=wait)
"""


def list_children(pid):
    """The processes below one, by /proc."""
    found, pending = [], [pid]
    while pending:
        parent = pending.pop()
        for task in os.listdir(f"/proc/{parent}/task"):
            below = []
            with (
                suppress(FileNotFoundError),  # a thread that has ended meanwhile
                open(f"/proc/{parent}/task/{task}/children") as file,
            ):
                below = [int(text) for text in file.read().split()]
            found += below
            pending += below
    return found


def is_running(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.fixture
def compressed(corpus, tmp_path):
    """The corpus as one file, compressed."""
    lines = [path.read_bytes() for path in sorted(corpus.iterdir())]
    path = tmp_path / "corpus.jsonl.gz"
    path.write_bytes(gzip.compress(b"".join(lines)))
    return path


@pytest.mark.slow
@pytest.mark.parametrize(("form", "workers"), [("corpus", 0), ("corpus", 2), ("compressed", 2)])
def test_kill_and_continue_gives_the_same_bytes(
    form, tokenizer_file, tmp_path, small_parts, workers, request
):
    corpus = request.getfixturevalue(form)
    out, reference = tmp_path / "out", tmp_path / "reference"
    tokenize(corpus, reference, tokenizer=tokenizer_file, eos=True, num_workers=0)
    script = tmp_path / "script.py"  # without a check for __main__: workers do not run it
    script.write_text(SCRIPT)
    arguments = [str(corpus), str(out), str(tokenizer_file), str(workers)]
    process = subprocess.Popen(
        [sys.executable, str(script), *arguments], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "three parts\n"
    children = list_children(process.pid)
    assert bool(children) == bool(workers)
    os.kill(process.pid, signal.SIGKILL)
    process.wait(patient(30))
    process.stdout.close()
    assert until(lambda: not any(map(is_running, children)))  # none is left behind
    (staging,) = out.glob(".seqdata-tmp-*")
    shards = [path.with_suffix(".arrow") for path in staging.glob("*.facts")]
    finished = {path.stat().st_ino for path in shards}
    assert len(finished) >= 3
    assert not (out / "seqdata.json").exists()
    began = time.time_ns()
    tokenize(corpus, out, tokenizer=tokenizer_file, eos=True, num_workers=0)
    kept = [path for path in out.glob("part-*.arrow") if path.stat().st_ino in finished]
    assert len(kept) == len(finished)
    assert all(path.stat().st_mtime_ns < began for path in kept)
    names = sorted(path.name for path in reference.iterdir())
    assert names == sorted(path.name for path in out.iterdir())
    for name in names:
        assert (out / name).read_bytes() == (reference / name).read_bytes()


def test_another_tokenizer_does_not_continue(corpus, tokenizer_file, tmp_path, small_parts):
    def stop(sequences, size):
        raise KeyboardInterrupt

    out, reference = tmp_path / "out", tmp_path / "reference"
    with pytest.raises(KeyboardInterrupt):
        tokenize(corpus, out, tokenizer=tokenizer_file, num_workers=0, progress=stop)
    assert list(out.glob(".seqdata-tmp-*/*.facts"))
    with pytest.warns(UserWarning, match=r"is started again: the tokenizer changed"):
        store = tokenize(corpus, out, tokenizer="bytes", num_workers=0)
    expected = tokenize(corpus, reference, tokenizer="bytes", num_workers=0)
    assert store.fingerprint == expected.fingerprint
