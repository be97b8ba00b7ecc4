"""Check the files with real inputs by their names, before slow imports."""

from __future__ import annotations

from pathlib import Path

from thunder_core.foundation.errors import BadData, BadOption
from thunder_core.foundation.similar_names import unknown_name
from thunder_core.foundation.storage.plain_file import fault_of_file

SUFFIXES = (".safetensors", ".npz", ".jsonl")
METRIC_NAMES = ("accuracy", "perplexity", "mse", "cosine")
FORMATS = "a .safetensors or .npz file of arrays, or a .jsonl file with an object for each sample"


def require_data_file(option: str, file: Path | None) -> None:
    """Raise `BadData` for a file that is missing, unreadable, or in an unsupported format."""
    if file is None:
        return
    if file.suffix.lower() not in SUFFIXES:
        raise BadData(f"{option} {file} has an unknown format", fix=f"use {FORMATS}")
    if fault := fault_of_file(file):
        raise BadData(f"{option} {file} {fault}", fix=f"name a readable file: {FORMATS}")


def require_metric(name: str) -> None:
    """Raise `UnknownName` for a metric that does not exist."""
    if name not in METRIC_NAMES:
        raise unknown_name("metric", name, METRIC_NAMES)


def require_samples_of_metric(metric: str | None, evaluate: Path | None) -> None:
    """Raise `BadOption` for a metric without samples to measure on."""
    if metric is not None and evaluate is None:
        raise BadOption("--metric was given without --eval", fix="name a file of samples with --eval")
