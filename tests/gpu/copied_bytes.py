"""The bytes that CUDA graphs copy at each replay, before and after a validation: `python -m tests.gpu.copied_bytes`.

A validation also runs the program's kernels on copies of the weights. Afterwards, graphs must still read parameters and
caches in place. The script computes a token, a prompt and a training step of the benchmark's Llama with four layers.
It validates each, and returns 1 if the next call copies more than the inputs of a call in addition, captures again, or
copies a parameter. (A validation calls the program with other inputs, which are copied from then on.) The results are
written to `copied-bytes.json` in the folder `$OUT`, or in `build/gpu-report`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import transformers

from tests.gpu.__main__ import REPORT
from thunder_core.compilation.compiler.last_call import last_program
from thunder_core.foundation.errors import OutOfTolerance
from thunder_core.foundation.options.tolerance import Tolerance
from thunder_core.workflow.fault_localization.examination import examine
from thunder_core.workflow.validation import validate
from thunder_core.workflow.validation.comparison import ValidationSettings
from thunder_executors.cudagraphs import graph

SLOTS = 64  # of the static cache
WARM_CALLS = 4  # the first call runs without a graph, and a saved tensor is in lent memory from the second on


@dataclass
class Replays:
    """The replays of a call: their number, and the bytes that they copy in and out."""

    replays: int = 0
    copied_in: int = 0
    copied_out: int = 0
    lent: int = 0
    parameters: int = 0
    captures: int = 0

    def as_row(self) -> dict[str, int]:
        """The numbers, for a report."""
        return asdict(self)


@contextmanager
def noted_replays(parameters: Sequence[torch.Tensor]) -> Iterator[Replays]:
    """Note the replays and captures within the context, and how many of the parameters are copied in."""
    found = Replays()
    weights = {parameter.data_ptr() for parameter in parameters}
    replay, record = graph.Recording.__call__, graph.CapturedFunction._record

    def noted(recording: graph.Recording, tensors: Sequence[torch.Tensor]) -> Any:
        found.replays += 1
        found.copied_in += sum(buffer.memory.nbytes for buffer in recording.buffers.values())
        found.copied_out += recording.copied_nbytes
        found.lent += sum(loan.memory.nbytes for loan in recording.loans.values())
        found.parameters += sum(tensors[number].data_ptr() in weights for number in recording.buffers)
        return replay(recording, tensors)

    def captured(function: graph.CapturedFunction, *arguments: Any) -> Any:
        found.captures += 1
        return record(function, *arguments)

    with (
        mock.patch.object(graph.Recording, "__call__", noted),
        mock.patch.object(graph.CapturedFunction, "_record", captured),
    ):
        yield found


def before_and_after(job: Job, parameters: Sequence[torch.Tensor]) -> tuple[dict[str, int], dict[str, int]]:
    """The replays of a call before a validation, and of the next call after it."""
    for _ in range(WARM_CALLS):
        job.call()
    with noted_replays(parameters) as before:
        job.call()
    job.validate()
    with noted_replays(parameters) as after:
        job.call()
    return before.as_row(), after.as_row()


def problems(before: dict[str, int], after: dict[str, int], inputs: int) -> list[str]:
    """The reasons why the replays are not as they should be; `inputs` are the bytes of the inputs of a call."""
    reasons = [] if before["replays"] else ["no graph is replayed"]
    reasons += [f"{row['parameters']} parameters are copied" for row in (before, after) if row["parameters"]]
    added = after["copied_in"] - before["copied_in"]
    is_equal = {**before, "copied_in": 0} == {**after, "copied_in": 0} and 0 <= added <= inputs
    return reasons + ([] if is_equal else ["a validation changes what is copied"])


@dataclass(frozen=True)
class Job:
    """A call that is measured, the validation of its program, and the bytes of the call's input tensors."""

    call: Callable[[], Any]
    validate: Callable[[], Any]
    inputs: int


def nbytes_of(inputs: dict[str, Any]) -> int:
    """The bytes of the tensors among inputs."""
    return sum(value.nbytes for value in inputs.values() if isinstance(value, torch.Tensor))


def token(model: Any, compiled: Any) -> Job:
    """A token with a static cache."""
    cache = transformers.StaticCache(config=model.config, max_cache_len=SLOTS)
    ids = torch.full((1, SLOTS // 2), 3, device=model.device)
    with torch.no_grad():
        model.eval()(input_ids=ids, past_key_values=cache)
    lengths = [layer.cumulative_length for layer in cache.layers]
    arguments = {
        "input_ids": ids[:, :1],
        "position_ids": torch.full((1, 1), SLOTS // 2, device=model.device),
        "attention_mask": (torch.arange(SLOTS, device=model.device) <= SLOTS // 2)[None, None, None],
        "past_key_values": cache,
        "logits_to_keep": 1,
    }

    def call() -> None:
        with torch.no_grad():
            compiled(**arguments)
            torch._foreach_sub_(lengths, 1)  # the next call writes the same slot

    def check() -> None:
        with torch.no_grad():
            examine_last(model, compiled, arguments)

    return Job(call, check, nbytes_of(arguments))


def prompt(model: Any, compiled: Any) -> Job:
    """A prompt without a cache."""
    inputs = {"input_ids": torch.arange(3, 19, device=model.device)[None], "use_cache": False}

    def call() -> None:
        with torch.no_grad():
            compiled(**inputs)

    model.eval()
    return Job(call, lambda: validate_last(model, compiled, inputs, train=False), nbytes_of(inputs))


def training(model: Any, compiled: Any) -> Job:
    """A training step."""
    ids = torch.arange(3, 19, device=model.device)[None]
    inputs = {"input_ids": ids, "labels": ids, "use_cache": False}

    def call() -> None:
        model.zero_grad(set_to_none=True)
        compiled(**inputs).loss.backward()

    model.train()
    return Job(call, lambda: validate_last(model, compiled, inputs, train=True), nbytes_of(inputs))


def examine_last(model: Any, compiled: Any, arguments: dict[str, Any]) -> None:
    """Run the internal check of the last call's program on copies of its inputs."""
    examine(last_program(compiled), model, (), arguments, probe_guards=False)


def validate_last(model: Any, compiled: Any, inputs: dict[str, Any], *, train: bool) -> None:
    """Compare with eager PyTorch, and run the internal check; the accuracy is not the question here."""
    with suppress(OutOfTolerance):
        validate(compiled, model, [inputs], Tolerance(), ValidationSettings(language_model=True, train=train))
    with nullcontext() if train else torch.no_grad():
        examine_last(model, compiled, inputs)


JOBS = {"token": token, "prompt": prompt, "training": training}


def measure(
    names: Sequence[str], make_model: Callable[[], Any], compile_model: Callable[[Any], Any]
) -> dict[str, dict[str, Any]]:
    """The replays before and after a validation, and the problems, of each job; each has a model of its own."""
    report: dict[str, dict[str, Any]] = {}
    for name in names:
        model = make_model()
        job = JOBS[name](model, compile_model(model))
        before, after = before_and_after(job, list(model.parameters()))
        report[name] = {"before": before, "after": after, "problems": problems(before, after, job.inputs)}
    return report


def main() -> int:
    """Measure, print and write the results; return 1 if there is a problem."""
    from benchmarks.gpu_contenders import compile_model, model_of

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=4)
    options = parser.parse_args()
    report = measure(list(JOBS), lambda: model_of(options.layers), lambda model: compile_model("thunder", model))
    for name, rows in report.items():
        print(name, json.dumps(rows), flush=True)
    path = Path(os.environ.get("OUT") or REPORT) / "copied-bytes.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=1), encoding="utf-8")
    return int(any(rows["problems"] for rows in report.values()))


if __name__ == "__main__":
    sys.exit(main())
