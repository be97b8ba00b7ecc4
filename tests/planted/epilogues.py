"""Faults of epilogues: exchanged results, fields with another result, and missing writes."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence

from tests.planted.plant import Plant
from tests.planted.programs import with_trace
from tests.planted.subject import Subject, subject
from tests.planted.unpacking import text_of, with_text
from thunder_core.tracing.ir.proxy import TensorProxy
from thunder_core.tracing.ir.trace import Trace
from thunder_core.workflow.validation.internal_check import Fault

CONSTANTS = {"True": "False", "torch.float32": "torch.float64", "None": "0"}


def epilogue_plants(family: str) -> Iterator[Plant]:
    """Each wrong line that the epilogue of a model with state may have, in inference and in training."""
    for train in (False, True):
        own = subject(family, train=train, executors="torch", state=True)
        epilogue = own.program.last("epilogue")
        for what, line, changed_line in other_lines(epilogue):
            yield epilogue_plant(own, what, line, changed_line)


def epilogue_plant(own: Subject, what: str, line: str, changed_line: str) -> Plant:
    """The plant of an epilogue with a changed line, or without the line if no replacement is given."""
    wrong = with_text(own.program.last("epilogue"), line, changed_line)

    def is_named(faults: Sequence[Fault]) -> bool:
        return all(
            fault.kind == "epilogue" and (of_line(fault, line) if not changed_line else fault.line == changed_line)
            for fault in faults
        )

    return Plant(
        "epilogue",
        own,
        f"{what}: {changed_line or line}",
        lambda: with_trace(own.program, "epilogue", lambda _: wrong),
        is_named,
    )


def of_line(fault: Fault, line: str) -> bool:
    """Whether a fault is about a missing line: the fault names the path that the line wrote to."""
    written = re.match(r"(\w+)\.(\w+) = ", line)
    keys = [written[2]] if written else re.findall(r"'(\w+)':", line)
    return re.split(r"[. ]", fault.result.replace(" after the call", ""))[-1] in keys


def other_lines(epilogue: Trace) -> Iterator[tuple[str, str, str]]:
    """Each way to change one line of an epilogue: in words, the line, and the changed line."""
    names = [proxy.name for proxy in epilogue.inputs if isinstance(proxy, TensorProxy)]
    for line in map(text_of, epilogue.bound_symbols):
        head, equals, rest = line.partition("=")
        used = [word for word in re.findall(r"\w+", rest) if word in names]
        for word in re.finditer(r"\w+", rest):
            for result in names:
                if word[0] in names and result != word[0]:
                    yield "another result", line, head + equals + rest[: word.start()] + result + rest[word.end() :]
        for name, next_name in itertools.pairwise(used):
            if name != next_name:
                swapped = {name: next_name, next_name: name}
                yield "swapped", line, head + equals + re.sub(r"\w+", lambda w, s=swapped: s.get(w[0], w[0]), rest)
        for constant, replacement in CONSTANTS.items():
            if constant in rest:
                yield "another constant", line, head + equals + rest.replace(constant, replacement, 1)
        if equals and not line.startswith("result") and (line.startswith("fill(") or "." in head):
            yield "left out", line, ""
