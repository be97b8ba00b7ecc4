"""Traces for a terminal, for a pipe and as JSON."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cached_property

from rich.console import Console
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from thunder_cli.console import say, stderr, stdout
from thunder_cli.views.quantity import count_noun, format_bytes
from thunder_cli.views.ranges import constraints_view
from thunder_core.foundation.errors import BadOption
from thunder_core.foundation.time_format import format_time
from thunder_core.tracing.ir.layout import layout
from thunder_core.tracing.ir.listing import Listing
from thunder_core.workflow.inspect.difference import unified_diff
from thunder_core.workflow.inspect.regions import EarlierStages, all_nested_statements
from thunder_core.workflow.inspect.runnable import runnable
from thunder_core.workflow.inspect.select import StatementMatch, belonging_to, matches, module_lines, modules
from thunder_core.workflow.inspect.subject import InspectedStage, Subject
from thunder_core.workflow.report.ranges import constraint_rows

MODEL_WEIGHTS = "those of the model, not in the artifact"
THEME = "ansi_dark"
MODULE_HEADING = r"(?m)^ *# ---- .* ----$"
TENSOR_TYPE = r"(?m)(?<=  # )[a-z]+\d+\[.*?\]"


@dataclass(frozen=True)
class DisplayOptions:
    """The options for the display of a trace: which trace and stage, which lines, and at which level."""

    trace: str
    stage: str | None
    level: str
    diff: tuple[str, str] | None = None
    grep: str | None = None
    module: str | None = None
    plain: bool = False

    def __post_init__(self) -> None:
        if self.diff is not None and (self.grep is not None or self.module is not None or self.stage is not None):
            raise BadOption(
                "--diff compares whole stages, so it cannot be combined with --stage, --grep or --module",
                fix="leave out these options, or leave out --diff",
            )


@dataclass(frozen=True)
class View:
    """A subject (an artifact or a model) with the options for its display."""

    subject: Subject
    options: DisplayOptions

    @cached_property
    def stage(self) -> InspectedStage:
        """The displayed stage."""
        return self.subject.stage(self.options.trace, self.options.stage)

    @cached_property
    def listing(self) -> Listing:
        """The lines of the stage, or the lines of one module."""
        listing = self.stage.read()
        if self.options.module is None:
            return listing
        return module_lines(listing, self.options.module, self.earlier)

    @cached_property
    def matches(self) -> list[StatementMatch]:
        """The matching lines."""
        return list(matches(self.listing, self.options.grep or "", self.options.level, self.earlier))

    @cached_property
    def earlier(self) -> EarlierStages:
        """The stages before the displayed stage."""
        return EarlierStages(self.subject.before(self.stage))

    @property
    def is_empty(self) -> bool:
        """Whether a search found no line."""
        return self.options.grep is not None and not self.matches

    @cached_property
    def diff(self) -> list[str]:
        """The differences of two stages."""
        before, after = (self.subject.stage(self.options.trace, name) for name in self.options.diff or ("0", None))
        return unified_diff(before, after, level=self.options.level)

    # ---- as text --------------------------------------------------------------------------------------------

    def text(self) -> str:
        """Return the displayed text without colours; a complete trace is a runnable Python file."""
        if self.options.diff is not None:
            return "\n".join([*self.diff, ""])
        if self.options.grep is not None:
            return "".join(f"{plain_match(match)}\n" for match in self.matches)
        return runnable(self.subject, self.stage, self.listing, level=self.options.level)

    def report_earlier_match(self) -> None:
        """Print on stderr that nothing matches, and name the last earlier stage that has a match."""
        message = f"no line of {self.stage.title} matches"
        for stage in reversed(self.earlier.stages):
            if any(matches(stage.read(), self.options.grep or "", self.options.level)):
                message += f"; lines of stage {stage.short} match: --stage {stage.facts.number}"
                break
        stderr().print(message, style="dim")

    def print(self) -> None:
        """Print the requested output, with colours on a terminal."""
        if self.options.plain:
            say(self.text(), end="")
            return
        PRINTERS[self.kind](self, stdout())

    @property
    def kind(self) -> str:
        """The kind of output."""
        return "diff" if self.options.diff is not None else "grep" if self.options.grep is not None else "trace"

    def print_trace(self, console: Console) -> None:
        """Print a trace, or a part of it."""
        head = [f"# {self.stage.title}, of {self.subject.name}"]
        head += self.about_module()
        width = console.width if console.is_terminal else None
        print_coloured(console, layout(self.listing, level=self.options.level, width=width, head=head), "python")

    def about_module(self) -> list[str]:
        """Return comments that name the displayed module, and the fused regions that contain its lines."""
        if self.options.module is None:
            return []
        listing = self.stage.read()
        belongs = belonging_to(self.options.module, modules(listing))
        region_statements = [tensor for tensor in all_nested_statements(listing) if belongs(tensor.statement.module)]
        comments = [f"# only the lines of {self.options.module}, with its inputs and outputs"]
        for outer in dict.fromkeys(tensor.outer for tensor in region_statements):
            lines = [tensor.statement for tensor in region_statements if tensor.outer == outer]
            stage = self.earlier.stage_of(lines[0])
            calls = "a separate call" if len(lines) == 1 else "separate calls"
            separate_call = f"; {calls} in stage {stage.short}" if stage else ""
            comments.append(f"# {count_noun(len(lines), 'line')} in {outer}{separate_call}")
        return comments

    def print_diff(self, console: Console) -> None:
        """Print the differences between the two stages."""
        if not self.diff:
            stderr().print("the two stages are the same", style="dim")
        print_coloured(console, "\n".join(self.diff), "diff")

    def print_matches(self, console: Console) -> None:
        """Print the matching lines."""
        module = ""
        for match in self.matches:
            if match.module != module:
                module = match.module
                console.print(Text(module, "bold"))
            line = Text.assemble(
                (f"{match.number:>5} ", "dim"), match.text, (f"  # {match.metadata}" if match.metadata else "", "green")
            )
            line.highlight_regex(self.options.grep or "", "bold red")
            console.print(line, soft_wrap=True)
            for about in (match.source_line, statement_around(match)):
                if about:
                    console.print(Text(f"      {about}", "dim"), soft_wrap=True)

    # ---- the list -------------------------------------------------------------------------------------------

    def print_list(self) -> None:
        """Print the traces and their stages."""
        if self.options.plain:
            say(self.plain_list(), end="")
            return
        table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
        for name in ("trace", "stage", "made by"):
            table.add_column(name, no_wrap=name != "made by")
        for name in ("lines", "changed", "time"):
            table.add_column(name, justify="right", no_wrap=True)
        for name, stages in self.subject.traces.items():
            for stage in stages:
                style = "bold" if stage.facts.runs else ""
                first = Text(name if stage is stages[0] else "", "bold")
                table.add_row(first, *(Text(text, style) for text in stage_cells(stage)))
        console = stdout()
        purpose = ", for training" if self.subject.train else ""
        rest = f"{purpose}, program {self.subject.program}; the stages in bold run\n"
        console.print(Text.assemble((self.subject.name, "bold"), rest))
        console.print(table)
        if self.subject.constraints:
            rows = constraint_rows((self.subject.program, constraint) for constraint in self.subject.constraints)
            console.print()
            console.print(constraints_view(rows))
        if "backward" not in self.subject.traces:
            console.print(Text(f"\n{self.subject.reason_of_absence('backward')}", "dim"))
        if self.subject.weights is not None:
            weights = (
                f"in the artifact, {format_bytes(self.subject.weights)}" if self.subject.weights else MODEL_WEIGHTS
            )
            console.print(Text(f"\nweights: {weights}\nvalidation: {self.subject.validation}"))

    def plain_list(self) -> str:
        """Return the traces and their stages, one on each line, separated by tabs."""
        rows = ("\t".join((stage.facts.trace, *stage_cells(stage))) for stage in self.subject.stages)
        return "".join(f"{text}\n" for text in rows)

    # ---- as data --------------------------------------------------------------------------------------------

    def listing_data(self) -> dict[str, object]:
        """Return the traces and their stages as plain data."""
        keys = ("trace", "number", "name", "made_by", "lines", "added", "removed", "seconds", "runs", "has_cotangent")
        stages = [{key: getattr(stage.facts, key) for key in keys} for stage in self.subject.stages]
        data: dict[str, object] = {"subject": self.subject.name, "program": self.subject.program, "stages": stages}
        data["train"] = self.subject.train
        data["constraints"] = [asdict(constraint) for constraint in self.subject.constraints]
        data["no_backward_reason"] = self.subject.no_backward_reason if "backward" not in self.subject.traces else ""
        if self.subject.weights is not None:
            data["weights"] = {"included": bool(self.subject.weights), "bytes": self.subject.weights}
            data["validation"] = self.subject.validation
        return data

    def data(self) -> dict[str, object]:
        """Return the result as plain data."""
        if self.options.diff is not None:
            return {"trace": self.options.trace, "stages": list(self.options.diff), "diff": self.diff}
        stage_facts = {"trace": self.options.trace, "stage": self.stage.facts.number, "name": self.stage.facts.name}
        if self.options.grep is not None:
            return {**stage_facts, "matches": [asdict(match) for match in self.matches]}
        return {**stage_facts, **asdict(self.listing)}


PRINTERS: dict[str, Callable[[View, Console], None]] = {
    "trace": View.print_trace,
    "diff": View.print_diff,
    "grep": View.print_matches,
}


def stage_cells(stage: InspectedStage) -> tuple[str, str, str, str, str]:
    """Return a stage as cells: its number, its step, its lines, the changed lines and its time."""
    facts = stage.facts
    changed = f"+{facts.added} -{facts.removed}" if facts.added or facts.removed else "-"
    time = format_time(facts.seconds) if facts.seconds else "-"
    return str(facts.number), stage.made_by, str(facts.lines), changed, time


def statement_around(match: StatementMatch) -> str:
    """Return the statement around a match, and the stage in which the match was a separate call."""
    separate_call = f"; a separate call in stage {match.stage}" if match.stage else ""
    return f"in {match.outer}{separate_call}" if match.outer else ""


def plain_match(match: StatementMatch) -> str:
    """Return a match on one line: its number, module, statement, metadata, source line, and the statement around it."""
    comment = f"  # {match.metadata}" if match.metadata else ""
    where = f"\t{statement_around(match)}" if match.outer else ""
    return f"{match.number}\t{match.module}\t{match.text}{comment}\t{match.source_line}{where}"


def print_coloured(console: Console, text: str, language: str) -> None:
    """Print source: highlighted on a terminal, otherwise unchanged; the terminal wraps long lines."""
    if not console.is_terminal or not text:
        say(text, end="" if text.endswith("\n") or not text else "\n")
        return
    highlighted = Syntax("", language, theme=THEME, background_color="default").highlight(text)
    highlighted.rstrip()
    highlighted.highlight_regex(MODULE_HEADING, "bold magenta")
    highlighted.highlight_regex(TENSOR_TYPE, "not dim green")
    console.print(highlighted, soft_wrap=True)
