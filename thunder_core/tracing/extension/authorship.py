"""Create errors that name the code outside Thunder, such as a user's recipe, in which an error was raised."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from thunder_core.foundation import package, plugins
from thunder_core.foundation.errors import BadModelFolder, BadRecipe, SourceLine, ThunderError
from thunder_core.foundation.errors.tree import message_line
from thunder_core.foundation.storage.installed import installers_folders

THUNDER_PACKAGES = frozenset({"thunder_core", "thunder_executors", "thunder_recipes", "thunder_cli"})
MODEL_CODE_PACKAGE = "transformers_modules"  # the package in which transformers stores the code of model repositories
KINDS = ("Recipe", "Transform", "Executor", "Plugin")
FIX_OF_OTHER_CODE = "correct that code, which is not part of Thunder; --debug shows the traceback"


def is_ours(part: object) -> bool:
    """Whether a part of a recipe, or a function, belongs to Thunder."""
    owner = part if callable(part) and hasattr(part, "__module__") else type(part)
    return package.package_of(owner.__module__) in THUNDER_PACKAGES


def authors_error(error: BaseException) -> ThunderError | None:
    """Return the error for an exception of code outside Thunder, from its traceback; None without such code."""
    frames = [(frame, line) for frame, line in frames_of(error) if is_foreign_frame(frame)]
    if not frames:
        return None
    frame, line = frames[-1]
    where = SourceLine(frame.f_code.co_filename, line, frame.f_code.co_qualname)
    what = f"{title_of([each for each, _ in frames])} {describe_failure(error)}"
    kind = BadModelFolder if is_model_code(frame) else BadRecipe
    return kind(what, fix=FIX_OF_OTHER_CODE, where=where)


def bad_return(part: object, method: str, value: object, expected_type: str) -> BadRecipe:
    """Return the error for a method of a part that returned an unusable value."""
    return BadRecipe(
        f"the {kind_of(part)} {type(part).__name__} returned {value!r:.80} from {method}, where {expected_type} is "
        "expected",
        fix=f"return {expected_type}",
        where=line_in_class(type(part), method),
    )


def line_in_class(kind: type, method: str) -> SourceLine | None:
    """Return the line of a method of a user's class.

    If Thunder defines the method, return the line of the first function that the class defines; None without one.
    """
    functions = [getattr(kind, method, None), *vars(kind).values()]
    lines = ((function, line_of(function)) for function in functions)
    return next((line for function, line in lines if line is not None and not is_ours(function)), None)


def line_of(function: object) -> SourceLine | None:
    """Return the line on which a function is defined; None if it has no source."""
    code = getattr(inspect.unwrap(function) if callable(function) else function, "__code__", None)
    return SourceLine(code.co_filename, code.co_firstlineno, code.co_qualname) if isinstance(code, CodeType) else None


def describe_failure(error: BaseException) -> str:
    """Return a clause that describes an error of code outside Thunder: "raised ValueError: ..."."""
    if isinstance(error, SystemExit):
        return f"would have ended the process: sys.exit({error.code!r:.80})"
    return f"raised {type(error).__name__}: {message_line(error)}"


def title_of(frames: list[FrameType]) -> str:
    """Return the name of the code that failed for a message: code of a model, a part of a recipe, or a file.

    `frames` begin with the outermost frame. The named part is the part whose method runs in the innermost such frame.
    """
    if is_model_code(frames[-1]):
        return "the model's own code"
    for frame in reversed(frames):
        owner = frame.f_locals.get("self", frame.f_locals.get("cls"))
        if owner is not None and (kind := kind_of(owner)) != "part":
            return f"the {kind} {name_of(owner)}"
    file = Path(frames[-1].f_code.co_filename).name
    executors = [value for value in globals_of_frame(frames[-1]) if kind_of(value) == "executor"]
    if frames[-1].f_code.co_name == "<module>" or not executors:
        return f"the file {file}"
    return f"the executor {name_of(executors[0])}"


def name_of(part: object) -> str:
    """Return the name of a part: an executor's own name, or the name of the class."""
    if isinstance(part, type):
        return part.__name__
    stored = getattr(part, "__dict__", {})
    named = stored.get("name", vars(type(part)).get("name")) if kind_of(part) == "executor" else None
    return named if isinstance(named, str) else type(part).__name__


def globals_of_frame(frame: FrameType) -> Iterator[object]:
    """Yield the values of the globals of a frame's module, except classes."""
    return (value for value in list(frame.f_globals.values()) if not isinstance(value, type))


def kind_of(part: object) -> str:
    """Return `recipe`, `transform`, `executor` or `plugin` for an instance of such a class, and `part` for others."""
    classes = type.mro(part if isinstance(part, type) else type(part))
    names = {kind.__name__ for kind in classes if kind.__module__.partition(".")[0] in THUNDER_PACKAGES}
    return next((kind.lower() for kind in KINDS if kind in names), "part")


def frames_of(error: BaseException) -> Iterator[tuple[FrameType, int]]:
    """Yield the frames that an error passed through with their lines, outermost first."""
    entry = error.__traceback__
    while entry is not None:
        yield entry.tb_frame, entry.tb_lineno
        entry = entry.tb_next


def is_model_code(frame: FrameType) -> bool:
    """Whether a frame runs code of a model repository."""
    return str(frame.f_globals.get("__name__", "")).partition(".")[0] == MODEL_CODE_PACKAGE


def is_foreign_frame(frame: FrameType) -> bool:
    """Whether a frame runs code outside Thunder and libraries, on which a user's error may be blamed.

    This is code of a model repository or of a plug-in, a file that Thunder has loaded (such as recipe.py) or another
    file in its folder, or a method of a recipe, a transform or an executor.
    """
    top = str(frame.f_globals.get("__name__", "")).partition(".")[0]
    file = frame.f_code.co_filename
    if top in THUNDER_PACKAGES or file.startswith("<"):
        return False
    if top == MODEL_CODE_PACKAGE or top in plugins.packages():
        return True
    is_part = kind_of(frame.f_locals.get("self")) != "part"
    return not is_library(file) and (is_part or any(map(Path(file).is_relative_to, plugins.file_folders())))


@cache
def is_library(file: str) -> bool:
    """Whether a file belongs to Python's standard library, to an installed package, or to Thunder."""
    path = Path(file).resolve()
    return any(path.is_relative_to(folder) for folder in library_folders())


@cache
def library_folders() -> tuple[Path, ...]:
    """Return the folders of Python's standard library, of installed packages, and of Thunder."""
    return tuple(Path(folder).resolve() for folder in (*installers_folders(), package.FOLDER))


def call_part(part: object, method: str, return_type: type | tuple[type, ...], *args: object) -> Any:
    """Call a method of a part and return the result; raise `BadRecipe` for a result of another type."""
    function: Callable[..., Any] = getattr(part, method)
    return require_return_type(part, method, function(*args), return_type)


def with_article(name: str) -> str:
    """Return a name with the indefinite article: "an int"."""
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


def require_return_type(part: object, method: str, value: object, return_type: type | tuple[type, ...]) -> Any:
    """Return a value that a method of a part returned; raise `BadRecipe` if it has another type than `return_type`."""
    if isinstance(value, return_type):
        return value
    kinds = return_type if isinstance(return_type, tuple) else (return_type,)
    words = " or ".join("None" if kind is type(None) else with_article(kind.__name__) for kind in kinds)
    raise bad_return(part, method, value, words)
