"""Is a trace well-formed: each name defined once and before it is read. (Python itself checks the text that runs.)"""

from __future__ import annotations

from thunder_core.errors import Bug
from thunder_core.ir.proxy import NumberProxy
from thunder_core.ir.trace import Trace

REPORT = "report this with the program that was compiled: no input should lead here"


def check_trace(trace: Trace) -> Trace:
    """The trace itself, if it is well-formed; `Bug` naming the step that made it and the line otherwise."""
    defined = {proxy.name for proxy in trace.inputs} | trace.constants.keys()
    for number, bsym in enumerate(trace.bound_symbols):
        unknown = [p.name for p in bsym.inputs if p.name not in defined and not isinstance(p, NumberProxy)]
        if unknown:
            raise Bug(f"{trace.made_by}: line {number} of {trace.name} reads {unknown} before definition", fix=REPORT)
        again = [proxy.name for proxy in bsym.defines if proxy.name in defined]
        if again:
            raise Bug(f"{trace.made_by}: line {number} of {trace.name} defines {again} again", fix=REPORT)
        defined |= {proxy.name for proxy in bsym.defines}
        if bsym.symbol.name == "python.del":
            defined -= {proxy.name for proxy in bsym.inputs}
    missing = [proxy.name for proxy in trace.outputs if proxy.name not in defined]
    if missing:
        raise Bug(f"{trace.made_by}: {trace.name} returns {missing}, which nothing defines", fix=REPORT)
    return trace
