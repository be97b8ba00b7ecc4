"""The agreement of a language model's logits: the divergence of the distributions, and top-1 agreement."""

from __future__ import annotations

import torch

from thunder_core.workflow.validation.distance import blocks
from thunder_core.workflow.validation.report import LanguageReport

LOGITS = "logits"
ELEMENTS = 1 << 18  # elements of a block; about twelve copies of a block exist at the same time


def has_logits(name: str, tensor: torch.Tensor) -> bool:
    """Whether an output has a distribution over a vocabulary for each position."""
    return name == LOGITS and tensor.is_floating_point() and tensor.ndim >= 2 and tensor.shape[-1] >= 2


def measure_language(optimized: torch.Tensor, eager: torch.Tensor, reference: torch.Tensor) -> LanguageReport | None:
    """Return the KL divergence from the reference and the top-1 agreement, over all positions with a distribution.

    Return None if no position has a distribution, because nothing was measured.
    """
    positions, kl, eager_kl, lost, undecided = 0, 0.0, 0.0, 0, 0
    for block in blocks(optimized, eager, reference, elements=ELEMENTS):
        valid = have_distributions(*block)
        o, e, r = (logits[valid] for logits in block)
        positions += len(r)
        kl += divergences(o, r).sum().item()
        eager_kl += divergences(e, r).sum().item()
        open_choice = _undecided_positions(e, r)
        undecided += int(open_choice.sum())
        lost += int(((o.argmax(-1) != r.argmax(-1)) & ~open_choice).sum())
    if not positions:
        return None
    return LanguageReport(
        kl=kl / positions,
        eager_kl=eager_kl / positions,
        top1=1.0 - lost / positions,
        undecided=undecided / positions,
    )


def have_distributions(*logits: torch.Tensor) -> torch.Tensor:
    """Return the positions at which all logits have a distribution: no NaN, no +inf, and -inf for the same tokens."""
    excluded = [values.isneginf() for values in logits]
    broken = torch.stack(
        [(values.isnan() | values.isposinf()).any(-1) | values.isneginf().all(-1) for values in logits]
    )
    differing = torch.stack([(tokens != excluded[-1]).any(-1) for tokens in excluded])
    return ~(broken.any(0) | differing.any(0))


def divergences(logits: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """Return KL(reference || logits) of each row, in nats; tokens of probability 0 add nothing."""
    log_p, log_q = reference.log_softmax(-1), logits.log_softmax(-1)
    p = log_p.exp()
    return torch.where(p > 0, p * (log_p - log_q), 0.0).sum(-1).clamp(min=0.0)


def _undecided_positions(eager: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """Return the positions at which the reference's two best tokens differ by less than eager's own error."""
    best = reference.topk(2).values
    rounding = (eager - reference).nan_to_num(0.0, 0.0, 0.0).abs().amax(-1)
    return best[..., 0] - best[..., 1] <= 2 * rounding
