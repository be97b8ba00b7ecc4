"""Memory formats, and the calls that the kernel of convolutions claims, for its tests."""

from __future__ import annotations

import torch

import thunder_core as thunder

LAYOUTS = (torch.channels_last, torch.contiguous_format)


def claims(compiled):
    bsyms = thunder.last_traces(compiled)[-1].bound_symbols
    return [bsym for bsym in bsyms if bsym.executor == "prepacked-convolution"]
