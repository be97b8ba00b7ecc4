"""Apply a PEFT adapter to its base model, and compare the merged model with PEFT's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from thunder_core.foundation import plugins
from thunder_core.foundation.errors import BadModelFolder, OutOfTolerance
from thunder_core.foundation.similar_names import nearest
from thunder_core.workflow.models.adapters.folder import Adapter, require_adapter_weights
from thunder_core.workflow.models.inputs.input_names import DECODER_IDS, IDS
from thunder_core.workflow.models.inputs.modality import image_size
from thunder_core.workflow.models.inputs.random_inputs import RandomInputs
from thunder_core.workflow.models.loading.load_errors import library_import, loading_errors, require_package
from thunder_core.workflow.models.memory.free_memory import is_out_of_memory
from thunder_core.workflow.models.request.request import KEEP

PEFT = "peft"
TOKENS, BATCH = 16, 2


def require_peft(adapter: Adapter) -> None:
    """Raise `PackageMissing` without PEFT, and `BadModelFolder` for a type of adapters that PEFT does not have."""
    require_package(f"{adapter.folder} holds an adapter ({adapter.kind})", PEFT)
    with library_import(adapter.folder, PEFT):
        peft_types: Any = plugins.import_object(f"{PEFT}:PeftType")
    names = [member.value for member in peft_types]
    if adapter.kind not in names:
        near = nearest(adapter.kind, names)
        raise BadModelFolder(
            f"{adapter.folder} holds an adapter of the type {adapter.kind!r:.80}, which this peft does not have",
            fix=f"{f'if {near[0]} was meant, correct adapter_config.json; ' if near else ''}pip install --upgrade peft",
        )


def apply_adapter(
    model: object, adapter: Adapter, mode: str, *, trainable: bool = False
) -> tuple[Any, tuple[str, ...]]:
    """Return the model with its adapter, merged unless the mode is `KEEP`, and notes on the comparison with PEFT.

    The weights of the base model are frozen. The parameters of an unmerged adapter are frozen, too, unless the adapter
    is `trainable`. Raises `BadModelFolder` for an adapter that does not fit, and `OutOfTolerance` if the merged model
    differs from PEFT's model by more than rounding.
    """
    require_adapter_weights(adapter)
    peft_model: Any = plugins.import_object(f"{PEFT}:PeftModel")
    with loading_errors(adapter.folder, "does not fit its base model"):
        adapted = peft_model.from_pretrained(model, str(adapter.folder), is_trainable=trainable).eval()
    inner = adapted.get_base_model()
    if mode == KEEP:
        return inner, ()
    inputs = probe_inputs(inner)
    expected = None if inputs is None else first_output_or_none(inner, inputs)
    with loading_errors(adapter.folder, "cannot be merged (use --adapter keep)"):
        merged = adapted.merge_and_unload()
    if inputs is None or expected is None:
        return merged, (
            "the merged model was not compared with PEFT's, because it does not run on tokens or images alone",
        )
    return merged, (compare_with_peft(adapter, expected, first_output(merged, inputs)),)


def describe_adapter(adapter: Adapter, mode: str) -> str:
    """Describe how an adapter is applied, in a sentence for the plan and the report."""
    applied = "applied in addition to" if mode == KEEP else "merged into"
    return f"the adapter in {adapter.folder} ({adapter.kind}) is {applied} the weights of {adapter.base}"


def compare_with_peft(adapter: Adapter, expected: torch.Tensor, merged: torch.Tensor) -> str:
    """Return the difference of the merged model from PEFT's in words; raise `OutOfTolerance` for a large difference.

    The two differ by rounding: merging rounds the sum of the weights, PEFT rounds the sum of the outputs. The bound is
    the square root of the dtype's precision, relative to the largest output.
    """
    difference = float((merged.double() - expected.double()).abs().max())
    largest = float(expected.double().abs().max())
    if not difference <= torch.finfo(expected.dtype).eps ** 0.5 * max(largest, 1e-12):
        raise OutOfTolerance(
            f"the model with the merged adapter {adapter.folder} differs from eager PEFT by {difference:.2g} on random "
            f"inputs, whose largest output is {largest:.2g}",
            fix="use --adapter keep, or a wider dtype: --dtype float32",
        )
    return f"the outputs of the merged model differ from eager PEFT by at most {difference:.2g}"


def first_output_or_none(model: object, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor | None:
    """Return the first item of a model's output; None if the model raises an error for the inputs."""
    try:
        return first_output(model, inputs)
    except Exception as error:
        if is_out_of_memory(error):
            raise
        return None


@torch.no_grad()
def first_output(model: Any, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Return a model's output if it is a tensor, otherwise the first item of the output."""
    output = model(**inputs)
    value: torch.Tensor = output[0] if not isinstance(output, torch.Tensor) else output
    return value


def probe_inputs(model: Any) -> dict[str, torch.Tensor] | None:
    """Return random inputs for a comparison; None for a model that reads neither tokens nor images."""
    draw = RandomInputs.from_seed(model.config, batch=BATCH, seq=TOKENS, seed=0)
    if model.main_input_name == IDS:
        ids = draw.tokens(TOKENS)
        decoder = {DECODER_IDS: ids} if model.config.is_encoder_decoder else {}
        return {IDS: ids, **decoder}
    if model.main_input_name == "pixel_values":
        channels = getattr(model.config, "num_channels", 3)
        return {"pixel_values": draw.normal(BATCH, channels, *image_size(model.config)).to(model.dtype)}
    return None
