"""Tracing through Dynamo: PyTorch's own tracer captures graphs of a program, and Thunder compiles each graph.

`entry.py` has `thunderfx`, and the function that `torch.compile(backend="thunder")` calls. `backend.py` compiles a
graph. `graph_inputs.py` and `source_lines.py` read Dynamo's metadata of a graph. `report.py` lists the captured graphs.
"""

from thunder_core.backend.runtime.captured import CapturedGraph, Split
from thunder_core.compilation.dynamo.entry import register, thunderfx
from thunder_core.compilation.dynamo.report import graphs, splits

__all__ = ["CapturedGraph", "Split", "graphs", "splits", "thunderfx"]

register()
