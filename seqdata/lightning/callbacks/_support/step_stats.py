"""Statistics of some steps of a rank: times, timesteps, memory."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StepStats:
    """Sums over steps of one rank.

    Attributes:
        steps: Number of steps.
        seconds: Time from the end of one step to the end of the next, without validations.
        waited: Seconds of these in which the Trainer waited for data.
        tokens: Timesteps that count in the loss.
        real: Timesteps of sequences, without filler.
        padded: Timesteps including padding, which determine time and memory.
        largest: Timesteps including padding of the largest batch.
        peak_bytes: Peak memory so far; 0 if it was not measured.
    """

    steps: int = 0
    seconds: float = 0.0
    waited: float = 0.0
    tokens: int = 0
    real: int = 0
    padded: int = 0
    largest: int = 0
    peak_bytes: int = 0

    def __add__(self, other: StepStats) -> StepStats:
        return StepStats(
            steps=self.steps + other.steps,
            seconds=self.seconds + other.seconds,
            waited=self.waited + other.waited,
            tokens=self.tokens + other.tokens,
            real=self.real + other.real,
            padded=self.padded + other.padded,
            largest=max(self.largest, other.largest),
            peak_bytes=max(self.peak_bytes, other.peak_bytes),
        )

    @property
    def tokens_per_second(self) -> float:
        """Timesteps that count in the loss, per second."""
        return self.tokens / self.seconds if self.seconds else 0.0

    @property
    def padding_share(self) -> float:
        """Part of the batches that is padding or filler, from 0 to 1."""
        return 1.0 - self.real / self.padded if self.padded else 0.0

    @property
    def wait_share(self) -> float:
        """Part of the time spent waiting for data, from 0 to 1."""
        return min(1.0, self.waited / self.seconds) if self.seconds else 0.0
