"""Results of a program that share no differentiated operation, so that each can have a backward pass of its own.

A backward pass in eager PyTorch frees the saved tensors of the operations that it runs. A later pass through other
operations is still possible. In contrast, the one node of a program frees all saved tensors in its first pass. For a
later pass through other results, the program therefore runs again, and autograd records it.
"""

from __future__ import annotations

from collections.abc import Sequence

from thunder_core.backend.runtime.autograd_signature import SeparateResults
from thunder_core.passes.autodiff.reverse_sweep import ReverseSweep
from thunder_core.passes.autodiff.second_run import names_of_needed_inputs
from thunder_core.passes.autodiff.step import Step
from thunder_core.tracing.ir.trace import Trace


def find_separate_results(body: Trace, results: Sequence[int], sweep: ReverseSweep) -> SeparateResults:
    """Return which of the body's results at the indices `results` share differentiated operations."""
    makers: dict[str, int] = {}
    for number, step in enumerate(sweep.steps):
        makers |= {proxy.name: number for proxy in step.results}
    operations = [_operations_behind(body.output[index].name, sweep.steps, makers) for index in results]
    sharing = (
        frozenset(position for position, other in enumerate(operations) if not own.isdisjoint(other))
        for own in operations
    )
    names = names_of_needed_inputs(body, results)
    inputs = (
        frozenset(index for index, proxy in enumerate(body.inputs) if proxy.name in names_of_result)
        for names_of_result in names
    )
    return SeparateResults(tuple(sharing), tuple(inputs))


def _operations_behind(name: str, steps: Sequence[Step], makers: dict[str, int]) -> frozenset[int]:
    """Return the positions of the steps that the gradient of a tensor passes through."""
    reached: set[int] = set()
    waiting = [name]
    while waiting:
        number = makers.get(waiting.pop())
        if number is not None and number not in reached:
            reached.add(number)
            waiting += [proxy.name for proxy in steps[number].differentiated_inputs]
    return frozenset(reached)
