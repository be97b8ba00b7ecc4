"""Show a search as tables: the plan, the results of all candidates, and the reason why the winner won."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from thunder_cli.views.quantity import count_noun, format_bytes, format_duration, format_magnitude, format_speedup
from thunder_cli.views.table import BAD, DIM, GOOD, HEAD, fit_table, plain_table, space_out, with_title
from thunder_core.foundation.time_format import format_time
from thunder_core.workflow.report import SearchCandidate, SearchReport
from thunder_core.workflow.report.number_format import percent
from thunder_core.workflow.report.render import bounds_in_words

if TYPE_CHECKING:
    from thunder_core.workflow.recipe_search import RequestSearch

STYLES = {"faster": GOOD, "slower": BAD, "unstable": "bold yellow"}
COLUMNS: Mapping[str, Callable[[SearchCandidate], str]] = {
    "speed  [95%]": lambda row: "" if row.speed is None else format_speedup(row.speed),
    "median": lambda row: "" if row.seconds is None else format_time(row.seconds),
    "rounds": lambda row: str(row.rounds),
    "error": lambda row: "" if row.error is None else format_magnitude(row.error),
    "KL, nats": lambda row: "" if row.kl is None else format_magnitude(row.kl),
    "top-1": lambda row: "" if row.top1 is None else percent(row.top1),
    "memory": lambda row: "" if row.memory is None else format_bytes(row.memory),
    "weights": lambda row: "" if row.size is None else format_bytes(row.size),
}
# Narrow consoles leave out these columns, in this order, until the table fits.
COLUMNS_LEFT_OUT_FIRST = ("rounds", "weights", "error", "median", "memory")


def plan_view(planned: RequestSearch, *, lists_unfit: bool) -> RenderableType:
    """Show the candidates of a search; with `lists_unfit`, also show why the other candidates do not apply."""
    search, prepared = planned.search, planned.base.prepared
    task = f"{prepared.loading.task}, {prepared.dtype_name}, on {planned.base.device}"
    detail = f"{prepared.model_name}, {task}; objective {search.objective}"
    time = f", {format_duration(search.search)}" if search.search else ""
    table = plain_table("", "candidate", "least memory", text_columns=2)
    for number, estimate in enumerate(planned.estimates_of_candidates, start=1):
        least = "" if estimate.least_memory is None else format_bytes(estimate.least_memory)
        table.add_row(str(number), estimate.candidate.name, least)
    rows = [(excluded.candidate.name, excluded.reason) for excluded in planned.excluded]
    bounds = Text(f"Bounds: {'; '.join(bounds_in_words(planned.bounds))}")
    others = reasons_view("Not applicable", rows) if lists_unfit else unfit_text(len(rows))
    return Group(with_title("Search", f"{detail}{time}", table), bounds, *([Text()] if lists_unfit else []), others)


def unfit_text(number: int) -> Text:
    """Return a note with the number of candidates that do not apply."""
    return Text(f"Not applicable: {count_noun(number, 'candidate')}; `--dry-run` and the report say why", DIM)


def reasons_view(title: str, rows: Sequence[tuple[str, str]]) -> RenderableType:
    """Show candidates with reasons in a table."""
    table = plain_table("candidate", "reason", text_columns=1)
    table.columns[1].justify, table.columns[1].no_wrap = "left", False
    for name, reason in rows:
        table.add_row(name, Text(reason, DIM))
    return with_title(title, "", table)


def search_view(report: SearchReport, *, width: int) -> RenderableType:
    """Show the result of a search: why the winner won, and every candidate."""
    return Group(*space_out(_parts(report, width)))


def _parts(report: SearchReport, width: int) -> Iterator[RenderableType]:
    yield Text.assemble(("Search", HEAD), "  ", (report.why, GOOD if report.winner else BAD))
    reused_text = f", {report.kept} reused from an earlier search" if report.kept else ""
    time_text = f"{format_duration(report.seconds)} of {format_duration(report.budget)}"
    detail = f"{report.call}, {report.machine}; {time_text}{reused_text}"
    yield with_title(
        "Candidates",
        f"{detail}; {report.end_reason}",
        fit_table(_table_of(report), list(COLUMNS), COLUMNS_LEFT_OUT_FIRST, width),
    )
    missed = [(row.name, row.reason) for row in report.measured if row.reason and not row.is_within]
    if missed:
        yield reasons_view("Out of bounds", missed)
    others = [
        (row.name, f"{row.state}: {row.reason}") for row in report.candidates if row.state in ("refused", "not tried")
    ]
    if others:
        yield reasons_view("Not measured", others)
    yield unfit_text(sum(row.state == "not applicable" for row in report.candidates))


def _table_of(report: SearchReport) -> Callable[[Sequence[str]], Table]:
    def table_of(columns: Sequence[str]) -> Table:
        table = plain_table("", "candidate", *columns, "verdict", text_columns=2)
        for row in report.measured:
            name = Text(row.name, "bold" if row.name == report.winner else "" if row.is_within else DIM)
            verdict = "wins" if row.name == report.winner else row.verdict if row.is_within else "out of bounds"
            cells = (COLUMNS[column](row) for column in columns)
            style = GOOD if verdict == "wins" else STYLES.get(verdict, "")
            table.add_row(str(row.number), name, *cells, Text(verdict, style))
        table.columns[-1].justify = "left"
        return table

    return table_of


def trial_text(row: SearchCandidate) -> str:
    """Return the result of a trial as one line."""
    if row.state != "measured":
        return f"{row.name}  {row.state}: {row.reason}"
    speed = "" if row.speed is None or row.rank == 0 else f"  {format_speedup(row.speed)}"
    time = "" if row.seconds is None else f"  {format_time(row.seconds)}"
    return f"{row.name}{speed}{time}{'' if row.is_within else f'  out of bounds: {row.reason}'}"


def lead_text(leader: SearchCandidate | None) -> str:
    """Return a note with the name and the speed of the leader, or an empty string."""
    if leader is None:
        return ""
    return f"{leader.name} leads" + (f" with {leader.speed.value:.2f}x" if leader.speed and leader.rank else "")
