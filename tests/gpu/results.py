"""The results of tests from the recorded events, and their JUnit file."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

from tests.gpu.recorder import FINISH

COMPLETE = ("0", "1", "2", "5")  # passed, failed, interrupted (by a file that is not collected), nothing to run
TAGS = {"failed": "failure", "error": "error", "skipped": "skipped"}
NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd]")


@dataclass(frozen=True)
class Result:
    """The result of a test or of a file that could not be collected: `passed`, `failed`, `skipped`, or `error`."""

    test: str
    outcome: str
    seconds: float = 0.0
    text: str = ""


def read_events(record: Path) -> list[dict[str, Any]]:
    """The events of one process."""
    return [json.loads(line) for line in record.read_text(encoding="utf-8").splitlines()] if record.exists() else []


def is_finished(events: Iterable[dict[str, Any]]) -> bool:
    """Whether pytest finished without an internal error or a usage error."""
    return any(event["phase"] == FINISH and event["outcome"] in COMPLETE for event in events)


def results_of(events: Iterable[dict[str, Any]], end: str) -> list[Result]:
    """The results in the events of one process. A test that did not finish gets the `end` of the process."""
    by_test: dict[str, list[dict[str, Any]]] = {}
    for event in events:
        if event["phase"] != FINISH:
            by_test.setdefault(event["test"], []).append(event)
    return [result_of(test, own, end) for test, own in by_test.items()]


def result_of(test: str, events: list[dict[str, Any]], end: str) -> Result:
    """The result of one test from its events."""
    seconds = sum(event["seconds"] for event in events)
    for event in events:
        if event["outcome"] == "failed":
            return Result(test, "failed" if event["phase"] == "call" else "error", seconds, event["text"])
    if events[-1]["phase"] not in ("teardown", "collect"):
        return Result(test, "error", seconds, f"{end} while it ran")
    skipped = [event["text"] for event in events if event["outcome"] == "skipped"]
    return Result(test, "skipped", seconds, skipped[0]) if skipped else Result(test, "passed", seconds)


def write_junit(results: Iterable[Result], path: Path) -> None:
    """Write the results as a JUnit file, each test below its file."""
    by_file: dict[str, list[Result]] = {}
    for result in results:
        by_file.setdefault(result.test.partition("::")[0], []).append(result)
    root = ET.Element("testsuites")
    for file, own in by_file.items():
        counts = {f"{tag}s" if tag != "skipped" else tag: str(count(own, word)) for word, tag in TAGS.items()}
        seconds = f"{sum(one.seconds for one in own):.3f}"
        suite = ET.SubElement(root, "testsuite", name=file, tests=str(len(own)), time=seconds, **counts)
        suite.extend(cases(own))
    ET.indent(root)
    path.parent.mkdir(parents=True, exist_ok=True)
    ET.ElementTree(root).write(path, encoding="utf-8", xml_declaration=True)


def cases(results: Iterable[Result]) -> Iterator[ET.Element]:
    """The element of each result."""
    for result in results:
        file, _, name = result.test.partition("::")
        case = ET.Element("testcase", classname=file, name=name or file, time=f"{result.seconds:.3f}")
        if result.outcome in TAGS:
            text = NO_XML.sub("?", result.text)
            ET.SubElement(case, TAGS[result.outcome], message=message_of(text)).text = text
        yield case


def message_of(text: str) -> str:
    """The line of the message: the first that pytest marks, or else the last."""
    lines = text.strip().splitlines() or [""]
    return next((line.removeprefix("E").strip() for line in lines if line.startswith("E  ")), lines[-1])[:300]


def count(results: Iterable[Result], outcome: str) -> int:
    """The number of results with an outcome."""
    return sum(result.outcome == outcome for result in results)
