"""Random weights with which a model attends: queries and keys as large as trained ones.

Initializations make queries and keys so small that a random model attends to all tokens alike, whatever they are; what
is wrong in attention, in positions or in a cache then hardly shows in its outputs.
"""

from __future__ import annotations

import re

import torch

# The layers of transformers' models that compute queries and keys, some of them with the values; those of T5, whose
# initialization is made for attention without a scale, are not among them.
QUERIES_AND_KEYS = re.compile(r"(^|\.)(q_proj|k_proj|query|key|q_lin|k_lin|qkv_proj|query_key_value|c_attn)$")


@torch.no_grad()
def enlarge_queries_and_keys(model: torch.nn.Module) -> None:
    """Enlarge the weights of queries and keys, in place, so that inputs of variance 1 give ones of variance 1.

    The logits of attention, whose scale is one over the root of the size of a head, then have a variance of about 1.
    """
    for name, module in model.named_modules():
        weight = getattr(module, "weight", None)
        if QUERIES_AND_KEYS.search(name) and isinstance(weight, torch.Tensor) and weight.ndim == 2:
            inputs = weight.shape[0] if type(module).__name__ == "Conv1D" else weight.shape[1]
            deviation = float(weight.float().std())
            if 0.0 < deviation < inputs**-0.5:
                weight.mul_(inputs**-0.5 / deviation)
