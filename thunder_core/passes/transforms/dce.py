"""Dead code elimination."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from thunder_core.passes.recipe import Transform
from thunder_core.tracing.analysis.data_errors import may_raise, may_raise_by_sizes
from thunder_core.tracing.ir.trace import Trace


@dataclass(frozen=True)
class DropDeadCode(Transform):
    """Drop each bound symbol whose results are not read and that has no effect, unless it may raise an error.

    Only errors that depend on the values of tensors or on symbolic sizes count: all other errors were raised while
    tracing.
    """

    cleans_up: ClassVar[bool] = True

    def __call__(self, trace: Trace) -> Trace:
        """Return the trace with only the bound symbols that affect its results or effects."""
        read = {proxy.name for proxy in trace.outputs}
        live = []
        for bsym in reversed(trace.bound_symbols):
            is_read = any(proxy.name in read for proxy in bsym.defines)
            if is_read or bsym.has_effect or may_raise(bsym) or may_raise_by_sizes(bsym):
                live.append(bsym)
                read |= {proxy.name for proxy in bsym.inputs}
        return trace.having(reversed(live), made_by="drop dead code")
