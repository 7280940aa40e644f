"""The judge of the torture set: what came, beside what should have come. The same for everybody."""

from __future__ import annotations

import json
import signal
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

RIGHT = "right"
PLACED = "error, names the file"
ERROR = "error"
WRONG = "WRONG DATA"
SHORT = "SILENTLY SHORT"
TWICE = "SILENTLY TWICE"
HANG = "HANG"
CRASH = "CRASH"
CODE = "CODE RAN"
SILENT = (WRONG, SHORT, TWICE, HANG, CRASH, CODE)  # what nobody may meet

Batch = Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Seen:
    """Batches that a process delivered, and its end.

    Args:
        batches: Ids and checksums, as they came.
        ended: Whether the epoch came to an end as epochs do.
        error: What was raised: its class, and all messages of its chain; empty: nothing.
        status: Exit status; negative: the signal that ended it.
        timed_out: Whether it had to be ended.
        ran_code: Whether something in the data was run.
        seconds: How long it took; with a killed worker, from then on.
    """

    batches: Sequence[Batch] = ()
    ended: bool = False
    error: str = ""
    status: int = 0
    timed_out: bool = False
    ran_code: bool = False
    seconds: float = 0.0

    @property
    def ids(self) -> list[str]:
        return [name for batch in self.batches for name, _ in batch]


@dataclass(frozen=True)
class Outcome:
    """A class of outcomes, and what was so in this case."""

    kind: str
    detail: str = ""


def judge(seen: Seen, truth: Mapping[str, str], damaged: Sequence[str] = ()) -> Outcome:
    """Say what came of a case; the worst of what is so.

    Args:
        seen: What the process delivered.
        truth: The checksum of every id that should come, once.
        damaged: Names of the files that were harmed: does the error name one?
    """
    if seen.ran_code:
        return Outcome(CODE, seen.error)
    wrong = [name for batch in seen.batches for name, sum_ in batch if truth.get(name) != sum_]
    if wrong:
        return Outcome(WRONG, f"{len(wrong)} sequences, the first {wrong[0]!r}")
    if seen.timed_out:
        return Outcome(HANG, f"after {len(seen.ids)} of {len(truth)}")
    if seen.error:
        kind = PLACED if any(name in seen.error for name in damaged) else ERROR
        return Outcome(kind, seen.error)
    if not seen.ended:
        return _judge_silence(seen.status)
    counts = Counter(seen.ids)
    if missing := len(truth.keys() - counts.keys()):
        return Outcome(SHORT, f"{missing} of {len(truth)} never came")
    if twice := sum(counts.values()) - len(counts):
        return Outcome(TWICE, f"{twice} came again")
    return Outcome(RIGHT)


def _judge_silence(status: int) -> Outcome:
    if status < 0:
        return Outcome(CRASH, signal.Signals(-status).name)
    return Outcome(ERROR, f"exit status {status}") if status else Outcome(SHORT, "no end, no error")


def judge_ranks(ranks: Sequence[Seen], truth: Mapping[str, str]) -> Outcome:
    """Say how an epoch was shared: steps of every rank, sequences that were lost or repeated."""
    steps = [len(rank.batches) for rank in ranks]
    if bad := [rank for rank in ranks if not rank.ended]:
        return judge(bad[0], truth)
    counts = Counter(name for rank in ranks for name in rank.ids)
    lost, again = len(truth.keys() - counts.keys()), counts.total() - len(counts)
    detail = "/".join(map(str, steps))
    if len(set(steps)) > 1:
        return Outcome("UNEVEN", detail)
    if lost:
        return Outcome(f"even, {lost} lost" + (f", {again} repeated" if again else ""), detail)
    return Outcome(f"even, {again} repeated" if again else "even, each once", detail)


def judge_resumption(before: Seen, after: Seen, truth: Mapping[str, str]) -> Outcome:
    """Say whether what came before a stop and after it is the epoch."""
    for record in (before, after):
        if record.error or record.timed_out or not record.ended:
            return judge(record, truth)
    joined = Seen((*before.batches, *after.batches), ended=True)
    kind = judge(joined, truth).kind
    if kind in (SHORT, TWICE):
        counts = Counter(joined.ids)
        lost, again = len(truth.keys() - counts.keys()), counts.total() - len(counts)
        return Outcome(f"{lost} LOST, {again} REPEATED")
    return Outcome(kind)


def judge_order(first: Seen, others: Sequence[Seen], truth: Mapping[str, str]) -> Outcome:
    """Say whether other worker counts give the same batches."""
    for record in (first, *others):
        if (found := judge(record, truth)).kind != RIGHT:
            return found
    contents = [
        [[name for name, _ in batch] for batch in record.batches] for record in (first, *others)
    ]
    same = all(content == contents[0] for content in contents)
    return Outcome("the same batches" if same else "other batches")


def read_record(path: Path, *, status: int, timed_out: bool, marker: Path | None = None) -> Seen:
    """Read what a process wrote about itself, as far as it came."""
    batches: list[list[tuple[str, str]]] = []
    facts: dict[str, object] = {}
    text = path.read_text() if path.exists() else ""
    for line in text.splitlines():
        if line.endswith("}"):  # whoever is killed may leave half a line
            entry = json.loads(line)
            batches += [[(str(a), str(b)) for a, b in pairs] for pairs in entry.pop("batch", [])]
            facts.update(entry)
    return Seen(
        batches=batches, ended=bool(facts.get("ended")), error=str(facts.get("error", "")),
        status=status, timed_out=timed_out, ran_code=marker is not None and marker.exists(),
        seconds=float(str(facts.get("seconds", 0.0))),
    )  # fmt: skip
