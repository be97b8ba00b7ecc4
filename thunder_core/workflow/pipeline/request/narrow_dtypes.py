"""The cost of a dtype that the processor has no instructions for, such as bfloat16 on many processors."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from thunder_core.tracing.extension.requirement import Processor
from thunder_core.workflow.report.number_format import size as bytes_in_words

WIDENING = "packed-linear"  # the executor that multiplies narrow weights as fast as float32, without instructions
INSTRUCTIONS: Mapping[str, Processor] = {
    "bfloat16": Processor(("avx512_bf16", "amx_bf16", "bf16")),
    "float16": Processor(("avx512_fp16", "amx_fp16", "asimdhp")),
}
# Measured with AVX2 only, for a matrix of 2048 x 2048: 1.9 times as long for 1 row, and 9 times for 128 rows.
COST = (
    "{reason}, so {dtype} is converted to float32 in each product: about twice as long for one token, up to ten times "
    "for many; --dtype float32 avoids that, but loads {wide} of weights into memory instead of {narrow}"
)
# Measured with AVX2 only, for a Llama: 0.86 of the time of eager PyTorch in float32.
COST_OF_OTHERS = (
    "{reason}; packed-linear widens {dtype} in registers, so that linear layers are about as fast as in float32, but "
    "PyTorch converts {others} to float32, which takes up to ten times as long"
)
OTHERS = "other products, such as convolutions,"
OTHERS_IN_TRAINING = "the products of the backward, and convolutions,"


def cost_of_narrow_dtype(
    dtype: str, device: torch.device, weights: int, *, widened: bool = False, train: bool = False
) -> str:
    """Return the cost of a dtype for this many bytes of weights, in words; empty if the processor supports it.

    `widened` states that the executor `packed-linear` multiplies the weights of linear layers.
    """
    processor = INSTRUCTIONS.get(dtype)
    reason = None if processor is None else processor.missing_on(device)
    if reason is None:
        return ""
    if widened:
        return COST_OF_OTHERS.format(reason=reason, dtype=dtype, others=OTHERS_IN_TRAINING if train else OTHERS)
    return COST.format(reason=reason, dtype=dtype, wide=bytes_in_words(2 * weights), narrow=bytes_in_words(weights))
