"""The page of the zoo: a table of each shelf, with the results of each type."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from tests.zoo.examine import EAGER
from tests.zoo.shelves import SUBJECTS, TRANSFORMERS

COLUMNS = ("inference", "training", "symbolic", "generate")
MOST_WORDS = 110
HEAD = """# Model types

This page is written by `make zoo`. It lists models with random weights. Each is compared with eager PyTorch in a
process of its own, within {seconds} seconds of CPU time and {memory} GiB.

- *inference* compares the outputs.
- *training* compares the outputs, the gradients of all parameters, and the buffers. A program that is *recorded* is
  differentiated by PyTorch's autograd as it runs.
- *symbolic* compares three sizes: lengths of texts, or numbers of nodes. One program should serve them.
- *generate* compares the tokens of greedy search.

The seconds are CPU seconds of all comparisons of a type.
"""
FROM: Mapping[str, str] = {
    "transformers": (
        "Each type is built from a small config. The class is that of the type's first head. For an eighth of the\n"
        "types, chosen by their names, Dynamo traces the model too, with the same inputs and eager PyTorch as its\n"
        "backend. Before the measurement, both have compiled a small module in the same process."
    ),
    "timm": "Each architecture is a small variant of its family, on images as small as the architecture accepts.",
    "diffusers": "Each model is built from a tiny config.",
    "gnn": "Each layer is called with random graphs.",
}


def page(
    rows: Sequence[Mapping[str, Any]],
    versions: Mapping[str, str],
    seconds: int,
    memory: float,
    open_counts: Mapping[str, int] = MappingProxyType({}),
) -> str:
    """Return the page, with a section for each shelf that has results.

    `versions` has the version of each shelf's package, and `open_counts` the number of types without a result.
    """
    sections = [HEAD.format(seconds=seconds, memory=f"{memory:g}")]
    for shelf, title in SUBJECTS.items():
        there = [row for row in rows if row.get("shelf", TRANSFORMERS) == shelf]
        if there:
            version = versions.get(shelf, "")
            sections += [f"## {title[0].upper()}{title[1:]} {version}".rstrip() + "\n", f"{FROM[shelf]}\n"]
            if open_counts.get(shelf):
                sections.append(f"{open_counts[shelf]} types were not examined yet.\n")
            sections += [*summary(there), *table(there)]
    return "\n".join(sections)


def is_run(row: Mapping[str, Any]) -> bool:
    """Whether eager PyTorch runs the type from a small config, within the limits."""
    return "eager" not in row


def summary(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the lines with the numbers of right results."""
    run = [row for row in rows if is_run(row)]
    yield f"Eager PyTorch runs {len(run)} of {len(rows)}.\n"
    yield "| | right | of |"
    yield "|---|---|---|"
    for column in COLUMNS:
        there = [str(row[column]) for row in run if not str(row.get(column, EAGER)).startswith(EAGER)]
        yield f"| {column} | {sum(words.startswith('right') for words in there)} | {len(there)} |"
    recorded = sum("recorded" in str(row.get("training", "")) for row in run)
    yield f"\nIn training, {recorded} programs are recorded.\n"
    yield from tracing(run)


def tracing(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a line with the time of the first call, relative to the time with Dynamo."""
    ours, theirs = ("inference first call seconds", "dynamo first call seconds")
    parts = [row[ours] / row[theirs] for row in rows if ours in row and theirs in row]
    if len(parts) > 1:
        low, median, high = statistics.quantiles(parts)
        yield (
            f"The first call takes {median:.2f} of the CPU time that it takes with Dynamo (the median of {len(parts)} "
            f"types; quartiles {low:.2f} and {high:.2f}, at most {max(parts):.2f}).\n"
        )


def table(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a row for each type that eager PyTorch runs, and a reason for each other type."""
    yield "| type | class | inference | training | symbolic | generate | seconds | operations |"
    yield "|---|---|---|---|---|---|---|---|"
    for row in filter(is_run, rows):
        results = " | ".join(in_short(row.get(column, "")) for column in COLUMNS)
        seconds = sum(row.get(f"{column} seconds", 0) for column in COLUMNS)
        yield f"| {row['type']} | {row.get('class', '')} | {results} | {seconds:.1f} | {row.get('operations') or ''} |"
    yield ""
    reasons = [row for row in filter(is_run, rows) if "symbolic reason" in row]
    if reasons:
        yield "Why one program does not serve the three sizes, by the first size that it does not serve:\n"
        yield from (f"- {row['type']}: {escape(row['symbolic reason'])}" for row in reasons)
        yield ""
    not_run = [row for row in rows if not is_run(row)]
    if not_run:
        yield "Eager PyTorch does not run these:\n"
        yield from (f"- {row['type']}: {in_short(row['eager'])}" for row in not_run)
        yield ""


def in_short(words: str) -> str:
    """Return a string as a table's cell: escaped, and at most `MOST_WORDS` characters long."""
    cell = escape(words)
    return cell if len(cell) <= MOST_WORDS else f"{cell[: MOST_WORDS - 3]}..."


def escape(words: str) -> str:
    """Return a string with the characters replaced that Markdown interprets."""
    return words.replace("|", "/").replace("<", "(").replace(">", ")")
