"""Enlarge the random weights for queries and keys, so that a random model attends to some tokens more than to others.

Default initializations make queries and keys so small that a random model attends to all tokens almost equally. Errors
in attention, in positions or in a cache would then hardly affect the outputs.
"""

from __future__ import annotations

import re

import torch

# The layers of transformers models that compute queries and keys, in some models together with values. T5's layers are
# excluded, because their initialization is for attention without a scale.
QUERIES_AND_KEYS = re.compile(r"(^|\.)(q_proj|k_proj|query|key|q_lin|k_lin|qkv_proj|query_key_value|c_attn)$")


@torch.no_grad()
def enlarge_queries_and_keys(model: torch.nn.Module) -> None:
    """Enlarge the weights of queries and keys in place, so that inputs of variance 1 give outputs of variance 1.

    The logits of attention, with the scale 1 / sqrt(head size), then have a variance of about 1.
    """
    for name, module in model.named_modules():
        weight = getattr(module, "weight", None)
        if QUERIES_AND_KEYS.search(name) and isinstance(weight, torch.Tensor) and weight.ndim == 2:
            inputs = weight.shape[0] if type(module).__name__ == "Conv1D" else weight.shape[1]
            deviation = float(weight.float().std())
            if 0.0 < deviation < inputs**-0.5:
                weight.mul_(inputs**-0.5 / deviation)
