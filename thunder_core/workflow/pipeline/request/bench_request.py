"""The request of a benchmark: its contenders and sizes, checked before PyTorch is imported."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from thunder_core.foundation.errors import BadOption
from thunder_core.foundation.options import option, require_values, same_option
from thunder_core.foundation.options.whole_number import is_whole_number
from thunder_core.foundation.similar_names import unknown_name
from thunder_core.workflow.pipeline.request.request import Request

THUNDER = "thunder"
# The contenders that Thunder may be compared with, and their descriptions; `bench.py` builds them.
PREPARED = "prepared"
INDUCTOR_MODES = ("reduce-overhead", "max-autotune")  # modes of torch.compile
OTHER_CONTENDERS: dict[str, str] = {
    "eager": "eager PyTorch with the loaded model",
    PREPARED: "eager PyTorch with the model that the recipe prepares",
    "inductor": "torch.compile",
    **{f"inductor-{mode}": f"torch.compile in the mode {mode}" for mode in INDUCTOR_MODES},
}
# The contenders in measurements of `generate`; `generation_contenders.py` builds them.
OTHER_GENERATION_CONTENDERS: dict[str, str] = {
    **OTHER_CONTENDERS,
    "inductor-static": "torch.compile with the static cache of transformers",
}
USUAL_TOKENS = "128, or the maximum of the model or artifact if that is less"


def require_contender(_: str, name: str) -> None:
    """Raise `UnknownName` for a contender that does not exist."""
    if name not in (contenders := {**OTHER_CONTENDERS, **OTHER_GENERATION_CONTENDERS}):
        raise unknown_name("contender", name, contenders)


def names_in(_: str, text: str) -> tuple[str, ...]:
    """Split a list such as `eager,inductor` into its names."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def numbers_in(option: str, text: str) -> tuple[int, ...]:
    """Return the distinct numbers in a list such as `1,4,16`; raise `BadOption` for any other text."""
    words = [word.strip() for word in text.split(",")]
    if not all(map(is_whole_number, words)):
        raise BadOption(f"{option} is {text!r}, which is not a list of numbers", fix=f"write it as {option} 1,4,16")
    return tuple(dict.fromkeys(int(word) for word in words))


@dataclass(frozen=True)
class BenchRequest:
    """A benchmark: contenders by name, batch sizes and sequence lengths, rounds, threads, and a file of real inputs.

    If `generates` is set, the benchmark measures `generate`: all prompts have `prompt_length` tokens, and each gets
    `new_tokens` new tokens.
    """

    against: tuple[str, ...] | None = option(
        None,
        metavar="NAME,...",
        help="Contenders to compare with, separated by commas. `eager` is the loaded model. `prepared` is the model "
        "after the recipe's transforms have changed it, in eager PyTorch. `inductor`, `inductor-reduce-overhead` and "
        "`inductor-max-autotune` are modes of torch.compile. `inductor-static` is torch.compile with a static cache, "
        "for --task generate only",
        default_text="eager, or none for two artifacts",
        completion="contenders",
        parse=names_in,
        check=require_contender,
    )
    batches: tuple[int | None, ...] = same_option(
        Request,
        "batch",
        default=(None,),
        metavar="N,...",
        parse=numbers_in,
        default_text="the batch size of the artifact, or several within its range; for a model, 1, or both 1 and 8 "
        "with --task generate",
    )
    seqs: tuple[int | None, ...] = same_option(
        Request,
        "seq",
        default=(None,),
        metavar="N,...",
        parse=numbers_in,
        default_text="the length of the artifact, or several within its range; for a model, 128 or the "
        "recipe's length, or the model's maximum if that is less",
    )
    prompt_length: int | None = same_option(Request, "prompt_length", default_text=USUAL_TOKENS)
    new_tokens: int | None = same_option(Request, "new_tokens", default_text=USUAL_TOKENS)
    input: Path | None = same_option(Request, "input")
    runs: int = same_option(Request, "runs", help="Number of timed runs of each contender")
    warmup: int = same_option(Request, "warmup", help="Number of warm-up runs (not timed)")
    threads: int | None = same_option(Request, "threads", help="Number of CPU threads for PyTorch")
    generates: bool = False

    def contenders(self, subjects: int) -> tuple[str, ...]:
        """Return the contenders for this number of subjects; by default eager for one subject, and none for two."""
        if self.against is None:
            return ("eager",) if subjects == 1 else ()
        return self.against


def check_bench_request(bench_request: BenchRequest, subjects: int = 1) -> None:
    """Raise UnknownName for a contender that does not exist, and BadOption for invalid sizes.

    Two subjects are compared with each other, and need no contender.
    """
    require_values(bench_request)
    refuse_other_task(bench_request)
    if subjects == 1 and not bench_request.contenders(subjects):
        raise BadOption("--against is empty", fix=f"name at least one of: {', '.join(OTHER_CONTENDERS)}")


def refuse_other_task(bench_request: BenchRequest) -> None:
    """Raise `BadOption` if a benchmark of `generate` has options for single calls, or the other way round."""
    of_calls = {"--seq": bench_request.seqs != (None,), "--input": bench_request.input is not None}
    against = sorted({*(bench_request.against or ())} - {*OTHER_CONTENDERS})
    of_generation = {
        "--prompt-length": bench_request.prompt_length is not None,
        "--new-tokens": bench_request.new_tokens is not None,
        f"--against {','.join(against)}": bool(against),
    }
    refused, fix = (
        (of_calls, "the prompts are random: set their length with --prompt-length")
        if bench_request.generates
        else (of_generation, "add --task generate, or leave out the option")
    )
    for name in (name for name, is_given in refused.items() if is_given):
        kind = "calls" if bench_request.generates else "generation"
        raise BadOption(f"{name} is only for benchmarks of {kind}", fix=fix)
