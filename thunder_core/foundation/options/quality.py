"""The distance that a quantized model may have from the float one; plain data, for recipes and reports."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Quality:
    """The distance that a quantized model may have from the float one, on inputs that it was not calibrated with.

    `error`: the Euclidean norm of the difference of the outputs, as a part of that of the float output. `kl`: mean
    Kullback-Leibler divergence of the logits over positions, in nats. `top1`: share of the positions at which the most
    probable token agrees, which models with random weights, whose logits are nearly equal, lose first. The last two are
    for language models.
    """

    error: float = 0.1
    kl: float = 0.05
    top1: float = 0.0

    def or_looser(self, other: Quality) -> Quality:
        """The bound that lets pass whatever one of the two does."""
        return Quality(max(self.error, other.error), max(self.kl, other.kl), min(self.top1, other.top1))
