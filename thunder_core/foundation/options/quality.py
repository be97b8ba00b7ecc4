"""The largest accepted difference between a quantized model and the float model, as plain data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Quality:
    """The largest accepted difference between a quantized and a float model, on inputs without calibration data.

    `error` is the Euclidean norm of the difference of the outputs, divided by the norm of the float output. `kl` is the
    mean Kullback-Leibler divergence of the logits over positions, in nats. `top1` is the share of positions with the
    same most probable token. Models with random weights have nearly equal logits, so they fail `top1` first. `kl` and
    `top1` are for language models.
    """

    error: float = 0.1
    kl: float = 0.05
    top1: float = 0.0

    def or_looser(self, other: Quality) -> Quality:
        """Return a bound that accepts every result that either of the two bounds accepts."""
        return Quality(max(self.error, other.error), max(self.kl, other.kl), min(self.top1, other.top1))
