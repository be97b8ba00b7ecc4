"""The parts of the reports in these tests."""

from __future__ import annotations

from thunder_core.passes.recipe import Tolerance
from thunder_core.workflow.benchmark.generation import GeneratedTokens, GenerationBenchmark
from thunder_core.workflow.benchmark.rank_times import CollectiveTimes, RankTimes, TraceTimes
from thunder_core.workflow.benchmark.report import BenchmarkReport
from thunder_core.workflow.benchmark.statistics import describe_candidate
from thunder_core.workflow.report import Environment, Gpu, ModelFacts
from thunder_core.workflow.validation import Errors, LanguageReport, OutputReport, ValidationReport

MODEL = ModelFacts(
    name="tiny", family="llama", task="causal-lm", parameters=8_030_000_000, dtype="float32", device="cpu"
)
ENVIRONMENT = Environment(
    python="3.11.7",
    torch="2.13.0",
    libraries={"transformers": "5.23.0"},
    platform="a platform",
    processor="a processor",
    cores=4,
    threads=2,
    memory_bytes=8 << 30,
    cuda="13.0",
    gpus=(Gpu(name="a GPU", capability="9.0", memory_bytes=141 << 30),),
)


def output(name: str, error: float, *, passed: bool = True) -> OutputReport:
    """An output whose errors are `error`, compared with 1e-6 in eager."""
    eager = Errors(maximum=1e-6, mean=1e-7, median=1e-7, p99=1e-6)
    return OutputReport(
        name=name,
        dtype="float32",
        shapes=((1, 8, 64),),
        optimized=Errors(maximum=error, mean=error / 10, median=error / 10, p99=error),
        eager=eager,
        scale=1.0,
        cosine=0.9999,
        language=LanguageReport(kl=1e-9, eager_kl=1e-10, top1=1.0, undecided=0.25) if name == "logits" else None,
        smallest_tolerance=error / 1e-6,
        passed=passed,
        failures=() if passed else ("its largest error is great",),
    )


def validation(*outputs: OutputReport) -> ValidationReport:
    """A validation report of these outputs."""
    return ValidationReport(
        passed=all(measured_output.passed for measured_output in outputs),
        inputs=3,
        reference_dtype="float64",
        tolerance=Tolerance(),
        outputs=outputs,
        notes=("a note",),
    )


def benchmark() -> BenchmarkReport:
    """Eager takes 20 to 21 ms, and the optimized model takes half of that time, and once far more."""
    eager = [0.020 + 0.0001 * n for n in range(11)]
    optimized = [*(x / 2 for x in eager[:-1]), 0.5]
    return BenchmarkReport(
        machine="a machine",
        device="cpu",
        configuration={"batch": "1"},
        runs=11,
        warmup=2,
        candidates=(
            describe_candidate("eager", eager, eager, None),
            describe_candidate("optimized", optimized, eager, None),
        ),
    )


def generation(batch: int = 1, *, tokens: int = 24) -> GenerationBenchmark:
    """Eager takes 60 ms for the first token and 20 ms for later ones, thunder half. A quarter of the tokens differ."""
    factors = {"eager": 1.0, "thunder": 0.5}
    seconds = {name: [0.06 * factor, *(0.02 * factor for _ in range(tokens - 1))] for name, factor in factors.items()}

    def report(call: str, times: dict[str, float]) -> BenchmarkReport:
        rounds = {name: [time * (1 + 0.001 * number) for number in range(8)] for name, time in times.items()}
        return BenchmarkReport(
            machine="a machine",
            device="cpu",
            configuration={"model": "tiny", "batch": str(batch), "size": f"32 + {tokens} tokens", "call": call},
            runs=8,
            warmup=2,
            candidates=tuple(describe_candidate(name, one, rounds["eager"], 3 << 20) for name, one in rounds.items()),
        )

    return GenerationBenchmark(
        **dict(report("generation", {name: sum(times) for name, times in seconds.items()})),
        prompt_length=32,
        new_tokens=tokens,
        first_token=report("first token", {name: times[0] for name, times in seconds.items()}),
        next_token=report("next token", {name: times[1] for name, times in seconds.items()}) if tokens > 1 else None,
        texts=(
            GeneratedTokens(name="eager", seconds=tuple(seconds["eager"])),
            GeneratedTokens(name="thunder", seconds=tuple(seconds["thunder"]), equal=0.75, differs_at=19),
        ),
    )


def rank_times(rank: int, *, late: float = 0.0) -> RankTimes:
    """A call of 10 ms whose two collectives are in flight at the same time; the second is waited for `late`."""
    gather = {"kind": "all_gather_into_tensor", "group": "0", "bytes": 2048, "trace": "computation", "line": 3}
    reduce = {"kind": "all_reduce", "group": "dp", "bytes": 1 << 20, "trace": "backward", "line": 12}
    return RankTimes(
        rank=rank,
        traces=(TraceTimes(name="computation", start=0, end=0.004), TraceTimes(name="backward", start=0.005, end=0.01)),
        collectives=(
            CollectiveTimes(**gather, start=0.001, wait=0.002, end=0.003),
            CollectiveTimes(**reduce, start=0.0025, wait=0.008, end=0.008 + late),
        ),
    )
