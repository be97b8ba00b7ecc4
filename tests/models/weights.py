"""Comparison of the weights of two models, for the tests of loading."""

from __future__ import annotations

import torch

from thunder_core.workflow.models.loading.fingerprint import weights_fingerprint


def same_weights(one: torch.nn.Module, other: torch.nn.Module) -> bool:
    return weights_fingerprint(one) == weights_fingerprint(other)
