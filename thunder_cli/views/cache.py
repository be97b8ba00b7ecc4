"""The cache of compiled kernels as tables: entries, damage, freed space, and the reasons for cache misses."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from thunder_cli.views.quantity import count_noun, format_age, format_bytes
from thunder_cli.views.table import DIM, HEAD, plain_table
from thunder_core.backend.cache import Freed, MissExplanation, Record, by_models

DIGITS_SHOWN = 12  # digits of a digest
MIN_WIDE_COLUMNS = 100  # columns; narrower consoles omit the time when an entry was built
NO_EARLIER = (
    "built because the cache had no earlier entry of this executor for the same part of a program or the same label"
)
DIFFERS = "built because its key differs from that of the most similar earlier entry, {}, in"
DIGEST = re.compile(r"[0-9a-f]{32,}")


def records_view(records: Sequence[Record], *, width: int = MIN_WIDE_COLUMNS) -> RenderableType:
    """Return a row for each entry, for a console of this width; the label of a damaged entry is `damaged`."""
    wide = width >= MIN_WIDE_COLUMNS
    table = plain_table("entry", "label", "executor", "size", *(("built",) if wide else ()), "used", text_columns=3)
    table.columns[1].no_wrap = False  # labels are wrapped, so that nothing else is cut
    now = datetime.now(UTC)
    for record in records:
        moments = (record.created, record.used) if wide else (record.used,)
        ages = (Text("" if record.damage else format_age(now - moment), DIM) for moment in moments)
        table.add_row(shorten(record.digest), label_of(record), record.executor, format_bytes(record.size), *ages)
    return table


def models_view(records: Sequence[Record]) -> RenderableType:
    """Return a row for each model with entries, the largest first; a dash for entries without a model."""
    table = plain_table("model", "entries", "size", "used", text_columns=1)
    table.columns[0].no_wrap = False
    now = datetime.now(UTC)
    for row in by_models(records):
        name = Text(row.model, HEAD) if row.model else Text("-", DIM)
        table.add_row(name, str(row.entries), format_bytes(row.size), Text(format_age(now - row.used), DIM))
    return table


def damage_view(records: Sequence[Record]) -> RenderableType:
    """Return a row for each of these damaged entries, with its label and its damage."""
    table = plain_table("entry", "damage", text_columns=2)
    table.columns[1].no_wrap = False
    for record in records:
        label = Text(f"{record.label}: " if record.label else "")
        table.add_row(shorten(record.digest), Text.assemble(label, (record.damage, "red")))
    return table


def freed_text(freed: Freed, *, dry_run: bool) -> Text:
    """Return the freed and the remaining space, in words."""
    verb = "would free" if dry_run else "freed"
    text = Text.assemble((verb, HEAD), f" {format_bytes(freed.size)}: {count_entries(len(freed.removed))}")
    remaining_text = (
        f"; {count_entries(len(freed.kept))} with {format_bytes(freed.kept_size)} remain" if freed.kept else ""
    )
    return text.append(remaining_text, DIM)


def why_view(why: MissExplanation) -> RenderableType:
    """Return the reason why an entry was built.

    The reason is a sentence, or a table of the differences from the most similar earlier entry.
    """
    head = Text.assemble((why.label or "no label", HEAD), (f"  {why.executor}, entry {shorten(why.digest)}", DIM))
    return Group(head, Text(), *_reasons(why))


def _reasons(why: MissExplanation) -> list[RenderableType]:
    reasons: list[RenderableType] = []
    if why.replaced:
        reasons.append(Text.assemble("built again because the entry was damaged: ", (why.replaced, "red")))
    elif why.nearest is None:
        reasons.append(Text(NO_EARLIER))
    else:
        when = format_age(datetime.now(UTC) - why.nearest.created)
        earlier = f"{shorten(why.nearest.digest)} (built {when})"
        reasons += [Text(DIFFERS.format(earlier)), Padding(_differences(why), (1, 0, 0, 0))]
    return reasons


def _differences(why: MissExplanation) -> Table:
    table = plain_table("field", "was", "is", text_columns=3)
    for difference in why.differences:
        was, now = (Text(shorten(text)) if text is not None else Text("not set", DIM) for text in difference.sides)
        was.stylize("red")
        now.stylize("green")
        table.add_row(Text(difference.field, HEAD), was, now)
    return table


def label_of(record: Record) -> Text:
    """Return the label of an entry, or `damaged`."""
    if record.damage:
        return Text("damaged", "red")
    return Text(record.label, HEAD) if record.label else Text("-", DIM)


def shorten(text: str) -> str:
    """Return the first digits of a digest; any other string unchanged."""
    return text[:DIGITS_SHOWN] if DIGEST.fullmatch(text) else text


def count_entries(number: int) -> str:
    """Return a number of entries in words."""
    return count_noun(number, "entry", "entries")
