"""The state that a Loader or a DataModule saves, and the checks of a loaded state.

It has a few primitives, equal on every rank: a position in the plan, the inputs of the plan and,
for a fit with the Trainer, the settings by which it counted its steps.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, ClassVar, Self

from seqdata.errors import ResumeError
from seqdata.plan import PLAN_VERSION
from seqdata.sharing import RankPlan

STATE_VERSION = 1

Value = str | int | None
_MAX_NUMBER, _MAX_SEED = 2**63, 2**64
_MAX_SHOWN = 500
_MAX_PARSED = 2000  # characters of a policy
_LEFT_OUT = {"is_left_out": True}  # of a field: where it is None, as in states of earlier releases
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


@dataclass(slots=True)
class EpochProgress:
    """The progress of an epoch. It is separate from the iterator, so it holds no thread or worker.

    Attributes:
        epoch: Index of the epoch.
        share: This rank's steps of the epoch.
        step: Index of the step to deliver next; after an error, of the step that failed.
        is_inspection: Whether the batches are only inspected, which begins no segment.
    """

    epoch: int
    share: RankPlan
    step: int
    is_inspection: bool = False

    @property
    def position(self) -> tuple[int, int]:
        """The epoch and the number of its delivered batches; at its end, the next epoch and 0."""
        if self.is_delivered:
            return self.epoch + 1, 0
        return self.epoch, self.share.position(self.step)

    @property
    def is_delivered(self) -> bool:
        """Whether the last batch of the epoch was delivered."""
        return self.step == len(self.share)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeState:
    """The position of a Loader, and the inputs of its plan.

    Attributes:
        epoch: Epoch of the plan.
        position: Number of batches of that plan that all ranks have trained.
        fingerprint: Fingerprint of that plan.
        data: Fingerprint of the data.
        policy: The policy, as a string.
        seed: Seed of the order.
        shift: Number of timesteps between inputs and targets.
        world_size: Number of data-parallel ranks of the run that saved it.
        transform: Name of the transform and a digest of its code; None: not in the state.
        weights: Digest of the weights that the run has set; None if it has set none.
        parts: Digests and positions of the parts of a mixture, as a string; None without one.
        balance_ranks: Number of ranks for which the steps of the epoch are balanced: the ranks with
            which the epoch began, or the batches of an update. None in states of plan version 1.
        plan_version: Version of the rules by which plans are made; None: 1.
    """

    epoch: int
    position: int
    fingerprint: str
    data: str
    policy: str
    seed: int
    shift: int
    world_size: int
    transform: str | None = None
    weights: str | None = field(default=None, metadata=_LEFT_OUT)
    parts: str | None = field(default=None, metadata=_LEFT_OUT)
    balance_ranks: int | None = None
    plan_version: int | None = None

    _WHERE: ClassVar[str] = "loader"
    _ELSE: ClassVar[str] = "begin a new run"
    _MAX_POLICY: ClassVar[int] = 400
    _SHORT_POLICY: ClassVar[str] = "{start}… ({digest})"

    @property
    def owner(self) -> str:
        """Name of the object that loads the state, for messages."""
        return self._WHERE

    @property
    def alternative(self) -> str:
        """Advice on a state that does not fit, for messages."""
        return self._ELSE

    @property
    def run_position(self) -> RunPosition:
        """Epoch and position."""
        return RunPosition(self.epoch, self.position)

    def as_dict(self) -> dict[str, Value]:
        """Return the state as primitives, which ``torch.load(weights_only=True)`` reads."""
        values = {"version": STATE_VERSION, **asdict(self)}
        left_out = [entry.name for entry in fields(self) if entry.metadata == _LEFT_OUT]
        return {k: value for k, value in values.items() if value is not None or k not in left_out}

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> Self:
        """Return a saved state.

        Raises:
            ResumeError: If the state is not a dict, is of another version, or is damaged.
        """
        if not isinstance(state, Mapping):
            raise ResumeError(
                f"{cls._WHERE}: the state must be a dict, as `state_dict()` returns it, but is a "
                f"{type(state).__name__}."
            )
        version = state.get("version")
        if type(version) is not int or version != STATE_VERSION:
            raise ResumeError(
                f"{cls._WHERE}: the state must have version {STATE_VERSION}, but has "
                f"{version!r:.60}. Continue with the release of seqdata that saved it."
            )
        values = {entry.name: state.get(entry.name) for entry in fields(cls)}
        for entry in fields(cls):
            value = values[entry.name]
            if value is None and entry.default is None:
                continue  # saved by an earlier release, or the run has none
            kind = int if str(entry.type).startswith("int") else str
            most = _MAX_SEED if entry.name == "seed" else _MAX_NUMBER
            if type(value) is not kind or (isinstance(value, int) and not 0 <= value < most):
                is_large = type(value) is int and value >= most
                whole = f"an integer below {most}" if is_large else "an integer of at least 0"
                needed = whole if kind is int else "a string"
                raise ResumeError(
                    f"{cls._WHERE}: `{entry.name}` of the state must be {needed}, but is "
                    f"{value!r:.60}. The state is damaged."
                )
        return cls(**values)  # type: ignore[arg-type]

    @classmethod
    def from_plan(
        cls, described: Mapping[str, str | int], start: RunPosition, fingerprint: str, **more: Any
    ) -> Self:
        """Return the state of a position.

        Args:
            described: Inputs of the plan: ``describe()`` of the engine.
            start: The position.
            fingerprint: Fingerprint of the plan of its epoch.
            **more: The other attributes.
        """
        return cls(
            epoch=start.epoch,
            position=start.position,
            fingerprint=fingerprint,
            data=str(described["data"]),
            policy=cls.shorten_policy(str(described["policy"])),
            seed=int(described["seed"]),
            shift=int(described["shift"]),
            plan_version=PLAN_VERSION,
            **more,
        )

    @classmethod
    def shorten_policy(cls, text: str) -> str:
        """Return the string of a policy for a state; a long one is cut, with a digest."""
        if len(text) <= cls._MAX_POLICY:
            return text
        digest = hashlib.sha256(text.encode()).hexdigest()[:32]
        return cls._SHORT_POLICY.format(start=text[: cls._MAX_POLICY], digest=digest)

    def check_plan_version(self) -> None:
        """Raise ResumeError if the plan of the state was made by the rules of another version.

        The order of batches has changed, so that an epoch cannot be continued.
        """
        saved = self.plan_version or 1
        if saved != PLAN_VERSION:
            raise ResumeError(
                f"{self._WHERE}: the state is of plan version {saved}, but this release makes "
                f"plans of version {PLAN_VERSION}, in which batches come in another order: an "
                "epoch of it cannot be continued. Pass on_changed='next_epoch' to begin the next "
                "epoch in the new order, or load the weights of the model alone, or continue with "
                "the release of seqdata that saved it."
            )

    def check_plan(self, current: ResumeState, may_change: Collection[str] = ("data",)) -> None:
        """Raise if a plan differs from that of the state.

        Args:
            current: The state of the same position, with the current data and policy.
            may_change: Names of the inputs that may change where an epoch begins.

        Raises:
            ResumeError: If the plans differ; it names the changed inputs.
        """
        changed = self.find_changes(current)
        if changed:
            raise ResumeError(self._describe_changes(current, changed, may_change))
        if self.fingerprint != current.fingerprint:
            raise ResumeError(
                f"{self._WHERE}: the plan of epoch {self.epoch} must have the saved fingerprint "
                f"{self.fingerprint!r}, but has {current.fingerprint!r}. Continue with the release "
                "of seqdata that saved the state."
            )

    def check_position(self, batches: int) -> None:
        """Raise if the position is not in the plan.

        Args:
            batches: Number of batches of the state's epoch.

        Raises:
            ResumeError: If it is after the last batch.
        """
        if self.position > batches:
            raise ResumeError(
                f"{self._WHERE}: `position` of the state must be at most {batches}, the batches of "
                f"epoch {self.epoch}, but is {self.position}. The state is damaged."
            )

    def find_changes(self, current: ResumeState) -> list[str]:
        """Return the names of the inputs of the plan that have changed.

        The digest of the data is that of planned lengths, which another shift changes as well.
        """
        changed = [name for name in _PLAN_KEYS if getattr(self, name) != getattr(current, name)]
        return [name for name in changed if name != "data"] if "shift" in changed else changed

    def describe_differences(self, current: ResumeState, changed: Sequence[str]) -> str:
        """Return the saved and the current values of changed inputs, for messages.

        Of a policy only the options that differ are shown.
        """
        values = {name: (getattr(self, name), getattr(current, name)) for name in changed}
        if "policy" in values:
            values["policy"] = show_different_options(*values["policy"])
        return "; ".join(
            f"`{name}` was {_format_value(saved)}, but is {_format_value(now)}"
            for name, (saved, now) in values.items()
        )

    def _describe_changes(
        self, current: ResumeState, changed: Sequence[str], may_change: Collection[str]
    ) -> str:
        return (
            f"{self._WHERE}: {self.describe_differences(current, changed)}. A state continues "
            "only over the same plan: restore "
            f"what changed{self._get_hint(changed, may_change)}, or {self._ELSE}."
        )

    def _get_hint(self, changed: Sequence[str], may_change: Collection[str]) -> str:
        if not set(changed) <= set(may_change):
            return ""
        if list(changed) == ["data"]:
            return ", pass on_changed='next_epoch' to begin the next epoch over the changed data"
        if not self.position:
            return f", pass on_changed='next_epoch' to begin epoch {self.epoch} with it"
        return (
            f" (batch {self.position} of epoch {self.epoch} is next), continue from the end of an "
            "epoch, with on_changed='next_epoch', to begin the next one with it"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FitState(ResumeState):
    """The position of a fit, the inputs of its plan, and the settings by which it counted steps.

    Attributes:
        tail: Treatment of ranks without a batch in the last step.
        accumulate: Number of steps of an optimizer update in that run.
        errors: Number of errors in the data that all ranks have skipped.
    """

    tail: str
    accumulate: int
    errors: int

    _WHERE: ClassVar[str] = "resume"
    _ELSE: ClassVar[str] = "fit without `ckpt_path`"
    _MAX_POLICY: ClassVar[int] = 300
    _SHORT_POLICY: ClassVar[str] = "{start}... {digest}"


def show_different_options(saved: str, current: str) -> tuple[str, str]:
    """Return two policies as strings, each with only the options that the other does not have.

    Strings that were shortened are shown from the first option that differs.

    Examples:
        >>> show_different_options("Fixed(batch_size=8, keep=1)", "Fixed(batch_size=9, keep=1)")
        ('Fixed(batch_size=8)', 'Fixed(batch_size=9)')
    """
    try:
        pair = [ast.parse(text[:_MAX_PARSED], mode="eval").body for text in (saved, current)]
        _drop_equal_options(*pair)
        return ast.unparse(pair[0]), ast.unparse(pair[1])
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # shortened, or no policy
        signs = enumerate(zip(saved, current, strict=False))
        same = next((n for n, (one, other) in signs if one != other), len(saved))
        name = saved[: saved.find("(", 0, same) + 1]
        begin = max(saved.rfind(sign, 0, same) + len(sign) for sign in (", ", "(", "{"))
        if not name or begin <= len(name):
            return saved, current
        return f"{name}...{saved[begin:]}", f"{name}...{current[begin:]}"


def _dump_key(key: ast.expr | None) -> str:
    """Return the code of a key; that of ``**others`` is empty."""
    return "" if key is None else ast.dump(key)


def _drop_equal_options(one: ast.expr, other: ast.expr) -> None:
    """Remove the options that two policies have in common, and those of policies within them."""
    if isinstance(one, ast.Call) and isinstance(other, ast.Call):
        values = [{option.arg: option.value for option in call.keywords} for call in (one, other)]
        kept = _find_different(*values)
        for call in (one, other):
            call.keywords = [option for option in call.keywords if option.arg in kept]
    elif isinstance(one, ast.Dict) and isinstance(other, ast.Dict):
        values = [
            {
                _dump_key(key): value
                for key, value in zip(dictionary.keys, dictionary.values, strict=True)
            }
            for dictionary in (one, other)
        ]
        kept = _find_different(*values)
        for dictionary in (one, other):
            pairs = zip(dictionary.keys, dictionary.values, strict=True)
            chosen = [(key, value) for key, value in pairs if _dump_key(key) in kept]
            dictionary.keys = [key for key, _ in chosen]
            dictionary.values = [value for _, value in chosen]


def _find_different(
    one: Mapping[str | None, ast.expr], other: Mapping[str | None, ast.expr]
) -> set[str | None]:
    """Return the names whose values differ, or that only one has; equal parts of values go."""
    names = {
        name
        for name in {*one, *other}
        if name not in one or name not in other or ast.dump(one[name]) != ast.dump(other[name])
    }
    for name in names & one.keys() & other.keys():
        _drop_equal_options(one[name], other[name])
    return names


def _format_value(value: Value) -> str:
    return f"{value!r:.{_MAX_SHOWN}}"
