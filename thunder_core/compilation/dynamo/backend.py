"""The backend that receives Dynamo's captured graphs; each graph is compiled when it is first called."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from thunder_core.backend.runtime.captured import CapturedGraph, CapturedSubject
from thunder_core.backend.runtime.compiled import Specializations
from thunder_core.compilation.compiler import Compiler
from thunder_core.compilation.dynamo.graph_inputs import symbolic_inputs, without_unused_inputs
from thunder_core.compilation.dynamo.graph_operators import replace_operators
from thunder_core.compilation.dynamo.source_lines import note_source_lines


@dataclass(eq=False)
class Backend:
    """A backend of `torch.compile`: it compiles graphs with one compiler, and lists the captured graphs in `captured`.

    Dynamo calls the compiled graph with real tensors, so PyTorch's AOTAutograd is not involved. A graph is traced at
    its first call, and its backward is compiled as for any other program. Sizes that are symbols in Dynamo are symbols
    of the program too. Dynamo checks its guards first, and the program checks its own guards afterwards.
    """

    compiler: Compiler
    captured: CapturedSubject = field(default_factory=CapturedSubject)
    __name__ = "thunder"  # the name in Dynamo's logs

    def __call__(self, captured: torch.fx.GraphModule, examples: Sequence[Any]) -> Callable[..., Any]:  # noqa: ARG002
        """Return the function that Dynamo calls instead of a captured graph."""
        module, indices = without_unused_inputs(captured)
        replace_operators(module)
        where = note_source_lines(module)
        options = replace(self.compiler.options, symbolic=symbolic_inputs(module))
        compiled = Specializations(module.forward, replace(self.compiler, options=options), options)
        self.captured.graphs.append(CapturedGraph(module.code.strip(), where, compiled))

        def run_graph(*args: Any) -> Any:
            return compiled.call(tuple(args[index] for index in indices), {})

        return run_graph
