"""Functions that read from an artifact, for the Python files that `thunder inspect-trace --plain` prints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from thunder_core.backend.runtime.generate import executable
from thunder_core.backend.runtime.program import Program
from thunder_core.foundation.errors import NoSuchTrace
from thunder_core.passes.autodiff.autograd_node import with_layout
from thunder_core.workflow.artifact.format.compatibility import require_compatible
from thunder_core.workflow.artifact.format.constants import ConstantFinder
from thunder_core.workflow.artifact.format.manifest import EXAMPLE
from thunder_core.workflow.artifact.format.object_paths import follow
from thunder_core.workflow.artifact.format.read import open_artifact
from thunder_core.workflow.artifact.format.stored import stored_programs, stored_tensors
from thunder_core.workflow.artifact.format.tensors import read_tensors
from thunder_core.workflow.artifact.trust.trust import trust_in

__all__ = ["arguments_of", "constant_of", "example_of", "follow", "program_of"]


def example_of(folder: str | Path) -> dict[str, torch.Tensor]:
    """Return the keyword arguments of the example call that an artifact contains, in order, on the CPU."""
    artifact = open_artifact(Path(folder))
    if not artifact.manifest.example:
        raise NoSuchTrace(
            f"{folder} has no example inputs",
            fix="make the artifact with `thunder optimize`, which saves the example if all inputs are tensors",
        )
    tensors = read_tensors(artifact, EXAMPLE)
    return {name: tensors[name] for name in artifact.manifest.example}


def program_of(folder: str | Path, number: int, subject: object) -> Program:
    """Return a program of an artifact, bound to the model that the artifact was made from."""
    artifact = open_artifact(Path(folder))
    require_compatible(artifact.manifest)
    return stored_programs(artifact, subject)[number]


def arguments_of(
    folder: str | Path,
    number: int,
    trace: str,
    has_cotangent: tuple[bool, ...],
    subject: object,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> list[torch.Tensor]:
    """Run a program, and return the arguments of its tail, or of its backward for the results in `has_cotangent`.

    The gradients of these results are ones.
    """
    program = program_of(folder, number, subject)
    if program.derivative is None:
        raise NoSuchTrace(
            f"program {number} of {folder} has no {trace}: {program.no_backward_reason}",
            fix="inspect another program, or another trace of this program",
        )
    signature = program.derivative.signature
    inputs, _ = program.prepare(subject, args, kwargs)
    with torch.no_grad():
        outputs = executable(program.source("computation"), "computation")(*inputs)
    if trace == "tail":
        return [*(inputs[index] for index in signature.tail_inputs), *outputs[: signature.count]]
    marked = zip(signature.results, signature.layouts, has_cotangent, strict=True)
    gradients = [with_layout(torch.ones_like(outputs[index]), layout) for index, layout, is_set in marked if is_set]
    return [*outputs[signature.count :], *gradients]


def constant_of(folder: str | Path, program: int, trace: str, number: int, name: str) -> object:
    """Return a constant of a stage of an artifact. The constant must not depend on the model."""
    artifact = open_artifact(Path(folder))
    stages = artifact.manifest.programs[program].stages
    stage = next(stage for stage in stages if (stage.trace, stage.number) == (trace, number))
    return ConstantFinder(None, stored_tensors(artifact), artifact.content, trust_in(None)).value(
        name, stage.constants[name]
    )
