"""Read real samples from a file, without running or unpickling anything."""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from thunder_core.foundation.errors import BadData, OutOfMemory
from thunder_core.workflow.models.inputs.data_file import FORMATS, require_data_file
from thunder_core.workflow.models.inputs.input_names import IDS
from thunder_core.workflow.models.memory.free_memory import free_memory

TEXT = "text"
NUMBERS = "biuf"  # the kinds of numeric dtypes in numpy
DIGITS = 12  # the number of digits of a digest that are shown, to distinguish files with the same name

Row = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Dataset:
    """The samples of a file. A sample is a text, or tensors by name without the batch dimension.

    `rows`, `texts` and `locations` have one entry for each sample: its tensors, its text (empty if it has none), and
    its position in the file in words.
    """

    file: Path
    digest: str
    rows: tuple[Row, ...]
    texts: tuple[str, ...]
    locations: tuple[str, ...]
    from_tokenizer: frozenset[str] = frozenset()
    """The names of optional inputs from the tokenizer, which a model need not accept."""
    checked: set[object] = field(default_factory=set, compare=False, repr=False)
    """The uses for which all samples were checked, so that the check is not repeated for each batch."""

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def has_text(self) -> bool:
        """Whether the samples have text, which must be tokenized first."""
        return any(self.texts)

    @property
    def name(self) -> str:
        """The name of the file with a part of its digest, so that different files have different names."""
        return f"{self.file.name}:{self.digest[:DIGITS]}"

    def wrong(self, number: int, what: str, fix: str) -> BadData:
        """Return the error for a sample; `what` describes the problem."""
        return BadData(f"{self.file}, {self.locations[number]}: {what}", fix=fix)


def read_dataset(option: str, file: Path) -> Dataset:
    """Read the samples of a file; raise `BadData` for a damaged or empty file, and for values that are not numbers."""
    require_data_file(option, file)
    try:
        rows, texts, locations = READERS[file.suffix.lower()](file)
        if not rows:
            raise BadData(f"{file} has no samples", fix=f"use {FORMATS}")
        with file.open("rb") as opened:
            digest = hashlib.file_digest(opened, "sha256").hexdigest()
        return Dataset(file, digest, tuple(rows), tuple(texts), tuple(locations))
    except OSError as error:
        raise BadData(f"{file} cannot be read: {error.strerror or error}", fix="check the file") from error


Samples = tuple[Sequence[Row], Sequence[str], Sequence[str]]  # the rows, texts and locations of the samples


def _safetensors(file: Path) -> Samples:
    try:
        return _rows_of(file, load_file(file))
    except SafetensorError as error:
        raise BadData(
            f"{file} is not a safetensors file, or it is damaged: {error}", fix="write the file again"
        ) from error


def _npz(file: Path) -> Samples:
    try:
        _require_room(file)
        with np.load(file, allow_pickle=False) as arrays:
            return _rows_of(file, {name: _from_numpy(file, name, arrays[name]) for name in arrays.files})
    except (ValueError, EOFError, zipfile.BadZipFile, NotImplementedError, RuntimeError) as error:
        raise BadData(
            f"{file} is not a file of numpy.savez, is damaged, or contains objects: {error}",
            fix="write arrays of numbers with numpy.savez",
        ) from error


def _require_room(file: Path) -> None:
    """Raise `OutOfMemory` for an archive whose unpacked content does not fit into memory."""
    with zipfile.ZipFile(file) as archive:
        needed = sum(entry.file_size for entry in archive.infolist())
    free = free_memory(torch.device("cpu"))
    if free is not None and needed > free:
        raise OutOfMemory(
            f"{file} has {needed / 2**30:.1f} GiB of arrays, but only {free / 2**30:.1f} GiB of memory are free",
            fix="use a file with fewer samples",
        )


def _from_numpy(file: Path, name: str, array: object) -> torch.Tensor:
    if not isinstance(array, np.ndarray):  # numpy returns the bytes of a file in the archive that is not an array
        raise BadData(f"{file}: `{name}` is not an array", fix="write arrays of numbers with numpy.savez")
    if array.dtype.kind not in NUMBERS:
        raise BadData(
            f"{file}: `{name}` has the dtype {array.dtype}, which is not numeric", fix="use arrays of numbers"
        )
    plain = array.astype(np.int64) if array.dtype.kind == "u" and array.dtype.itemsize > 1 else array
    return torch.from_numpy(np.ascontiguousarray(plain, dtype=plain.dtype.newbyteorder("=")))


def _rows_of(file: Path, columns: Mapping[str, torch.Tensor]) -> Samples:
    """Split arrays into samples along their first dimension."""
    sizes = {name: tensor.shape[0] if tensor.ndim else -1 for name, tensor in columns.items()}
    if len(set(sizes.values())) > 1 or -1 in sizes.values():
        shapes = ", ".join(f"`{name}` is {list(tensor.shape)}" for name, tensor in columns.items())
        raise BadData(
            f"{file} has arrays with different numbers of samples: {shapes}",
            fix="make the batch the first dimension of each array",
        )
    count = next(iter(sizes.values()), 0)
    rows = [{name: tensor[number] for name, tensor in columns.items()} for number in range(count)]
    return rows, [""] * count, [f"sample {number}" for number in range(count)]


def _jsonl(file: Path) -> Samples:
    rows, texts, locations = [], [], []
    for number, line in _lines(file):
        row, text = _parse(file, number, line)
        rows.append(_unbatch(row))
        texts.append(text)
        locations.append(f"line {number}")
    return rows, texts, locations


def _unbatch(row: Row) -> Row:
    """Remove a batch dimension of 1 from a sample, which tokenizers add if they return batches."""
    tokens = row.get(IDS)
    if tokens is None or tokens.ndim != 2 or not all(value.ndim and value.shape[0] == 1 for value in row.values()):
        return row
    return {name: tensor[0] for name, tensor in row.items()}


def _lines(file: Path) -> Iterator[tuple[int, str]]:
    try:
        with file.open(encoding="utf-8-sig") as opened:
            yield from ((number, line) for number, line in enumerate(opened, start=1) if line.strip())
    except UnicodeDecodeError as error:
        raise BadData(f"{file} is not UTF-8: {error}", fix="write the file as UTF-8") from error


def _parse(file: Path, number: int, line: str) -> tuple[Row, str]:
    try:
        content = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise BadData(f"{file}, line {number} is not JSON: {error}", fix="write one object on each line") from error
    if not isinstance(content, dict) or not content:
        raise BadData(
            f"{file}, line {number} is not an object", fix='write it as {"input_ids": [...]} or {"text": "..."}'
        )
    text = content.pop(TEXT, "")
    if not isinstance(text, str) or not (text or content):
        raise BadData(f"{file}, line {number}: `{TEXT}` is empty or not a string", fix="write a string for each sample")
    return {name: _tensor(file, number, name, value) for name, value in content.items()}, text


def _tensor(file: Path, number: int, name: str, value: object) -> torch.Tensor:
    try:
        return torch.tensor(value)
    except (ValueError, TypeError, RuntimeError, OverflowError) as error:
        raise BadData(
            f"{file}, line {number}: `{name}` is not an array of numbers: {error}",
            fix="write a number, or lists of numbers of equal length",
        ) from error


READERS: Mapping[str, Callable[[Path], Samples]] = {".safetensors": _safetensors, ".npz": _npz, ".jsonl": _jsonl}
