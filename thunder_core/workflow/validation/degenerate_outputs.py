"""Check for outputs on which agreement with eager proves nothing: NaN, infinities, and all-zero outputs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from thunder_core.foundation.errors import AllZero, NotFinite, ValidationError
from thunder_core.workflow.validation.report import OutputReport, ValidationReport

MAX_NAMES = 4  # the largest number of names in a note

ACCEPT = "if this is intended, use --allow-non-finite (in Python: allow_non_finite=True); the report records it"


@dataclass(frozen=True)
class Finiteness:
    """The counts of elements of an output that are NaN or infinite in eager or in the reference; see `OutputReport`."""

    elements: int
    nan: int
    infinite: int
    finite_in_eager: bool
    all_zero: bool


def finiteness_of(eager: torch.Tensor, reference: torch.Tensor) -> Finiteness:
    """Return the finiteness of an output. Integers and booleans count as finite, and never as all zeros."""
    if not (eager.is_floating_point() or eager.is_complex()):
        return Finiteness(eager.numel(), 0, 0, finite_in_eager=True, all_zero=False)
    if is_finite(eager) and is_finite(reference):
        return Finiteness(eager.numel(), 0, 0, finite_in_eager=True, all_zero=eager.numel() > 0 and not eager.any())
    nan = eager.isnan() | reference.isnan()
    infinite = (eager.isinf() | reference.isinf()) & ~nan
    return Finiteness(
        elements=eager.numel(),
        nan=int(nan.sum()),
        infinite=int(infinite.sum()),
        finite_in_eager=bool(eager.isfinite().all()),
        all_zero=eager.numel() > 0 and not bool(eager.any()),
    )


def is_finite(tensor: torch.Tensor) -> bool:
    """Whether a tensor has neither NaN nor infinities; the check allocates no memory."""
    plain = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
    return not plain.numel() or all(math.isfinite(end.item()) for end in plain.aminmax())


def join(of_inputs: Sequence[Finiteness]) -> Finiteness:
    """Return the finiteness of one output over all inputs."""
    return Finiteness(
        elements=sum(finiteness.elements for finiteness in of_inputs),
        nan=sum(finiteness.nan for finiteness in of_inputs),
        infinite=sum(finiteness.infinite for finiteness in of_inputs),
        finite_in_eager=all(finiteness.finite_in_eager for finiteness in of_inputs),
        all_zero=all(finiteness.all_zero for finiteness in of_inputs),
    )


def finiteness_notes(outputs: Sequence[OutputReport]) -> Iterator[str]:
    """Yield the notes of a report on outputs that are not finite, or all zeros."""
    not_finite = [output for output in outputs if not output.finite]
    if not_finite:
        names = _list_names(not_finite)
        yield f"not finite in eager PyTorch or the reference: {names}; only finite elements were compared"
    zeros = [output for output in outputs if output.all_zero]
    if zeros:
        yield f"all zeros in eager PyTorch on every input: {_list_names(zeros)}"


def _list_names(outputs: Sequence[OutputReport]) -> str:
    shown = ", ".join(f"`{output.name}` ({output.remark})" for output in outputs[:MAX_NAMES])
    more = len(outputs) - MAX_NAMES
    return f"{shown} and {more} more" if more > 0 else shown


def require_conclusive(report: ValidationReport, *, train: bool) -> None:
    """Raise `NotFinite` or `AllZero`, with the report as its `report`, if agreement with eager would prove nothing."""
    not_finite = [output for output in report.outputs if not output.finite]
    if not_finite:
        raise _with_report(_not_finite_error(not_finite, report), report)
    floating = [output for output in report.outputs if output.is_floating and output.elements and not output.is_state]
    judged = [output for output in floating if output.is_gradient] if train else floating
    if judged and all(output.all_zero for output in judged):
        kind = "gradient" if train else "output"
        raise _with_report(
            AllZero(
                f"every {kind} ({_list_names(judged)}) is zero in eager PyTorch on every input, so a comparison does "
                "not validate anything",
                fix=f"check the weights (an initialization with zeros, or weights that were not loaded); {ACCEPT}",
            ),
            report,
        )


def _not_finite_error(not_finite: Sequence[OutputReport], report: ValidationReport) -> NotFinite:
    first, more = not_finite[0], len(not_finite) - 1
    and_more = f", and {more} more" if more else ""
    in_eager = not all(output.finite_in_eager for output in not_finite)
    where = "eager PyTorch itself" if in_eager else f"the {report.reference_dtype} reference"
    return NotFinite(
        f"`{first.name}`{and_more} is infinite or NaN in {where} ({first.remark}), so it cannot be compared",
        fix="use a --dtype with a wider range (bfloat16, float32), or check the weights and inputs that make the model "
        f"diverge; {ACCEPT}",
    )


def _with_report(error: NotFinite | AllZero, report: ValidationReport) -> ValidationError:
    error.report = report
    return error
