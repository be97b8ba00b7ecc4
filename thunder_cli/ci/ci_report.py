"""The result of a command for continuous integration: a JUnit file, and annotations with a summary for GitHub."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter

import typer
from junitparser import Error, Failure, JUnitXml, TestCase, TestSuite

from thunder_cli.ci.ci_options import CiOptions
from thunder_cli.console import stderr
from thunder_cli.failure import thunder_error_for
from thunder_cli.results.bench_output import require_writable
from thunder_core.foundation.errors import BadOption
from thunder_core.foundation.printable import printable
from thunder_core.foundation.storage.file import replaced_file
from thunder_core.foundation.storage.full_disk import report_unwritable
from thunder_core.workflow.report import markdown

# The environment variable in which GitHub Actions names the file of the step's summary.
SUMMARY_VARIABLE = "GITHUB_STEP_SUMMARY"
FAILED_CHECK_STATUSES = (1, 4, 5, 6)  # the exit statuses of a check that failed; all others are errors
# Characters that would end the message, or a property, of a workflow command of GitHub Actions.
MESSAGE_ESCAPES = {"%": "%25", "\r": "%0D", "\n": "%0A"}
PROPERTY_ESCAPES = {**MESSAGE_ESCAPES, ":": "%3A", ",": "%2C"}


@dataclass(frozen=True)
class Check:
    """One check: its name, the failure and its fix. The failure is empty if the check passed."""

    name: str
    failure: str = ""
    fix: str = ""
    code: str = ""
    status: int = 0

    @property
    def as_markdown(self) -> str:
        """The verdict, the name and the failure as a line of Markdown."""
        texts = [markdown.code(printable(text)) for text in (self.name, self.failure) if text]
        return " ".join(("**failed**:" if self.failure else "passed:", *texts))


@dataclass
class CiReport:
    """The checks of a command, and the function that returns the command's summary in Markdown, or None."""

    command: str
    checks: list[Check] = field(default_factory=list)
    summarize: Callable[[], str] | None = None
    began: float = field(default_factory=perf_counter)

    def note(self, name: str, failures: Sequence[str] = (), fix: str = "") -> None:
        """Add a check, with its failures; a check without failures has passed."""
        self.checks.append(Check(name, "; ".join(failures), fix, status=1 if failures else 0))

    def note_error(self, error: BaseException) -> None:
        """Add the error that ended the command."""
        thunder_error = thunder_error_for(error)
        self.checks.append(
            Check(self.command, thunder_error.what, thunder_error.fix, thunder_error.code, thunder_error.status)
        )

    @property
    def failed(self) -> list[Check]:
        """The failed checks."""
        return [check for check in self.checks if check.failure]

    def write_junit(self, file: Path) -> None:
        """Write the checks in JUnit's format, one test case for each, atomically.

        Raises `OutOfDisk` and `OutputNotWritable`.
        """
        suite = TestSuite(f"thunder {self.command}")
        seconds = perf_counter() - self.began
        for check in self.checks or [Check(self.command)]:
            suite.add_testcase(self._test_case(check, seconds / max(len(self.checks), 1)))
        document = JUnitXml()
        document.add_testsuite(suite)
        document.update_statistics()  # type: ignore[no-untyped-call]
        with report_unwritable(file, fix="name another file"), replaced_file(file) as new:
            document.write(str(new), pretty=True)

    def _test_case(self, check: Check, seconds: float) -> TestCase:
        case = TestCase(printable(check.name), f"thunder.{self.command}", seconds)
        if check.failure:
            kind = Failure if check.status in FAILED_CHECK_STATUSES else Error
            result = kind(printable(check.failure), check.code or "check")
            result.text = printable("\n".join(filter(None, (check.failure, check.fix and f"fix: {check.fix}"))))
            case.result = [result]
        return case

    def write_github(self, summary: Path) -> None:
        """Print an annotation for each failure, and append the summary to the step's summary file.

        Raises `OutOfDisk` and `OutputNotWritable` if the file cannot be written.

        Annotations go to stderr, which the runner also reads, so that stdout has only the result.
        """
        for check in self.failed:
            title = " ".join(filter(None, (f"thunder {self.command}", check.code)))
            text = "\n".join(filter(None, (f"{check.name}: {check.failure}", check.fix and f"fix: {check.fix}")))
            stderr().print(annotation(printable(title), printable(text)), soft_wrap=True)
        text = f"{(self.summarize or self._markdown_list)()}\n"
        with (
            report_unwritable(summary, fix=f"look at {SUMMARY_VARIABLE}"),
            summary.open("a", encoding="utf-8") as file,
        ):
            file.write(text)

    def _markdown_list(self) -> str:
        """Return the checks as a Markdown list."""
        rows = [f"- {check.as_markdown}" for check in self.checks or [Check(self.command)]]
        return "\n".join((f"## thunder {self.command}", "", *rows, ""))


@contextmanager
def collect_checks(options: CiOptions, command: str) -> Iterator[CiReport]:
    """Collect checks while the block runs, and write them after the block, even if the block raises an error.

    Raises `OutputNotWritable` at once for a file that cannot be created, and `BadOption` for `--github` outside of a
    step of GitHub Actions.
    """
    require_writable(options.junit, None)
    if options.github and not os.environ.get(SUMMARY_VARIABLE):
        raise BadOption(
            f"--github was given, and {SUMMARY_VARIABLE} is not set",
            fix="use --github in a step of GitHub Actions only",
        )
    report = CiReport(command)
    try:
        yield report
    except typer.Exit:  # the command has added its checks
        raise
    except BaseException as error:
        report.note_error(error)
        raise
    finally:
        write(report, options)


def write(report: CiReport, options: CiOptions) -> None:
    """Write the checks in the requested forms; raise `OutputNotWritable`."""
    if options.junit is not None:
        report.write_junit(options.junit)
    if options.github:
        report.write_github(Path(os.environ[SUMMARY_VARIABLE]))


def annotation(title: str, message: str) -> str:
    """Return a workflow command of GitHub Actions that shows an error."""
    return f"::error title={escape(title, PROPERTY_ESCAPES)}::{escape(message, MESSAGE_ESCAPES)}"


def escape(text: str, escapes: Mapping[str, str]) -> str:
    """Escape the characters of a text that GitHub Actions would read as part of a workflow command."""
    return "".join(escapes.get(character, character) for character in text)
