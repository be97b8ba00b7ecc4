"""Every family of models that generates, in every mode of `generate`, compared with eager PyTorch.

Usage: python -m tests.generation.matrix [FAMILY ...] [--modes MODE,MODE] [--write FILE] [--page FILE]
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

import thunder_core as thunder
from tests.generation.models import MODELS, Uncompiled, model_of
from tests.generation.modes import ASSISTED, MODES, Mode, assert_same, modes_with
from thunder_core.foundation.errors import RecompileWarning

SIZES = ((2, 7), (3, 9))  # batch and length of the first and of the second prompts


@dataclass(frozen=True)
class Cell:
    """The outcome of one mode on one family: the number of programs after each prompt.

    If eager PyTorch raises an error, `refused` is the error, which the compiled model raises too. `differs` is the
    difference of the compiled model, or empty.
    """

    programs: tuple[int, ...] = ()
    refused: str = ""
    differs: str = ""


def cells(family: str, modes: Iterable[str]) -> dict[str, Cell]:
    """The outcome of each mode on a family, each with a separately compiled model."""
    model = model_of(family)
    known = modes_with(model)
    return {mode: outcome(known[mode], model) for mode in modes}


def differing(family: str, modes: Iterable[str]) -> dict[str, str]:
    """The modes in which a compiled model of the family differs from eager, each with the difference."""
    return {mode: cell.differs for mode, cell in cells(family, modes).items() if cell.differs}


def outcome(mode: Mode, model: torch.nn.Module) -> Cell:
    """The outcome of a mode on a model that is compiled for this mode alone."""
    compiled = thunder.compile(model, Uncompiled)
    programs = []
    for size in SIZES:
        try:
            expected = mode(model, *size)
        except Exception as refusal:  # transformers has no such mode for the model type
            return refused_alike(mode, compiled, size, refusal)
        try:
            assert_same(mode(compiled, *size), expected)
        except Exception as error:  # of any class: the other modes are tried as well
            return Cell(differs=f"{type(error).__name__}: {error}")
        programs.append(thunder.cache_misses(compiled))
    return Cell(tuple(programs))


def refused_alike(mode: Mode, compiled: torch.nn.Module, size: tuple[int, int], refusal: Exception) -> Cell:
    """The outcome of a mode that eager refuses: the compiled model must raise the same error."""
    told = f"{type(refusal).__name__}: {refusal}"
    try:
        mode(compiled, *size)
    except Exception as error:
        mine = f"{type(error).__name__}: {error}"
        return Cell(refused=told) if mine == told else Cell(differs=f"eager raises {told}; compiled raises {mine}")
    return Cell(differs=f"eager raises {told}")


def main() -> int:
    """Print for each family the modes that differ, and return 1 if there are any."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("families", nargs="*", default=[*MODELS])
    parser.add_argument("--modes", type=lambda names: names.split(","), default=[*MODES, ASSISTED])
    parser.add_argument("--write", type=Path, help="a file of JSON, to which the outcomes are added")
    parser.add_argument("--page", type=Path, help="a page of the documentation, made of the file of JSON alone")
    options = parser.parse_args()
    if options.page is not None:
        options.page.write_text(page(json.loads(options.write.read_text(encoding="utf-8"))), encoding="utf-8")
        return 0
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", RecompileWarning)
    failed = False
    for family in options.families:
        before = time.process_time()
        found = cells(family, options.modes)
        failed |= any(cell.differs for cell in found.values())
        print(f"{family}, {time.process_time() - before:.0f} s")
        print("".join(f"  {mode}: {told(cell)}\n" for mode, cell in found.items()), end="", flush=True)
        if options.write is not None:
            add(options.write, family, found)
    return int(failed)


def told(cell: Cell) -> str:
    """An outcome on one line."""
    if cell.differs or cell.refused:
        return f"DIFFERS: {cell.differs}" if cell.differs else f"refused by transformers: {cell.refused}"
    return f"equal, programs: {', '.join(map(str, cell.programs))}"


def add(file: Path, family: str, found: dict[str, Cell]) -> None:
    """Add the outcomes of a family to a JSON file."""
    known = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    known.setdefault(family, {}).update({mode: asdict(cell) for mode, cell in found.items()})
    file.write_text(json.dumps(known, indent=1), encoding="utf-8")


HEAD = """# Modes of generation, by families of models

Each cell is the result of one mode of `generate` on a small model with seeded weights. The model is compiled for this
mode alone and compared with eager PyTorch in float32. The test generates twice, in batches of two and of three prompts
with different lengths. If a mode only takes a single prompt, each batch is one prompt.

- Two numbers: the mode generated the same tokens as eager. The numbers count the compiled programs, after the first and
  after the second generation.
- *as eager*: transformers refuses the mode for this model type, and the compiled model raises the same error.
- A dash: the cell was not run.

`python -m tests.generation.matrix --write FILE` runs all families and modes.
`--write FILE --page docs/generation_modes.md` writes this page from FILE and runs nothing.

"""


def page(found: dict[str, dict[str, dict[str, Any]]]) -> str:
    """The documentation page on outcomes by family and mode."""
    modes = [mode for mode in (*MODES, ASSISTED) if any(mode in of_family for of_family in found.values())]
    rows = [["family", *modes], ["---"] * (len(modes) + 1)]
    rows += [[family, *(short(found[family].get(mode)) for mode in modes)] for family in MODELS if family in found]
    return HEAD + "".join(f"| {' | '.join(row)} |\n" for row in rows)


def short(cell: dict[str, Any] | None) -> str:
    """An outcome in one word."""
    if cell is None:
        return "-"
    if cell["differs"] or cell["refused"]:
        return "**differs**" if cell["differs"] else "as eager"
    return ", ".join(map(str, cell["programs"]))


if __name__ == "__main__":
    sys.exit(main())
