"""The size of the inputs to trace: the requested or the default size, within the ranges."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from transformers import PretrainedConfig

from thunder_core.foundation.errors import BadOption
from thunder_core.foundation.errors.tree import message_line
from thunder_core.foundation.model_configs import config_or_none
from thunder_core.workflow.models.inputs.dataset import Dataset
from thunder_core.workflow.models.inputs.modality import image_size
from thunder_core.workflow.models.inputs.sequence import longest_sequence
from thunder_core.workflow.models.inputs.size_words import require_tokens, sizes_in_words
from thunder_core.workflow.models.memory.free_memory import is_out_of_memory
from thunder_core.workflow.models.request.input_size import InputSize
from thunder_core.workflow.pipeline.request.ranges import limited_size
from thunder_core.workflow.pipeline.request.request import Request
from thunder_core.workflow.pipeline.request.samples import USUAL_SEQUENCE, sequence_of
from thunder_core.workflow.pipeline.session.dynamic import Ranges

if TYPE_CHECKING:
    from thunder_core.workflow.pipeline.session.session import Session

USUAL_CACHE = 128  # tokens


def size_to_trace(
    config: PretrainedConfig, request: Request, data: Sequence[Dataset | None], usual: int = USUAL_SEQUENCE
) -> InputSize:
    """Return the size at which a request is traced; raise `BadOption` and `SequenceTooLong` for invalid sizes.

    A call with a cache has one token, and another call `usual` tokens, unless another length is requested.
    """
    if request.seq is not None:
        require_tokens(config)
    ranges = request.dynamic
    with_cache = request.cache is not None or "cache" in ranges
    seq = 1 if with_cache and request.seq is None else sequence_of(config, request.seq, data, usual)
    seq = limited_size(ranges, "seq", seq, is_requested=request.seq is not None)
    height, width = image_size(config)
    return InputSize(
        batch=limited_size(ranges, "batch", request.batch or 1, is_requested=request.batch is not None),
        seq=seq,
        cache=_other_size(request, "cache", usual_cache(config, seq)),
        height=_other_size(request, "height", height),
        width=_other_size(request, "width", width),
    )


def require_images(session: Session, ranges: Ranges, traced: InputSize) -> None:
    """Raise `BadOption` if the eager model does not accept images of a requested size, or at the end of a range.

    Models whose learned positions cannot be interpolated accept only one size. In training, the model is called with a
    complete batch, because batch normalization refuses a single sample. The calls do not change the model's config,
    although a loss may write the kind of labels into it.
    """
    if traced.height is None and traced.width is None:
        return
    traced = traced if session.purpose.train else traced._replace(batch=1)
    ends = [_image_end(ranges, traced, end) for end in (0, 1)]
    for size in dict.fromkeys((traced, *ends)):
        inputs = session.inputs(size)
        try:
            with torch.no_grad(), _preserve_config(session.model):
                session.model(**inputs)
        except Exception as error:  # code and kernels raise any error for a size that they do not support
            if is_out_of_memory(error):
                raise
            message = message_line(error)
            height, width = image_size(session.loaded.config)
            raise BadOption(
                f"this {type(session.model).__name__} does not accept images of "
                f"{sizes_in_words(session.loaded.config, size)}: {message}",
                fix=f"use sizes that the model accepts (its config has {height} x {width} pixels), or leave out "
                "--height, --width and their ranges",
            ) from error


def _image_end(ranges: Ranges, traced: InputSize, end: int) -> InputSize:
    """Return the traced size with the smallest or the largest image of the ranges."""
    ends = {name: bounds[end] for name, bounds in ranges.items() if name in ("height", "width")}
    return traced._replace(**ends)


@contextmanager
def _preserve_config(model: torch.nn.Module) -> Iterator[None]:
    """Restore the attributes of a model's config after the block."""
    config = config_or_none(model)
    if not isinstance(config, PretrainedConfig):
        yield
        return
    attributes = dict(vars(config))
    try:
        yield
    finally:
        vars(config).clear()
        vars(config).update(attributes)


def usual_cache(config: PretrainedConfig, seq: int) -> int:
    """Return the default number of tokens in a cache, limited by the model's positions."""
    longest = longest_sequence(config)
    return USUAL_CACHE if longest is None else max(0, min(USUAL_CACHE, longest - seq))


def _other_size(request: Request, name: str, usual: int) -> int | None:
    """Return the requested size of a dimension, or a size in its range; None if the request does not name it."""
    requested = getattr(request, name)
    if requested is None and name not in request.dynamic:
        return None
    return limited_size(
        request.dynamic, name, usual if requested is None else requested, is_requested=requested is not None
    )
