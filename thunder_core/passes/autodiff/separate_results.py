"""Results of a program that share no differentiated operation, so that each can have a backward pass of its own.

A backward pass in eager PyTorch frees the saved tensors of the operations that it runs. A later pass through other
operations is still possible. In contrast, the one node of a program frees all saved tensors in its first pass. For a
later pass through other results, the program therefore runs again, and autograd records it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from thunder_core.passes.autodiff.reverse_sweep import ReverseSweep
from thunder_core.passes.autodiff.second_run import names_of_needed_inputs
from thunder_core.passes.autodiff.step import Step
from thunder_core.tracing.ir.trace import Trace


@dataclass(frozen=True, eq=False)
class SeparateResults:
    """The differentiated operations of each result of a body, and the inputs that results depend on.

    `results` are the indices of the results that receive gradients. `operations` has, for each of these results, the
    operations that its gradient passes through, as positions among the steps of the reverse sweep. The methods take
    positions in `results`.
    """

    body: Trace
    results: Sequence[int]
    operations: tuple[frozenset[int], ...]

    def after(self, received: Collection[int], remaining: Collection[int] | None) -> frozenset[int]:
        """Return the results that can still have a backward pass after a pass for the `received` results.

        `remaining` are the results that could have a backward pass before this pass; None stands for all results.
        """
        freed = frozenset[int]().union(*(self.operations[position] for position in received))
        candidates = range(len(self.operations)) if remaining is None else remaining
        return frozenset(
            position
            for position in candidates
            if position not in received and self.operations[position] and not self.operations[position] & freed
        )

    def inputs_of(self, positions: Collection[int]) -> frozenset[int]:
        """Return the indices of the inputs that the values of these results depend on."""
        names = names_of_needed_inputs(self.body, [self.results[position] for position in positions])
        return frozenset(index for index, proxy in enumerate(self.body.inputs) if proxy.name in names)


def find_separate_results(body: Trace, results: Sequence[int], sweep: ReverseSweep) -> SeparateResults:
    """Return the differentiated operations of the body's results at the indices `results`."""
    makers: dict[str, int] = {}
    for number, step in enumerate(sweep.steps):
        makers |= {proxy.name: number for proxy in step.results}
    operations = (_operations_behind(body.output[index].name, sweep.steps, makers) for index in results)
    return SeparateResults(body, results, tuple(operations))


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
