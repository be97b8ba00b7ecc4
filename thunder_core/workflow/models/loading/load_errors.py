"""Convert errors that libraries raise when they load a model into Thunder's errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError

from thunder_core.foundation import plugins
from thunder_core.foundation.errors import BadModelFolder, OutOfMemory, PackageMissing
from thunder_core.workflow.models.memory.free_memory import is_out_of_memory

CAUSES = (
    *(MemoryError, OSError, ValueError, TypeError, LookupError, AttributeError, RuntimeError, ArithmeticError),
    AssertionError,
)

FIX_SMALLER = "use a smaller dtype (--dtype bfloat16), another device, or a machine with more memory"
FIX_FOLDER = "correct the model's folder, or download or save it again with this version of transformers"


@contextmanager
def loading_errors(path: Path | str, verdict: str) -> Iterator[None]:
    """Convert errors in the block into `BadModelFolder`, `PackageMissing` or `OutOfMemory`, with the path."""
    try:
        yield
    except ImportError as error:
        raise PackageMissing(
            f"{path} needs a package: {_first_line(error)}", fix="install the package and try again"
        ) from error
    except (*CAUSES, StrictDataclassError, SafetensorError) as error:
        if is_out_of_memory(error):
            raise OutOfMemory(f"{path} does not fit into memory: {_first_line(error)}", fix=FIX_SMALLER) from error
        raise BadModelFolder(f"{path} {verdict}: {_first_line(error)}", fix=FIX_FOLDER) from error


def require_package(subject: str, package: str) -> None:
    """Raise `PackageMissing` if a package is not installed; `subject` says what the model is."""
    if not plugins.is_installed(package):
        raise PackageMissing(f"{subject}, which needs the package {package}", fix=f"pip install {package}")


@contextmanager
def library_import(path: Path | str, package: str) -> Iterator[None]:
    """Convert any error of importing a library that a model needs into `PackageMissing`.

    An import may raise any error, for example if the library does not support the versions of other packages.
    """
    try:
        yield
    except Exception as error:
        raise PackageMissing(
            f"{path} needs the package {package}, and importing it raises {type(error).__name__}: {_first_line(error)}",
            fix=f"install a version of {package} that fits the other packages: pip install --upgrade {package}",
        ) from error


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:2]) if lines else type(error).__name__
