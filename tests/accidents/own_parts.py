"""Accidents in users' recipes, transforms and executors that raise, exit or return nonsense."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tests.accidents.accident import Accident, World

HEAD = """
import sys
import torch
from dataclasses import dataclass
from thunder_core.recipe import Recipe, Transform
from thunder_core.backend.claiming.executor import Executor, OperatorExecutor

"""
RECIPE = HEAD + "class Mine(Recipe):\n    executors = ('torch',)\n    def {}\n        {}\n"
TRANSFORM = HEAD + (
    "@dataclass(frozen=True)\nclass Broken(Transform):\n    def {}\n        {}\n{}\n"
    "class Mine(Recipe):\n    executors = ('torch',)\n    def setup_transforms(self):\n        return (Broken(),)\n"
)
CALL = "    def __call__(self, trace):\n        return trace\n"
FUNCTION = HEAD + (
    "mine = OperatorExecutor('mine')\n@mine.implements(torch.nn.functional.silu)\n"
    "def fast_silu(input, inplace=False):\n    {}\n\nclass Mine(Recipe):\n    executors = (mine, 'torch')\n"
)
EXECUTOR = HEAD + (
    "class Own(Executor):\n    name = 'mine'\n    claims = 'nothing'\n{}\n    def {}\n        {}\n\n"
    "class Mine(Recipe):\n    executors = (Own(), 'torch')\n"
)
CLAIM = "    def claim(self, bsym):\n        return None\n"

FAILURES = {
    "raises": ("raise ValueError('no such thing')", "raised ValueError: no such thing"),
    "exits": ("sys.exit(0)", "would have ended the process: sys.exit(0)"),
    "asserts": ("assert not self", "raised AssertionError"),
}
METHODS_OF_RECIPES = (
    *("setup_transforms(self):", "setup_lookasides(self):", "setup_config(self):", "setup_executors(self):"),
    *("setup_operators(self):", "setup_requirements(self):", "validate(self, model):", "tolerance(self, dtype):"),
    "__init__(self, **options):",
)


def file_of(text: str) -> Callable[[World], None]:
    """Write the file of a recipe."""

    def arrange(world: World) -> None:
        world.path("mine.py").write_text(text)

    return arrange


def accident(name: str, text: str, code: str, says: str, options: str = "") -> Accident:
    """An optimization with a recipe from a user's file."""
    quick = "--seq 8 --validate-inputs 1 --no-benchmark"
    return Accident(name, f"optimize {{llama}} --recipe {{files}}/mine.py {quick} {options}", code, says, file_of(text))


def failing_recipes() -> Iterator[Accident]:
    """Recipes of which each method fails in each way."""
    for method in METHODS_OF_RECIPES:
        called = method.partition("(")[0]
        for way, (body, says) in FAILURES.items():
            told = f"the recipe Mine {says}"
            yield accident(f"recipe: {called} {way}", RECIPE.format(method, body), "TH0219", told)


def failing_parts() -> Iterator[Accident]:
    """Transforms and executors that fail in each way."""
    for way, (body, says) in FAILURES.items():
        text = TRANSFORM.format("__call__(self, trace):", body, "")
        yield accident(f"transform: {way}", text, "TH0219", f"the transform Broken {says}")
        text = TRANSFORM.format("prepare(self, model):", body, CALL)
        yield accident(f"transform: prepare {way}", text, "TH0219", f"the transform Broken {says}")
        text = EXECUTOR.format("", "claim(self, bsym):", body)
        yield accident(f"executor: claim {way}", text, "TH0219", f"the executor mine {says}")
        text = EXECUTOR.format(CLAIM, "missing(self):", body)
        yield accident(f"executor: missing {way}", text, "TH0219", f"the executor mine {says}")
        text = FUNCTION.format(body.replace("self", "inplace is False"))
        yield accident(f"executor: its function {way}", text, "TH0219", f"the executor mine {says}")


WRONG_RETURNS = (
    ("setup_transforms(self):", "None", "setup_transforms returns None"),
    ("setup_transforms(self):", "'DropDeadCode'", "setup_transforms returns 'DropDeadCode'"),
    ("setup_transforms(self):", "(1,)", "setup_transforms() has 1"),
    ("setup_transforms(self):", "(Transform,)", "has the class Transform"),
    ("setup_lookasides(self):", "[torch.relu]", "which is not an instance of Lookaside"),
    ("setup_lookasides(self):", "3", "setup_lookasides returns 3"),
    ("setup_config(self):", "None", "setup_config returns None"),
    ("setup_config(self):", "{'cash': 1}", "is not a setting of recipes"),
    ("setup_executors(self):", "'torch'", "setup_executors returns 'torch'"),
    ("setup_executors(self):", "(1.5,)", "setup_executors() has 1.5"),
    ("setup_operators(self):", "None", "setup_operators returns None"),
    ("tolerance(self, dtype):", "None", "returned None from tolerance, where a Tolerance is expected"),
    ("tolerance(self, dtype):", "1e-3", "returned 0.001 from tolerance"),
)
WRONG_TRACES = (
    ("None", "returned None from __call__, where a Trace is expected"),
    ("str(trace)", "from __call__, where a Trace is expected"),
    ("(trace, trace)", "from __call__, where a Trace is expected"),
    ("trace.having((), made_by='nothing')", "returned a trace that cannot run"),
    ("trace.having(reversed(trace.bound_symbols), made_by='me')", "returned a trace that cannot run"),
    ("trace.having((*trace.bound_symbols, *trace.bound_symbols), made_by='me')", "returned a trace that cannot run"),
)
WRONG_RESULTS = (
    ("None", "is of class NoneType, but a tensor in eager PyTorch"),
    ("'text'", "is of class str, but a tensor in eager PyTorch"),
    ("(input, input)", "is of class tuple, but a tensor in eager PyTorch"),
    ("input[..., :1]", "the executor mine computes a line wrongly"),
    ("torch.nn.functional.silu(input).double()", "has dtype torch.float64, but torch.float32 in eager PyTorch"),
    ("torch.nn.functional.silu(input).flatten()", "in eager PyTorch"),
    ("input", "the executor mine computes a line wrongly"),
    ("torch.nn.functional.silu(input) * float('nan')", "the executor mine computes a line wrongly"),
)
FILES = (
    ("", "defines 0 recipes instead of one"),
    ("class (", "cannot be loaded: SyntaxError"),
    ("import no_such_package_anywhere", "cannot be loaded: ModuleNotFoundError"),
    ("raise RuntimeError('at once')", "cannot be loaded: RuntimeError: at once"),
    ("import sys\nsys.exit()", "cannot be loaded: would have ended the process: sys.exit(None)"),
    ("import sys\nsys.exit('bye')", "cannot be loaded: would have ended the process: sys.exit('bye')"),
    ("quit(0)", "cannot be loaded: would have ended the process: sys.exit(0)"),
    ("raise GeneratorExit", "cannot be loaded: GeneratorExit"),
    (
        "from thunder_core.passes.recipe import Recipe\nclass A(Recipe): pass\nclass B(Recipe): pass",
        "defines 2 recipes",
    ),
    (
        "from thunder_core.passes.recipe import Recipe\nclass A(Recipe):\n    setup_transform = 1",
        "which this version of Thunder",
    ),
    (
        "from thunder_core.passes.recipe import Recipe\nclass A(Recipe):\n    executors = 'torch'",
        "executors is 'torch'",
    ),
)


def returning_parts() -> Iterator[Accident]:
    """Recipes whose methods return unusable values."""
    for number, (method, value, says) in enumerate(WRONG_RETURNS):
        text = RECIPE.format(method, f"return {value}")
        yield accident(f"recipe: returns {value} ({number})", text, "TH0219", says)
    for value, says in WRONG_TRACES:
        text = TRANSFORM.format("__call__(self, trace):", f"return {value}", "")
        yield accident(f"transform: returns {value}", text, "TH0219", says)
    for value in ("None", "'model'", "type(model)"):
        text = TRANSFORM.format("prepare(self, model):", f"return {value}", CALL)
        yield accident(f"transform: prepare returns {value}", text, "TH0219", "where a Module is expected")
    for value in ("'yes'", "True", "(bsym, bsym)"):
        text = EXECUTOR.format("", "claim(self, bsym):", f"return {value}")
        yield accident(f"executor: claim returns {value}", text, "TH0219", "where a BoundSymbol or None is expected")
    text = EXECUTOR.format(CLAIM, "missing(self):", "return 3")
    yield accident("executor: missing returns 3", text, "TH0219", "where a str or None is expected")
    for value, says in WRONG_RESULTS:
        yield accident(f"executor: its function returns {value}", FUNCTION.format(f"return {value}"), "TH0406", says)
    for text, says in FILES:
        yield accident(f"recipe's file: {text[-30:]!r}", text, "TH0219", says)


EXECUTOR_FILES = (
    ("", "defines no EXECUTOR that is an instance of Executor"),
    ("EXECUTOR = 3", "defines no EXECUTOR that is an instance of Executor"),
    (
        "from thunder_core.backend.claiming.executor import OperatorExecutor\nmine = OperatorExecutor('m')",
        "it has mine",
    ),
    ("class (", "cannot be loaded: SyntaxError"),
    ("1 / 0", "cannot be loaded: ZeroDivisionError"),
    ("import sys\nsys.exit(0)", "would have ended the process: sys.exit(0)"),
)


def files_of_executors() -> Iterator[Accident]:
    """Files that are passed to `--add-executor`."""
    quick = "--seq 8 --validate-inputs 1 --no-benchmark --without inductor"
    command = f"optimize {{llama}} {quick} --add-executor {{files}}/mine.py"
    for text, says in EXECUTOR_FILES:
        yield Accident(f"executor's file: {text[-30:]!r}", command, "TH0219", says, file_of(text))
    none = file_of("")
    yield Accident("executor's file: another name", f"{command}:mine", "TH0219", "defines no mine that", none)
    yield Accident("executor's file: none", command.replace("mine", "other"), "TH0202", "other.py does not exist", none)
    text = FUNCTION.partition("class Mine")[0].replace("mine =", "EXECUTOR = mine =").format("return None")
    yield Accident("executor's file: a wrong result", command, "TH0406", "is of class NoneType", file_of(text))
    text = FUNCTION.partition("class Mine")[0].format("return torch.nn.functional.silu(input)")
    yield Accident("executor's file: one that is right", f"{command}:mine", "", "Validation", file_of(text))


def neighbours() -> Iterator[Accident]:
    """Recipes that import neighbouring files."""

    def arrange(world: World) -> None:
        world.path("beside.py").write_text("def executors():\n    return ('torch',)\n")
        body = "import beside\nfrom thunder_core.passes.recipe import Recipe\nclass Mine(Recipe):\n    executors = {}\n"
        world.path("mine.py").write_text(body.format("beside.executors()"))
        world.path("bad.py").write_text(body.format("beside.no_such_thing()"))

    quick = "--seq 8 --validate-inputs 1 --no-benchmark"
    command = f"optimize {{llama}} {quick} --recipe {{files}}/mine.py"
    yield Accident("recipe's file: it imports its neighbour", command, "", "Validation", arrange)
    says = "has no attribute 'no_such_thing'"
    yield Accident("recipe's file: its neighbour lacks a name", command.replace("mine", "bad"), "TH0219", says, arrange)


def printing_parts() -> Iterator[Accident]:
    """Parts that print while JSON output is requested: their output goes to stderr."""
    text = HEAD + "print('hello')\n" + RECIPE.format("validate(self, model):", "print('hello'); raise ValueError('no')")
    yield accident("recipe: prints and raises, --json", text, "TH0219", "raised ValueError: no", "--json")
    body = "print('hello'); raise ValueError('no')"
    text = TRANSFORM.format("__call__(self, trace):", body, "")
    yield accident("transform: prints and raises, --json", text, "TH0219", "raised ValueError: no", "--json")
    yield accident("executor: prints and raises, --json", FUNCTION.format(body), "TH0219", "ValueError: no", "--json")


OWN_PARTS = (
    *failing_recipes(),
    *failing_parts(),
    *returning_parts(),
    *printing_parts(),
    *files_of_executors(),
    *neighbours(),
)
