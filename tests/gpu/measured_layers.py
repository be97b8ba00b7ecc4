"""Launches of a Llama's programs for sm_90 on a stand-in for the GPU, as if measurements had chosen a kernel each time.

Run as a program, this module prints the launches of a token and of a prompt as JSON; see `decode_counts.py`.
"""

from __future__ import annotations

import json
from collections import Counter
from unittest import mock

from tests.gpu.decode_counts import generate, graphs_of
from tests.gpu.simulated_gpu import simulated_gpu
from thunder_core.backend.claiming.tuning import TuningBudget
from thunder_executors.triton import ahead, measurement
from thunder_executors.triton.measurement import Choice, Measurable


def choose_first(product: Measurable, budget: TuningBudget) -> Choice:
    """Return the choice of the first candidate, with its title as the times."""
    name = next(iter(product.candidates))
    return Choice(name, f"{product.title}: {name}")


if __name__ == "__main__":
    with mock.patch.object(measurement, "_choice_of", choose_first), simulated_gpu() as gpu:
        programs = generate(2, new_tokens=4)
    calls = {"token": programs[0], "prompt": programs[-1]}
    found = {
        name: dict(next(call for call in gpu.calls if call.program is program).launches)
        for name, program in calls.items()
    }
    traces = {name: program.last("computation") for name, program in calls.items()}
    names = {
        name: dict(Counter(part.symbol.short_name for graph in graphs_of(program) for part in graph.subsymbols))
        for name, program in calls.items()
    }
    compiled = {
        name: sorted({code.facts["entry"] for code in ahead.device_code(trace, "triton", "sm_90")})
        for name, trace in traces.items()
    }
    chosen = {name: [item.choice for item in trace.chosen] for name, trace in traces.items()}
    print(json.dumps({"launches": found, "names": names, "compiled": compiled, "chosen": chosen}))
