"""A Llama of the 1B size on one GPU: eager PyTorch, torch.compile in its modes, and parts of the Hopper recipe.

The model has random weights in bfloat16: 16 layers of width 2048, 32 heads, 8 KV heads, vocabulary 128,256. Prefill
computes the logits of the last token. Decode processes one token after the other with a static cache and chooses the
most likely token each time. Training is forward and backward of the loss, without an optimizer.

Each contender is a separate process; the contenders of a job compile in parallel, and are timed one after the other
when all are ready. First, the speeds of a copy and of a matrix product are measured as the limits of the machine. Then
Thunder's kernels for decoding are timed on an idle GPU, and the cache keeps the times. After `--limit` seconds, the
running contenders are killed, and the rows so far are written. `benchmarks/gpu_bounds.py` has the bounds of the times.

Usage: python -m benchmarks.gpu [--jobs prefill decode] [--ways eager thunder] [--layers 16] [--seconds 1] [--limit 540]
[--out FILE]
"""

from __future__ import annotations

import argparse
import fcntl
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from subprocess import DEVNULL
from typing import Any

from benchmarks.gpu_bounds import limits_in, limits_of, shares_of
from benchmarks.gpu_contenders import maker_of

MEASURED = ("decode",)  # shapes whose kernels are chosen by their times, which are measured on an idle GPU first
ALONE = ("train", "autotune-train")  # jobs whose contenders need most of the GPU's memory: one after the other
READY_SECONDS = 330.0  # the time after which the contenders that are ready are timed
LIMIT_SECONDS = 540.0  # for all jobs
SHARED_POOL = (0, 0)  # the allocator's pool of tensors outside of CUDA graphs

WITHOUT = tuple(f"thunder without {name}" for name in ("sdpa", "triton", "inductor", "cudagraphs"))
JOBS: dict[str, dict[str, tuple[str, ...]]] = {
    "decode": {"decode": ("eager", "compile", "compile reduce-overhead", "thunder", *WITHOUT)},
    "prefill": {
        "1 x 2048": ("eager", "compile", "compile reduce-overhead", "thunder", *WITHOUT),
        "8 x 2048": ("eager", "compile", "thunder"),
        "1 x 8192": ("eager", "compile", "thunder"),
    },
    "train": {
        "4 x 2048": ("eager", "compile", "compile reduce-overhead", "thunder", "thunder without cudagraphs"),
    },
    "generate": {"64 tokens": ("eager", "compile static", "thunder")},
    "autotune": {
        "1 x 2048": ("eager", "compile max-autotune", "thunder"),
        "decode": ("eager", "compile max-autotune", "thunder"),
    },
    "autotune-train": {"4 x 2048": ("eager", "compile max-autotune", "thunder")},
}


def contend(job: str, shape: str, way: str, layers: int, seconds: float, folder: Path, count: int) -> dict[str, Any]:
    """Compile, wait for the other contenders, and measure."""
    import torch

    warnings.simplefilter("ignore")
    began = time.monotonic()
    contender = maker_of(job, shape)(way, shape, layers)
    call = contender.call
    built = time.monotonic()
    first = call().detach().float().clone()  # the next replay of a graph overwrites its results
    torch.cuda.synchronize()
    compiled = time.monotonic()
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    wait_for_others(folder, count, began + READY_SECONDS)
    with lock(folder / "lock"):
        torch.cuda.reset_peak_memory_stats()
        times = idle_times(call, seconds)
        row = {
            "job": job,
            "shape": shape,
            "way": way,
            "build_s": built - began,
            "first_call_s": compiled - built,
            "median_ms": 1e3 * statistics.median(times),
            "low_ms": 1e3 * min(times),
            "queued_ms": 1e3 * queued_time(call, seconds / 4),
            "rounds": len(times),
            **memory_facts(is_alone=count == 1),
            "mean": first.mean().item(),
            "norm": first.norm().item(),
        }
        return row | facts_of(contender.compiled, way) | profile_of(call)


def memory_facts(*, is_alone: bool) -> dict[str, float]:
    """Return the memory since the peak was reset, in GB, by the allocator and, for a process alone, by the driver.

    `peak_gb` are the bytes of live tensors at the peak and the rest of the pools of CUDA graphs, where temporaries are.
    """
    import torch

    allocated = torch.cuda.max_memory_allocated()
    facts = {
        "peak_gb": (allocated + unallocated_bytes_of_graphs(torch.cuda.memory_snapshot())) / 1e9,
        "allocated_gb": allocated / 1e9,
        "reserved_gb": torch.cuda.max_memory_reserved() / 1e9,
    }
    if is_alone:
        free, total = torch.cuda.mem_get_info()
        facts["driver_gb"] = (total - free) / 1e9
    return facts


def unallocated_bytes_of_graphs(segments: list[dict[str, Any]]) -> int:
    """Return the bytes in the private pools of an allocator that belong to no live tensor: temporaries of graphs."""
    private = (segment for segment in segments if tuple(segment["segment_pool_id"]) != SHARED_POOL)
    return sum(segment["total_size"] - segment["allocated_size"] for segment in private)


def wait_for_others(folder: Path, count: int, end: float) -> None:
    """Mark this process as ready, and wait until `count` processes are ready, or until the time `end`."""
    mark_ready(folder)
    while len(list(folder.glob("*.ready"))) < count and time.monotonic() < end:
        time.sleep(0.2)


def mark_ready(folder: Path) -> None:
    """Mark a process as ready by a file in the folder of the shape."""
    Path(tempfile.mkstemp(dir=folder, suffix=".ready")[1]).touch()


def idle_times(call: Callable[[], Any], seconds: float) -> list[float]:
    """Return the seconds of calls, each from an idle GPU to an idle GPU, for this duration."""
    import torch

    times: list[float] = []
    torch.cuda.synchronize()
    began = time.perf_counter()
    while len(times) < 5 or (time.perf_counter() - began < seconds and len(times) < 200):
        start = time.perf_counter()
        call()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return times


def queued_time(call: Callable[[], Any], seconds: float) -> float:
    """Return the seconds of a call among calls that do not wait for the GPU: the slower of Python and the GPU."""
    import torch

    torch.cuda.synchronize()
    began, count = time.perf_counter(), 0
    while count < 3 or (time.perf_counter() - began < seconds and count < 200):
        call()
        count += 1
    torch.cuda.synchronize()
    return (time.perf_counter() - began) / count


def profile_of(call: Callable[[], Any]) -> dict[str, Any]:
    """Return the kernels of a call: their number, their total time, and the twelve that take the most time."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])]
    with profile(activities=activities) as profiler:
        call()
        torch.cuda.synchronize()
    kernels = [event for event in profiler.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    by_name: dict[str, list[float]] = {}
    for event in kernels:
        by_name.setdefault(event.name[:90], []).append(event.device_time)
    most = sorted(by_name.items(), key=lambda pair: -sum(pair[1]))[:12]
    return {
        "kernels": len(kernels),
        "kernel_ms": sum(event.device_time for event in kernels) / 1e3,
        "top": [[name, len(own), round(sum(own) / 1e3, 4)] for name, own in most],
    }


def facts_of(compiled: Any, way: str) -> dict[str, Any]:
    """Return the facts of a compiled model: programs, lines of the last program by executor, and graphs."""
    if not way.startswith("thunder"):
        return {}
    import thunder_core as thunder
    from thunder_core.backend.claiming.claim import claims_by_executor

    trace = thunder.last_traces(compiled)[-1]
    graphs = [bsym.symbol.target for bsym in trace.bound_symbols if bsym.executor == "cudagraphs"]
    recordings = [recording for graph in graphs for recording in graph.recordings.values()]
    return {
        "programs": thunder.cache_misses(compiled),
        "operations": claims_by_executor(trace),
        "lines": len(trace.bound_symbols),
        "graphs": len(graphs),
        "failed": [graph.failed for graph in graphs if graph.failed],
        "copied_in_bytes": sum(
            buffer.memory.nbytes for recording in recordings for buffer in recording.buffers.values()
        ),
        "copied_out_bytes": sum(recording.copied_nbytes for recording in recordings),
    }


@contextmanager
def lock(path: Path) -> Iterator[None]:
    """Exclude the other contenders within the context."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def limits() -> dict[str, float]:
    """Return the machine's limits: bytes per second of a copy (reads and writes), and FLOP per second of a product."""
    import torch

    source = torch.randn(1 << 30, device="cuda", dtype=torch.bfloat16)
    target = torch.empty_like(source)
    copies = idle_times(lambda: target.copy_(source), 0.3)
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    products = idle_times(lambda: a @ b, 0.5)
    return {
        "copy_gb_per_s": 2 * source.nbytes / statistics.median(copies) / 1e9,
        "product_tflop_per_s": 2 * 8192**3 / statistics.median(products) / 1e12,
    }


def end(process: subprocess.Popen[Any], deadline: float) -> None:
    """Wait for a process until the deadline, and then kill it."""
    try:
        process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def run_shape(
    job: str, shape: str, ways: tuple[str, ...], options: argparse.Namespace, deadline: float
) -> list[dict[str, Any]]:
    """Return the rows of all contenders for one shape."""
    with tempfile.TemporaryDirectory() as folder:
        job_folder = Path(folder)
        command = [sys.executable, "-m", "benchmarks.gpu", "--layers", str(options.layers), "--contend", job, shape]
        together = 1 if job in ALONE else len(ways)
        rest = ["--seconds", str(options.seconds), "--place", folder, "--count", str(together)]
        environment = {**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "4", "TORCHINDUCTOR_CACHE_DIR": "/tmp/inductor"}
        if shape in MEASURED and "thunder" in ways:
            with tempfile.TemporaryDirectory() as idle_folder:
                idle = ["thunder", "--seconds", "0.1", "--place", idle_folder]
                end(subprocess.Popen([*command, *idle], stdout=DEVNULL, stderr=DEVNULL, env=environment), deadline)
        running = []
        for number, way in enumerate(ways):
            with (job_folder / f"{number}.out").open("w") as output:
                running.append(subprocess.Popen([*command, way, *rest], stdout=output, stderr=output, env=environment))
            if job in ALONE:
                end(running[-1], deadline)
        for process in running:
            end(process, deadline)
            mark_ready(job_folder)  # so that the others do not wait for a failed process
        return [row_of(job, shape, way, job_folder / f"{number}.out") for number, way in enumerate(ways)]


def row_of(job: str, shape: str, way: str, output: Path) -> dict[str, Any]:
    """Return the row that a contender printed, or its error."""
    text = output.read_text() or "it printed nothing; was the time over?"
    rows = [line for line in text.splitlines() if line.startswith('{"job"')]
    return json.loads(rows[-1]) if rows else {"job": job, "shape": shape, "way": way, "error": text[-1500:]}


def main() -> None:
    """Run the jobs, print a table, and write all figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", nargs="+", default=["prefill", "train", "decode"], choices=JOBS)
    parser.add_argument("--ways", nargs="+", help="the contenders, if not all of a job")
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--limit", type=float, default=LIMIT_SECONDS, help="seconds for all jobs")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--contend", nargs=3)
    parser.add_argument("--place", type=Path)
    parser.add_argument("--count", type=int, default=1)
    options = parser.parse_args()
    if options.contend:
        row = contend(*options.contend, options.layers, options.seconds, options.place, options.count)
        print(json.dumps(row))
        return
    deadline = time.monotonic() + options.limit
    import torch

    peak = limits_of(torch.cuda.get_device_properties(0))
    report: dict[str, Any] = {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "limits": limits(),
        "peak": asdict(peak),
    }
    torch.cuda.empty_cache()
    print(json.dumps(report), flush=True)
    run_jobs(options, report, deadline)


def run_jobs(options: argparse.Namespace, report: dict[str, Any], deadline: float) -> None:
    """Run the jobs until the deadline; print each row, and write the report after each shape."""
    report["rows"] = []
    for job in options.jobs:
        for shape, all_ways in JOBS[job].items():
            ways = tuple(way for way in all_ways if not options.ways or way in options.ways)
            rows = run_shape(job, shape, ways, options, deadline)
            rows = [row if "error" in row else row | shares_of(row, *limits_in(report), options.layers) for row in rows]
            report["rows"] += rows
            eager = next((row.get("median_ms", 0.0) for row in rows if row["way"] == "eager"), 0.0)
            for row in rows:
                print(line_of(row, eager), flush=True)
            if options.out:
                options.out.write_text(json.dumps(report, indent=1))


def line_of(row: dict[str, Any], eager: float) -> str:
    """Return a row of the table."""
    if "error" in row:
        return f"{row['job']} {row['shape']:10} {row['way']:26} failed: {row['error'][-300:]}"
    ratio = row["median_ms"] / (eager or 1)
    return (
        f"{row['job']} {row['shape']:10} {row['way']:26} {row['median_ms']:9.3f} ms  {ratio:5.3f} of eager"
        f"  queued {row['queued_ms']:9.3f} ms, {row.get('bound_share', math.nan):6.1%} of the bound"
        f"  kernels {row['kernels']:5} {row['kernel_ms']:8.3f} ms  first {row['first_call_s']:6.1f} s"
        f"  peak {row['peak_gb']:5.1f} GB  norm {row['norm']:.4g}"
    )


if __name__ == "__main__":
    main()
