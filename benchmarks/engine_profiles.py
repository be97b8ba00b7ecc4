"""Where ONNX Runtime and OpenVINO spend the time of a call, by their own profilers.

Each engine runs the models of `benchmarks.cpu_peers` in float32 with its counters switched on. The table shows, for
each type of operation, the milliseconds of a call (the mean of the rounds), its share, and the number of executed
operations. For OpenVINO, the type includes the kernel, such as `FullyConnected brgemm_avx2_f32`.

Usage: python -m benchmarks.engine_profiles [--models llama-1x128 ...] [--threads 1] [--rounds 30]
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks.cpu_models import MODELS
from benchmarks.engines import export, onnx_runtime_session, openvino_request

WARM_UP = 5
SHOWN = 12  # rows of a table
Rows = Iterator[tuple[str, float]]  # the type of an operation and its milliseconds, for each execution


def profile_onnx_runtime(content: bytes, inputs: tuple[torch.Tensor, ...], threads: int, rounds: int) -> Rows:
    """Yield the executed operations of all rounds. ONNX Runtime writes its profile as events of Chrome's tracing."""
    with tempfile.TemporaryDirectory() as folder:
        session, arrays = onnx_runtime_session(content, inputs, threads, str(Path(folder) / "profile"))
        for _ in range(WARM_UP + rounds):
            session.run(None, arrays)
        events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    kernels = [event for event in events if event.get("cat") == "Node" and event["name"].endswith("_kernel_time")]
    for event in kernels[len(kernels) * WARM_UP // (WARM_UP + rounds) :]:
        yield event["args"]["op_name"], event["dur"] / 1e3


def profile_openvino(content: bytes, inputs: tuple[torch.Tensor, ...], threads: int, rounds: int) -> Rows:
    """Yield the executed operations of all rounds, from the counters of each inference."""
    import openvino as ov

    request, arrays = openvino_request(content, threads, counts=True), [value.numpy() for value in inputs]
    for number in range(WARM_UP + rounds):
        request.infer(arrays)
        if number < WARM_UP:
            continue
        for each in request.get_profiling_info():
            if each.status == ov.ProfilingInfo.Status.EXECUTED:
                yield f"{each.node_type} {each.exec_type}", each.real_time.total_seconds() * 1e3


PROFILERS: dict[str, Callable[..., Rows]] = {"ONNX Runtime": profile_onnx_runtime, "OpenVINO": profile_openvino}


def by_type(rows: Rows, rounds: int) -> list[dict[str, Any]]:
    """Return the milliseconds, the share and the number of operations of each type in a call, the longest first."""
    milliseconds: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for kind, time in rows:
        milliseconds[kind] += time / rounds
        counts[kind] += 1
    total = sum(milliseconds.values())
    return [
        {"type": kind, "milliseconds": value, "share": value / total, "operations": counts[kind] // rounds}
        for kind, value in milliseconds.most_common()
    ]


def main() -> None:
    """Print a table for each model and engine."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", choices=MODELS, nargs="+", default=["llama-1x128", "minilm-8x64", "decode-1x1"])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=30)
    arguments = parser.parse_args()
    for name in arguments.models:
        torch.manual_seed(0)
        model, inputs = MODELS[name]()
        with torch.no_grad():
            content = export(model, inputs)
        for engine, profile in PROFILERS.items():
            table = by_type(profile(content, inputs, arguments.threads, arguments.rounds), arguments.rounds)
            total = sum(row["milliseconds"] for row in table)
            print(f"\n{name}, {engine}: {total:.2f} ms in operations")
            for row in table[:SHOWN]:
                numbers = f"{row['milliseconds']:9.3f} ms  {100 * row['share']:5.1f}%  {row['operations']:4} operations"
                print(f"{numbers}  {row['type']}", flush=True)


if __name__ == "__main__":
    main()
