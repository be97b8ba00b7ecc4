"""The real samples of a run, read from the named file; texts are tokenized."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from transformers import PretrainedConfig

from thunder_core.workflow.artifact.format.read import Artifact
from thunder_core.workflow.models.folder.origin import FolderOrigin, SampleOrigin, find_origin, request_of
from thunder_core.workflow.models.inputs.batches import token_length
from thunder_core.workflow.models.inputs.dataset import Dataset, read_dataset
from thunder_core.workflow.models.inputs.sequence import check_sequence_length, longest_sequence
from thunder_core.workflow.models.inputs.tokens import tokenize

USUAL_SEQUENCE = 128  # tokens
INPUT = "--input"  # the option for inputs


def real_samples(
    option: str,
    file: Path | None,
    origin: Callable[[], FolderOrigin | SampleOrigin],
    *,
    trust_remote_code: bool,
    keys: Collection[str] | None = None,
) -> Dataset | None:
    """Return the samples of a file, or None without a file. The tokenizer of the model at `origin` tokenizes texts.

    Inputs get all outputs of the tokenizer, or only the `keys`; samples for evaluation get only the tokens.
    """
    if file is None:
        return None
    data = read_dataset(option, file)
    if not data.has_text:
        return data
    allowed_keys = keys if option == INPUT else ()
    return tokenize(data, origin(), trust_remote_code=trust_remote_code, keys=allowed_keys)


def artifacts_samples(option: str, file: Path | None, artifact: Artifact, *, trust_remote_code: bool) -> Dataset | None:
    """Return the samples of a file for an artifact; texts are tokenized by the tokenizer of the artifact's model."""
    return real_samples(
        option,
        file,
        lambda: find_origin(request_of(artifact.manifest.source)),
        trust_remote_code=trust_remote_code,
        keys=artifact.manifest.example,  # programs accept only the traced inputs
    )


def sequence_of(
    config: PretrainedConfig,
    requested: int | None,
    data: Sequence[Dataset | None] = (),
    usual: int = USUAL_SEQUENCE,
) -> int:
    """Return the requested length, the length of the longest sample, or the usual length; raise `SequenceTooLong`."""
    lengths = [length for dataset in data if dataset is not None and (length := token_length(dataset))]
    return sequence_length(config, max(lengths) if requested is None and lengths else requested, usual)


def sequence_length(config: PretrainedConfig, requested: int | None, usual: int = USUAL_SEQUENCE) -> int:
    """Return the requested length, or the usual length limited to the model's maximum; raise `SequenceTooLong`."""
    if requested is None:
        return min(usual, longest_sequence(config) or usual)
    check_sequence_length(config, requested)
    return requested
