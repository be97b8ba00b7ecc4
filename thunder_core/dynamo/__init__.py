"""Acquisition through Dynamo: PyTorch's own tracer captures graphs of a program, and each is compiled as all else is.

`entry.py` has `thunderfx`, and the function that `torch.compile(backend="thunder")` calls; `backend.py` compiles a
graph, `graph_inputs.py` and `graph_places.py` say what Dynamo tells of it; `report.py` tells what was captured.
"""

from thunder_core.dynamo.entry import register, thunderfx
from thunder_core.dynamo.report import graphs, splits
from thunder_core.runtime.captured import CapturedGraph, Split

__all__ = ["CapturedGraph", "Split", "graphs", "splits", "thunderfx"]

register()
