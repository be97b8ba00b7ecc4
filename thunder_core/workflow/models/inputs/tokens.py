"""Tokenize texts with the tokenizer in a model's folder."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer

from thunder_core.foundation.errors import BadData
from thunder_core.workflow.models.folder.origin import FolderOrigin, SampleOrigin
from thunder_core.workflow.models.inputs.dataset import Dataset
from thunder_core.workflow.models.inputs.input_names import IDS
from thunder_core.workflow.models.loading.library_output import quiet_transformers
from thunder_core.workflow.models.loading.load_errors import loading_errors

TOKENIZERS = ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "vocab.json", "spiece.model", "tokenizer.model")


def tokenize(
    dataset: Dataset,
    origin: FolderOrigin | SampleOrigin,
    *,
    trust_remote_code: bool = False,
    keys: Collection[str] | None = (),
) -> Dataset:
    """Return the dataset with tokens instead of texts; raise `BadData` if the texts cannot be tokenized.

    `keys` names the other outputs of the tokenizer to keep, such as `token_type_ids`: by default none; None keeps all.
    """
    if not dataset.has_text:
        return dataset
    read = tokenizer_for_data(
        origin,
        f"{dataset.file} contains text",
        fix="use tokens (`input_ids`), or put the model's tokenizer.json into its folder",
        trust_remote_code=trust_remote_code,
    )
    rows: list[dict[str, torch.Tensor]] = []
    other_names: set[str] = set()
    for number, (row, text) in enumerate(zip(dataset.rows, dataset.texts, strict=True)):
        if not text:
            raise dataset.wrong(
                number,
                "has no text, but other samples have text",
                "use text for all samples, or tokens for all samples",
            )
        if IDS in row:
            raise dataset.wrong(number, f"has both a text and `{IDS}`", "use one of the two")
        encoded = {name: torch.tensor(value, dtype=torch.int64) for name, value in read(text).items()}
        other_names |= {name for name in encoded if name != IDS and (keys is None or name in keys)}
        rows.append({**{name: value for name, value in encoded.items() if name == IDS or name in other_names}, **row})
    return replace(
        dataset, rows=tuple(rows), texts=("",) * len(rows), from_tokenizer=frozenset(other_names), checked=set()
    )


def tokenizer_for_data(origin: FolderOrigin | SampleOrigin, why: str, *, fix: str, trust_remote_code: bool) -> Any:
    """Return the tokenizer in a model's folder; raise `BadData` with the reason `why` if there is none."""
    folder = origin.folder if isinstance(origin, FolderOrigin) else None
    if folder is None or not has_tokenizer(folder):
        raise BadData(f"{why}, but the model's folder has no tokenizer", fix=fix)
    return tokenizer_of(folder, trust_remote_code=trust_remote_code)


def has_tokenizer(folder: Path) -> bool:
    """Whether a model's folder has the files of a tokenizer."""
    return any((folder / name).is_file() for name in TOKENIZERS)


def prompt_tokens(tokenizer: Any, prompt: str) -> list[int]:
    """Return the tokens of a prompt, formatted as a user message if the tokenizer has a chat template."""
    if not getattr(tokenizer, "chat_template", None):
        return list(tokenizer(prompt)[IDS])
    turns = [{"role": "user", "content": prompt}]
    return list(tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_dict=False))


def tokenizer_of(folder: Path, *, trust_remote_code: bool) -> Any:
    """Return the tokenizer of a model's folder; raise `BadModelFolder` for a damaged tokenizer."""
    with loading_errors(folder, "has a tokenizer that cannot be loaded"), quiet_transformers():
        return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=trust_remote_code)
