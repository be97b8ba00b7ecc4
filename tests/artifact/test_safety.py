"""The source tree has no code that runs code from data."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.source

ROOT = Path(__file__).parents[2]
PACKAGES = ("thunder_core", "thunder_cli", "executors", "recipes", "benchmarks")
MODULES = {"pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}
CALLS = {"torch.load", "torch.save", "torch.jit.load", "torch.package", "torch.serialization", "numpy.load", "np.load"}
LAST_NAMES = {name.rpartition(".")[2] for name in CALLS}


# Ranks of one command exchange objects as the object collectives of PyTorch do. No file is read.
BETWEEN_RANKS = {"thunder_core/workflow/pipeline/ranks/packing.py": ["torch.save", "torch.load"]}


@functools.cache
def sources() -> list[tuple[Path, ast.Module]]:
    paths = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    return [(path, ast.parse(path.read_text(encoding="utf-8"))) for path in paths]


def offences(tree: ast.Module) -> Iterator[str]:
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
    harmless = {id(node.func) for node in calls if refuses_pickles(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.partition(".")[0] in MODULES)
        elif isinstance(node, ast.ImportFrom) and node.module:
            if node.module.partition(".")[0] in MODULES:
                yield node.module
            yield from (name for alias in node.names if (name := f"{node.module}.{alias.name}") in CALLS)
        elif isinstance(node, ast.Attribute) and node.attr in LAST_NAMES and id(node) not in harmless:
            yield from CALLS & {ast.unparse(node)}


def refuses_pickles(call: ast.Call) -> bool:
    """Whether a call explicitly disables unpickling, like the argument of numpy's array reader."""
    if not isinstance(call.func, ast.Attribute) or call.func.attr != "load":
        return False
    arguments = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
    return ast.unparse(call.func) in ("np.load", "numpy.load") and arguments.get("allow_pickle") == "False"


def test_the_search_finds_known_examples():
    tree = ast.parse("import pickle\nfrom torch import load\nimport torch\ntorch.load('x')")
    assert list(offences(tree)) == ["pickle", "torch.load", "torch.load"]
    reads = ast.parse("np.load('x')\nnp.load('x', allow_pickle=True)\nnp.load('x', allow_pickle=False)\nuse(np.load)")
    assert list(offences(reads)) == ["np.load"] * 3


def test_nothing_is_ever_unpickled():
    found = {str(path.relative_to(ROOT)): list(offences(tree)) for path, tree in sources()}
    assert len(found) > 50
    assert {path: names for path, names in found.items() if names} == BETWEEN_RANKS


def test_eval_is_unused_and_exec_runs_printed_source_and_init_methods_alone():
    found = [
        (str(path.relative_to(ROOT)), node.func.id)
        for path, tree in sources()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("eval", "exec")
    ]
    assert found == [
        (
            "thunder_core/foundation/quick_objects.py",
            "exec",
        ),  # the `__init__` of a dataclass, from the names of its fields
        # printed source, or source that was verified when it was read
        ("thunder_core/tracing/ir/source_lines.py", "exec"),
    ]
