"""Traces in this process: of a model that is compiled to inspect it, or of a compiled callable."""

from __future__ import annotations

import cmath
from collections.abc import Callable, Mapping
from dataclasses import replace

import torch

from thunder_core.compilation.compiler import last_program, specializations_of
from thunder_core.foundation.options.generation_lengths import Prompts
from thunder_core.tracing.ir.listing import Listing
from thunder_core.workflow.artifact.format.constants import ConstantConverter
from thunder_core.workflow.artifact.format.printed import PrintedStage, printed_stages, with_constants
from thunder_core.workflow.artifact.write import name_of
from thunder_core.workflow.inspect.subject import GRAD, InspectedStage, Subject
from thunder_core.workflow.models.inputs.prompts import require_generation
from thunder_core.workflow.models.inputs.size_words import require_tokens
from thunder_core.workflow.models.loading.library_output import quiet_transformers
from thunder_core.workflow.models.request.input_size import InputSize
from thunder_core.workflow.pipeline.generation.generation_calls import STEPS, inputs_of
from thunder_core.workflow.pipeline.request.generation_lengths import lengths_of
from thunder_core.workflow.pipeline.request.purpose import Purpose
from thunder_core.workflow.pipeline.request.request import Request
from thunder_core.workflow.pipeline.request.samples import sequence_length
from thunder_core.workflow.pipeline.session.prepare import PreparedModel, prepare
from thunder_core.workflow.pipeline.session.session import open_model
from thunder_core.workflow.validation.generation import generate

NO_OPTIONS: Mapping[str, object] = {}
NO_SIZES: Mapping[str, int] = {}
MAX_LITERAL_ELEMENTS = 256  # the most elements of a tensor that is written as a literal


def traced_model(request: Request) -> Subject:
    """Load a model, compile it with a recipe, call it once on seeded inputs, and return its traces.

    For training, the call is a training step, so that there is a backward. For generation, the call is `generate`; the
    returned traces belong to the last token, or to the prompt if only one token is generated.

    Raises the errors of `thunder optimize` for the same request, up to tracing.
    """
    prepared = prepare(request)
    if request.generates:
        return traced_generation(prepared, request)
    if request.seq is not None:
        require_tokens(prepared.loading.config)
    size = InputSize(request.batch or 1, sequence_length(prepared.loading.config, request.seq, prepared.usual_sequence))
    purpose = Purpose(request.train, padded=prepared.pads_texts)
    session = open_model(prepared, purpose)
    with session.ready():
        session.call(session.inputs(size))
    random_inputs = {**size.stated, **purpose.input_options, "seed": session.seed}
    subject = traces_of(session.compiled, source=session.loaded.source, random_inputs=random_inputs)
    return replace(subject, train=request.train)


def traced_generation(prepared: PreparedModel, request: Request) -> Subject:
    """Return the traces of the last token that a model's `generate` generates; the default batch is one prompt."""
    lengths = lengths_of(prepared.loading.config, request)
    session = open_model(prepared, Purpose())
    require_generation(session.loaded)
    prompts = inputs_of(session, Prompts(request.batch or 1, lengths.prompt_length), session.seed)
    with session.ready(), quiet_transformers():
        generate(session.compiled, prompts, min(STEPS, lengths.new_tokens))
    return traces_of(session.compiled, source=session.loaded.source)


def traces_of(
    compiled: object, *, source: Mapping[str, object] = NO_OPTIONS, random_inputs: Mapping[str, int] = NO_SIZES
) -> Subject:
    """Return the traces of the latest call of a result of `jit` or `compile`; raise `WrongInputs` if there is none."""
    subject = specializations_of(compiled).subject
    program = last_program(compiled)
    if program.derivative is not None:
        program.derivative.complete()
    printed = list(printed_stages(program, 0))
    converter = ConstantConverter(subject)
    converter.prepare([value for stage in printed for value in stage.named.values()])
    stages = tuple(_stage(stage, converter) for stage in printed)
    return Subject(
        name_of(subject),
        0,
        stages,
        source,
        random_inputs=random_inputs,
        tensors=literals_of(converter.tensors),
        grad=GRAD in [(guard.path, guard.words) for guard in program.guards],
        no_backward_reason=program.no_backward_reason,
        constraints=program.constraints,
    )


def _stage(printed: PrintedStage, converter: ConstantConverter) -> InspectedStage:
    return InspectedStage(with_constants(printed, converter, strict=False), _in_memory(printed.listing))


def _in_memory(listing: Listing) -> Callable[[], Listing]:
    return lambda: listing


def literals_of(tensors: Mapping[str, torch.Tensor]) -> dict[str, str]:
    """Return the small tensors as Python expressions."""
    return {
        name: f"torch.tensor({literal_of(tensor.tolist())}, dtype={tensor.dtype}, device={str(tensor.device)!r})"
        for name, tensor in tensors.items()
        if tensor.numel() <= MAX_LITERAL_ELEMENTS
    }


def literal_of(value: object) -> str:
    """Return numbers, or nested lists of numbers, as a Python expression; NaN and infinities have no literals."""
    if isinstance(value, list):
        return f"[{', '.join(map(literal_of, value))}]"
    if isinstance(value, float | complex) and not cmath.isfinite(value):
        return f"{type(value).__name__}({str(value)!r})"
    return repr(value)
