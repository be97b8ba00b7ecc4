"""The cost of a dtype that the processor has no instructions for, such as bfloat16 on many processors."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from thunder_core.tracing.extension.requirement import Processor
from thunder_core.workflow.report.number_format import size as bytes_in_words

INSTRUCTIONS: Mapping[str, Processor] = {
    "bfloat16": Processor(("avx512_bf16", "amx_bf16", "bf16")),
    "float16": Processor(("avx512_fp16", "amx_fp16", "asimdhp")),
}
# Measured with AVX2 only, for a matrix of 2048 x 2048: 1.9 times as long for 1 row, and 9 times for 128 rows.
COST = (
    "{reason}, so {dtype} is converted to float32 in each product: about twice as long for one token, up to ten times "
    "for many; --dtype float32 avoids that, but loads {wide} of weights into memory instead of {narrow}"
)


def cost_of_narrow_dtype(dtype: str, device: torch.device, weights: int) -> str:
    """Return the cost of a dtype for this many bytes of weights, in words; empty if the processor supports it."""
    processor = INSTRUCTIONS.get(dtype)
    reason = None if processor is None else processor.missing_on(device)
    if reason is None:
        return ""
    return COST.format(reason=reason, dtype=dtype, wide=bytes_in_words(2 * weights), narrow=bytes_in_words(weights))
