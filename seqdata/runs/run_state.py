"""What a DataModule writes into a checkpoint, and why a loaded one is refused.

A few primitives, the same on every rank: a place in the plan, what the plan was made from, and how
the run counted its steps. Place in the flow: ``TrainRun`` saves and loads one. Reads: a state.
Makes: a state, or the reason why it does not fit.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

from seqdata.errors import ResumeError

VERSION = 1
Value = str | int | None
_MAX_TEXT = 300
_MAX_NUMBER = 2**63
_PLAN_KEYS = ("data", "policy", "seed", "shift")


@dataclass(frozen=True, slots=True)
class RunPosition:
    """A point in a run: ``position`` batches of the plan of ``epoch`` are trained."""

    epoch: int = 0
    position: int = 0

    @property
    def next_epoch(self) -> RunPosition:
        """The start of the epoch after this one."""
        return RunPosition(self.epoch + 1, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """Where a run stands, and on what ground.

    Attributes:
        epoch: Epoch of the plan.
        position: Batches of that plan that all ranks have trained.
        fingerprint: Of that plan.
        data: Fingerprint of the data.
        policy: The policy, as text.
        seed: Of the order.
        shift: Timesteps between inputs and targets.
        tail: What happens in the last uneven step.
        world_size: Data-parallel ranks of the run that saved it.
        accumulate: Steps of one optimizer update in that run.
        errors: In the data, that all ranks have gone on from.
        transform: Its name and a digest of its code; None: the state does not say.
    """

    epoch: int
    position: int
    fingerprint: str
    data: str
    policy: str
    seed: int
    shift: int
    tail: str
    world_size: int
    accumulate: int
    errors: int
    transform: str | None = None

    @property
    def run_position(self) -> RunPosition:
        """Epoch and position."""
        return RunPosition(self.epoch, self.position)

    def as_dict(self) -> dict[str, Value]:
        """Return the state as primitives: what ``torch.load(weights_only=True)`` reads."""
        return {"version": VERSION, **asdict(self)}

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> Self:
        """Read a state back.

        Raises:
            ResumeError: If another release wrote it, or it is damaged.
        """
        version = state.get("version") if isinstance(state, Mapping) else repr(state)
        if type(version) is not int or version != VERSION:
            raise ResumeError(
                f"resume: the state has version {version!r:.60}, must be {VERSION}; go on with the "
                "release of seqdata that saved it"
            )
        values = {field.name: state.get(field.name) for field in fields(cls)}
        for field in fields(cls):
            if field.name == "transform" and values[field.name] is None:  # of an earlier release
                continue
            kind = int if field.type == "int" else str
            value = values[field.name]
            if type(value) is not kind or (isinstance(value, int) and not 0 <= value < _MAX_NUMBER):
                raise ResumeError(
                    f"resume: `{field.name}` of the state is {value!r:.60}, must be "
                    f"{'an integer of at least 0' if kind is int else 'a text'}; it is damaged"
                )
        return cls(**values)  # type: ignore[arg-type]

    def find_changes(self, current: RunState) -> list[str]:
        """Return the names of what the plan is made from and differs now.

        The digest of the data is of its lengths as planned: another shift changes it, too.
        """
        changed = [name for name in _PLAN_KEYS if getattr(self, name) != getattr(current, name)]
        return [name for name in changed if name != "data"] if "shift" in changed else changed

    def make_refusal(self, current: RunState, changed: list[str]) -> ResumeError:
        """Make the error that tells what changed."""
        if not changed:
            return ResumeError(
                f"resume: the plan of epoch {self.epoch} has fingerprint {current.fingerprint!r}, "
                "must "
                f"be the saved {self.fingerprint!r}; go on with the seqdata release that saved it"
            )
        differences = "; ".join(
            f"`{name}` was {getattr(self, name)!r}, is {getattr(current, name)!r}"
            for name in changed
        )
        hint = ", pass on_changed='next_epoch' to begin the next epoch over the changed data"
        return ResumeError(
            f"resume: {differences}; a state goes on only over the same plan: restore what changed"
            f"{hint if changed == ['data'] else ''}, or fit without `ckpt_path`"
        )


def shorten_text(text: str) -> str:
    """Return a text that may be long as one that still tells itself from others."""
    if len(text) <= _MAX_TEXT:
        return text
    return f"{text[:_MAX_TEXT]}... {hashlib.sha256(text.encode()).hexdigest()[:32]}"
