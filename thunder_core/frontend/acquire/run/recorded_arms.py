"""Checks of tensors that the two recorded arms of a branch may have in common."""

from __future__ import annotations

import itertools
from collections import Counter

import torch

from thunder_core.frontend.acquire.run.program_state import RecordedArms
from thunder_core.frontend.acquire.traced_run import TracedRun
from thunder_core.tracing.analysis.aliasing import alias_sets
from thunder_core.tracing.ir.retrace import Retrace
from thunder_core.tracing.ir.tree import leaves

INPUT = ""  # the common name of all tensors that exist before the call, as none of them is distinguished


def require_distinct_tensors(run: TracedRun, output: object) -> None:
    """Raise `Retrace` if the program could distinguish a tensor from the clone that an arm returns.

    In eager PyTorch, both would be the same tensor. The program can distinguish them if it writes to the tensor or the
    clone after the branch, or if two results, or a result and an input, may be the same tensor after one arm only. All
    inputs count as one tensor.
    """
    if not run.calls.recorded_arms:
        return
    bsyms = run.recorder.bound_symbols
    aliasing, same = alias_sets(bsyms), alias_sets(bsyms)
    defined = {proxy.name for bsym in bsyms for proxy in bsym.defines}

    def name_of(tensor: torch.Tensor) -> str:
        name = run.recorder.proxy_of(tensor).name
        return name if name in defined else INPUT

    def is_written_later(arms: RecordedArms) -> bool:
        results = {run.recorder.proxy_of(tensor).name for tensor in arms.results}
        starts = (index for index, bsym in enumerate(bsyms) if any(proxy.name in results for proxy in bsym.defines))
        later = bsyms[next(starts, 0) :]
        written = {aliasing.representative(name) for bsym in later for name in bsym.mutates}
        names = (run.recorder.proxy_of(tensor).name for tensor in arms.tensors)
        return not written.isdisjoint(map(aliasing.representative, names))

    for arms in run.calls.recorded_arms:
        for copied, result in itertools.product(arms.copied, arms.results):
            same.unite(name_of(copied), name_of(result))
    tensors = {id(leaf): leaf for leaf in leaves(output) if isinstance(leaf, torch.Tensor)}.values()
    counts = Counter(same.representative(name_of(tensor)) for tensor in tensors)
    counts[same.representative(INPUT)] += 1
    for arms in run.calls.recorded_arms:
        is_shared = arms.copied and counts[same.representative(name_of(arms.results[0]))] > 1
        if is_shared or is_written_later(arms):
            raise Retrace(arms.request)


def require_known_identity(run: TracedRun, left: object, right: object) -> None:
    """Raise `Retrace` if the result of `left is right` depends on the arm that a call takes."""
    if not (run.calls.recorded_arms and isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor)):
        return
    for arms in run.calls.recorded_arms:
        if any(tensor is left or tensor is right for tensor in arms.tensors):
            raise run.retrace(arms.request)
