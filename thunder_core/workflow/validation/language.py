"""The agreement of a language model's logits: the divergence of the distributions, and top-1 agreement."""

from __future__ import annotations

import torch

from thunder_core.workflow.validation.distance import blocks
from thunder_core.workflow.validation.report import LanguageReport

LOGITS = "logits"
ELEMENTS = 1 << 18  # elements of a block; about twelve copies of a block exist at the same time


def has_logits(name: str, tensor: torch.Tensor) -> bool:
    """Whether an output is named `logits`, is floating point, and has at least two classes in its last dimension."""
    return name == LOGITS and tensor.is_floating_point() and tensor.ndim >= 2 and tensor.shape[-1] >= 2


def measure_language(optimized: torch.Tensor, eager: torch.Tensor, reference: torch.Tensor) -> LanguageReport | None:
    """Return the mean KL divergences of `optimized` and `eager` from the reference, and the top-1 agreement.

    The means are over the valid positions. An undecided position counts as agreement. None if no position is valid.
    """
    positions, kl, eager_kl, differing_count, undecided = 0, 0.0, 0.0, 0, 0
    for block in blocks(optimized, eager, reference, elements=ELEMENTS):
        valid = valid_positions(*block)
        o, e, r = (logits[valid] for logits in block)
        positions += len(r)
        kl += divergences(o, r).sum().item()
        eager_kl += divergences(e, r).sum().item()
        undecided_mask = _undecided_positions(e, r)
        undecided += int(undecided_mask.sum())
        differing_count += int(((o.argmax(-1) != r.argmax(-1)) & ~undecided_mask).sum())
    if not positions:
        return None
    return LanguageReport(
        kl=kl / positions,
        eager_kl=eager_kl / positions,
        top1=1.0 - differing_count / positions,
        undecided=undecided / positions,
    )


def valid_positions(*logits: torch.Tensor) -> torch.Tensor:
    """Return a mask of the positions at which every tensor is a valid distribution.

    There, no logit is NaN or +inf, at least one logit is finite, and -inf is at the same tokens in all tensors.
    """
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
    """Return a mask of the positions at which the reference's two best tokens differ by at most twice eager's error.

    The error of eager PyTorch is its largest error at the position.
    """
    best = reference.topk(2).values
    rounding = (eager - reference).nan_to_num(0.0, 0.0, 0.0).abs().amax(-1)
    return best[..., 0] - best[..., 1] <= 2 * rounding
