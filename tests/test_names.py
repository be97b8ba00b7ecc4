"""Names say what they hold: loop variables are nouns, tests name cases, and functions are verb phrases or nouns."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.readme import ROOT

pytestmark = pytest.mark.source
SOURCES = ("thunder_core", "thunder_cli", "executors", "recipes", "benchmarks", "docs")
VAGUE = {"one", "other"}
MAX_LINES = 2  # of a comprehension that may use a vague name
PRONOUN = re.compile(r"test_(it|its|they|them|their|this|that|these|those|he|she)(_|$)")
PARTICIPLE = re.compile(
    r"_*(\w*[a-z]ed|built|made|found|held|kept|shown|known|bound|sent|lost|drawn|given|taken|written|chosen|hidden)"
)
# Verbs and nouns that end like a participle.
OTHER_WORDS = {"embed", "exceed", "feed", "need", "seed", "_seed", "_speed", "speed"}
# Participles that stay: `compiled` is the function that the user gets, and the others are printed in traces.
KEPT = {"compiled", "captured", "gated", "replaced"}


def trees(*folders: str) -> Iterator[tuple[str, ast.Module]]:
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield str(path.relative_to(ROOT)), ast.parse(Path(path).read_text(encoding="utf-8"))


def targets_of(node: ast.AST) -> list[ast.expr]:
    """The loop variables of a loop, or of a comprehension with more than `MAX_LINES` lines."""
    if isinstance(node, ast.For | ast.AsyncFor):
        return [node.target]
    if not isinstance(node, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
        return []
    is_long = (node.end_lineno or node.lineno) - node.lineno >= MAX_LINES
    return [generator.target for generator in node.generators] if is_long else []


def has_vague_variable(node: ast.AST) -> bool:
    return any(
        isinstance(part, ast.Name) and part.id in VAGUE for target in targets_of(node) for part in ast.walk(target)
    )


def is_participle(name: str) -> bool:
    return "_" not in name.lstrip("_") and PARTICIPLE.fullmatch(name) is not None and name not in OTHER_WORDS | KEPT


def is_attribute(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether a function is read like an attribute: a property."""
    return any("property" in ast.unparse(decorator) for decorator in node.decorator_list)


def test_patterns_find_the_names_that_they_are_for() -> None:
    loop, comprehension = ast.parse("for one in x: pass").body[0], ast.parse("[one for one in x]").body[0]
    assert has_vague_variable(loop)
    assert not any(map(has_vague_variable, ast.walk(comprehension)))
    assert any(map(has_vague_variable, ast.walk(ast.parse("[\n a\n for a, (other, _) in x\n]"))))
    assert PRONOUN.match("test_they_are_equal") and not PRONOUN.match("test_items_are_equal")
    assert is_participle("printed") and is_participle("_built")
    assert not is_participle("print_trace") and not is_participle("as_printed") and not is_participle("seed")


@pytest.mark.parametrize("folder", (*SOURCES, "tests"))
def test_loop_variables_are_nouns(folder: str) -> None:
    lines = [
        f"{file}:{node.lineno}"
        for file, tree in trees(folder)
        for node in ast.walk(tree)
        if isinstance(node, ast.stmt | ast.expr) and has_vague_variable(node)
    ]
    assert lines == []


def test_names_of_tests_begin_with_no_pronoun() -> None:
    names = [
        f"{file}: {node.name}"
        for file, tree in trees("tests")
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and PRONOUN.match(node.name)
    ]
    assert names == []


def test_functions_are_not_named_by_participles() -> None:
    names = [
        f"{file}:{node.lineno}: {node.name}"
        for file, tree in trees(*SOURCES)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and is_participle(node.name)
        and not is_attribute(node)
    ]
    assert names == []
