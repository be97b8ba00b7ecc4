"""A trace as a Python file that runs: constants are resolved, inputs come from the model, and outputs are printed."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence

from thunder_core.foundation.errors import CannotReplay
from thunder_core.tracing.ir.layout import INDENT, import_line, layout
from thunder_core.tracing.ir.listing import Listing
from thunder_core.workflow.artifact.format.program_facts import ConstantFacts
from thunder_core.workflow.inspect.subject import InspectedStage, Subject

ROOTS = frozenset({"module", "args", "kwargs"})
REPLAY = "thunder_core.workflow.artifact.replay"
ARTIFACT = "ARTIFACT"
REGION_PARAMETER = "given"  # the list parameter of a region
BACKWARD_PARAMETER = "saved"  # the list parameter of a backward, which empties it
AFTER_FORWARD = ("tail", "backward")


def runnable(subject: Subject, stage: InspectedStage, listing: Listing, *, level: str = "torch") -> str:
    """Return a Python file that defines a trace's function and calls it with the arguments that the model passes.

    If `listing` is only a part of the stage, the function is defined and not called. Raises `CannotReplay` if a
    constant is only available from an artifact and there is no artifact.
    """
    head = [f"# {stage.title}, of {subject.name}", "# Run this file, or import the function and call it yourself."]
    is_complete = listing.lines == stage.read().lines
    main = list(main_block(subject, stage, listing)) if is_complete else []
    text = layout(listing, level=level, head=head, preamble=list(preamble(subject, stage, listing)))
    block = ["", "", 'if __name__ == "__main__":', *(INDENT + line if line else "" for line in main)] if main else []
    return "\n".join([text.rstrip("\n"), *block, ""])


# ---- constants ------------------------------------------------------------------------------------------------


def preamble(subject: Subject, stage: InspectedStage, listing: Listing) -> Iterator[str]:
    """Yield the lines that define the trace's constants."""
    facts = {name: stage.facts.constants[name] for name in listing.constants if is_used(name, listing)}
    lines = [line for name, fact in facts.items() for line in DEFINITION_WRITERS[fact.kind](subject, stage, name, fact)]
    imports = {line for line in lines if line.startswith(("import ", "from "))}
    yield from sorted(imports.difference(map(import_line, listing.imports)))
    if subject.folder is not None:
        yield ""
        yield f"{ARTIFACT} = {str(subject.folder)!r}"
    yield from (["", *(line for line in lines if line not in imports)] if len(lines) > len(imports) else [])
    yield from regions(listing)


def regions(listing: Listing) -> Iterator[str]:
    """Yield a function for each region that a trace calls, with the lines that its machine code replaces."""
    first = {line.symbol: line for line in reversed(listing.lines) if line.parts and line.symbol in listing.constants}
    for name, line in first.items():
        results, names = ", ".join(value.name for value in line.makes), ", ".join(line.reads)
        listed = f"{name}([" in line.text  # the region takes one list, which the call writes out
        yield from ("", "", f"def {name}({REGION_PARAMETER if listed else names}):")
        yield from ([f"{INDENT}[{names}] = {REGION_PARAMETER}"] if listed else [])
        yield from (INDENT + part.text for part in line.parts)
        yield f"{INDENT}return {results}"


def is_used(name: str, listing: Listing) -> bool:
    """Whether a constant's name is in the text of a line, at any level."""
    texts = (part.text for line in listing.lines for part in (line, *line.parts))
    word = re.compile(rf"\b{re.escape(name)}\b")  # a longer name that contains this name does not match
    return any(word.search(text) for text in (listing.returns, *texts))


def _literal(subject: Subject, stage: InspectedStage, name: str, facts: ConstantFacts) -> list[str]:
    return ["import torch", f"{name} = {facts.text}"]


def _import(subject: Subject, stage: InspectedStage, name: str, facts: ConstantFacts) -> list[str]:
    module, _, qualname = facts.text.partition(":")
    return [f"import {module}", f"{name} = {module}.{qualname}".rstrip(".")]


def _tensor(subject: Subject, stage: InspectedStage, name: str, facts: ConstantFacts) -> list[str]:
    if subject.folder is not None:
        return _from_artifact(subject, stage, name)
    if facts.text not in subject.tensors:
        raise CannotReplay(
            f"the trace contains the tensor `{name}`, which is too large for a Python file",
            fix="save an artifact with `thunder optimize` and inspect it: the file then reads the tensor from there",
        )
    return ["import torch", f"{name} = {subject.tensors[facts.text]}"]


def _subject_path(subject: Subject, stage: InspectedStage, name: str, facts: ConstantFacts) -> list[str]:
    return [f"{name} = None  # {facts.text} of the model, set below"]


def _lost_names(subject: Subject, stage: InspectedStage, name: str, facts: ConstantFacts) -> list[str]:
    raise CannotReplay(
        f"the trace refers to `{name}` ({facts.text}), which has no name in another process",
        fix="inspect the stage that runs, or define the object at the top level of an importable module",
    )


def _region(subject: Subject, stage: InspectedStage, name: str, facts: ConstantFacts) -> list[str]:
    return []  # `regions` defines the function, with lines that people can read and change


def _from_artifact(subject: Subject, stage: InspectedStage, name: str) -> list[str]:
    constant_arguments = f"{ARTIFACT}, {subject.program}, {stage.facts.trace!r}, {stage.facts.number}, {name!r}"
    return [f"from {REPLAY} import constant_of", f"{name} = constant_of({constant_arguments})"]


DEFINITION_WRITERS = {
    "literal": _literal,
    "import": _import,
    "tensor": _tensor,
    "path": _subject_path,
    "lost": _lost_names,
    "region": _region,
}


# ---- running --------------------------------------------------------------------------------------------------


def main_block(subject: Subject, stage: InspectedStage, listing: Listing) -> Iterator[str]:
    """Yield the lines that run if the file is run as a script."""
    problem = obstacle(subject, listing)
    if problem:
        yield f"raise SystemExit({problem!r})"
        return
    yield "import torch"
    yield from model_and_inputs(subject)
    constants = stage.facts.constants
    paths = [name for name, fact in constants.items() if fact.kind == "path" and name in listing.constants]
    if paths:
        yield f"from {REPLAY} import follow"
        yield ""
    for name in paths:
        yield f"{name} = follow(module, {constants[name].steps!r})"
    yield from CALLS[listing.name](subject, stage, listing)


def obstacle(subject: Subject, listing: Listing) -> str:
    """Return the reason why a separate file cannot call a trace; empty if it can."""
    if not subject.source:
        return "the origin of the model is unknown: import the function and call it yourself"
    if not subject.example and not subject.random_inputs:
        return "there are no example inputs: import the function and call it yourself"
    if listing.name in AFTER_FORWARD and subject.folder is None:
        return f"a {listing.name} takes values from the computation: import both functions and call them yourself"
    origins = [value.origin for value in listing.inputs] if listing.name == "computation" else []
    hard = [origin for origin in origins if not is_expression(origin)]
    return f"these values cannot be reached from the model and its inputs: {', '.join(hard)}" if hard else ""


def is_expression(origin: str) -> bool:
    """Whether an origin is a Python expression of the model and its arguments."""
    try:
        tree = ast.parse(origin, mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} <= ROOTS and bool(origin)


def model_and_inputs(subject: Subject) -> Iterator[str]:
    """Yield the lines that define `module`, `args` and `kwargs`."""
    makes_inputs = not subject.example
    if makes_inputs:
        yield "from thunder_core.workflow.models.inputs.inputs import example_inputs"
    yield "from thunder_core.workflow.models.loading.load import rebuild_model"
    if not makes_inputs:
        yield f"from {REPLAY} import example_of"
    yield ""
    first, *rest = literal_lines(subject.source)
    yield from (f"source = {first}", *rest)
    yield f"loaded = rebuild_model(source{', '.join(['', *options_of(subject)])})"
    sizes = ", ".join(f"{name}={size}" for name, size in subject.random_inputs.items())
    labels = ", labels=True" if subject.train else ""
    inputs = f"example_inputs(loaded, {sizes}{labels})" if makes_inputs else f"example_of({ARTIFACT})"
    yield f"module, args, kwargs = loaded.model, (), {inputs}"


def options_of(subject: Subject) -> Iterator[str]:
    """Yield the keyword arguments for rebuilding a subject's model."""
    if subject.train:
        yield "train=True"
    if subject.has_code:
        yield "trust_remote_code=True"


def literal_lines(value: Mapping[str, object], indent: str = INDENT) -> Iterator[str]:
    """Yield plain data as a Python literal with one entry on each line."""
    yield "{"
    for key, item in value.items():
        if isinstance(item, Mapping) and item:
            first, *rest = literal_lines(item, indent)
            yield f"{indent}{key!r}: {first}"
            yield from (f"{indent}{line}" for line in rest[:-1])
            yield f"{indent}{rest[-1]},"
        else:
            yield f"{indent}{key!r}: {item!r},"
    yield "}"


def _call_computation(subject: Subject, stage: InspectedStage, listing: Listing) -> Iterator[str]:
    yield "with torch.no_grad():"
    yield f"{INDENT}outputs = computation("
    yield from (f"{INDENT}{INDENT}{value.origin}," for value in listing.inputs)
    yield f"{INDENT})"
    yield from _print_outputs(result_names(listing))


def _call_after_forward(subject: Subject, stage: InspectedStage, listing: Listing) -> Iterator[str]:
    """Yield the call of a tail or a backward, which takes values from the computation."""
    yield f"from {REPLAY} import arguments_of"
    yield ""
    program_arguments = f"{ARTIFACT}, {subject.program}, {listing.name!r}, {stage.facts.has_cotangent!r}"
    yield f"given = arguments_of({program_arguments}, module, args, kwargs)"
    yield "with torch.no_grad():"
    packed = [value.name for value in listing.inputs] == [BACKWARD_PARAMETER]
    yield f"{INDENT}outputs = {listing.name}({'given' if packed else '*given'})"
    origins = {value.name: value.origin for value in listing.results}
    yield from _print_outputs([origins.get(name) or name for name in result_names(listing)])


def _print_outputs(names: Sequence[str]) -> Iterator[str]:
    yield f"names = {tuple(names)!r}"
    yield "for name, output in zip(names, outputs, strict=True):"
    yield f"{INDENT}if output is None:"
    yield f"{INDENT}{INDENT}continue"
    yield f'{INDENT}first = ", ".join(f"{{value:.6g}}" for value in output.flatten()[:4].tolist())'
    yield f'{INDENT}total = f"sum {{output.sum().item():.6g}}"'
    yield f'{INDENT}print(f"{{name}}: {{output.dtype}} {{list(output.shape)}}, {{total}}, first {{first}}")'


def result_names(listing: Listing) -> list[str]:
    """Return the names of a trace's results, in order."""
    tree = ast.parse(listing.returns, mode="eval").body
    return [ast.unparse(result) for result in tree.elts] if isinstance(tree, ast.Tuple) else []


def _call_prologue(subject: Subject, stage: InspectedStage, listing: Listing) -> Iterator[str]:
    yield f"with torch.set_grad_enabled({subject.grad}):"
    yield f"{INDENT}inputs, outside = prologue(module, args, kwargs)"
    yield 'print(f"every guard holds; the computation gets {len(inputs)} tensors, the epilogue {len(outside)} objects")'


def _call_epilogue(subject: Subject, stage: InspectedStage, listing: Listing) -> Iterator[str]:
    if subject.folder is not None:
        yield f"from {REPLAY} import program_of"
        yield ""
        yield f"program = program_of({ARTIFACT}, {subject.program}, module)"
    else:
        yield "import thunder_core as thunder"
        yield ""
        yield "compiled = thunder.jit(module)"
    yield f"with torch.set_grad_enabled({subject.grad}):"
    if subject.folder is None:
        yield f"{INDENT}compiled(*args, **kwargs)"
        yield f"{INDENT}program = thunder.last_program(compiled)"
    yield f"{INDENT}inputs, outside = program.prepare(module, args, kwargs)"
    yield f"{INDENT}print(type(epilogue(*outside, *program.compute(inputs))))"


CALLS = {
    "prologue": _call_prologue,
    "computation": _call_computation,
    "tail": _call_after_forward,
    "backward": _call_after_forward,
    "epilogue": _call_epilogue,
}
