"""The distance that an optimized output may have from the reference; plain data, for recipes and reports."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Tolerance:
    """The distance that an optimized output may have from the reference, the same model in higher precision.

    `times_eager`: its error may be this many times eager PyTorch's own, plus `floor` times the reference's largest
    magnitude. `kl`: mean Kullback-Leibler divergence of the logits over positions, in nats. `top1`: share of the
    positions at which the most probable token agrees. The last two are for language models.
    """

    times_eager: float = 2.0
    floor: float = 1e-6
    kl: float = 1e-3
    top1: float = 0.99

    def or_looser(self, other: Tolerance) -> Tolerance:
        """The tolerance that lets pass whatever one of the two does."""
        return Tolerance(
            times_eager=max(self.times_eager, other.times_eager),
            floor=max(self.floor, other.floor),
            kl=max(self.kl, other.kl),
            top1=min(self.top1, other.top1),
        )
