"""A small artifact with all types of files (weights, a region, a library) whose code writes a file when it runs."""

from __future__ import annotations

import shlex
import subprocess
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

import thunder_core as thunder
from thunder_core.backend.fusion.fuse import Fused, FusionExecutor, Refusal
from thunder_core.backend.fusion.machine_code import MODULE, MachineCode
from thunder_core.backend.fusion.region import Region
from thunder_core.tracing.ir.symbol import BoundSymbol

VARIABLE = "THUNDER_TEST_MARK"  # the variable with the path of the written file; without it nothing is written
LIBRARY = """
#include <Python.h>
#include <stdio.h>
#include <stdlib.h>
static void mark(const char* word) {
    FILE* file = getenv("%(variable)s") ? fopen(getenv("%(variable)s"), "a") : NULL;
    if (file) { fputs(word, file); fclose(file); }
}
__attribute__((constructor)) static void loaded(void) { mark("library "); }
static PyObject* note(PyObject* self, PyObject* none) { mark("region "); Py_RETURN_NONE; }
static PyMethodDef methods[] = { {"note", note, METH_NOARGS, NULL}, {NULL, NULL, 0, NULL} };
static PyModuleDef definition = { PyModuleDef_HEAD_INIT, "%(module)s", NULL, -1, methods };
PyMODINIT_FUNC PyInit_%(module)s(void) { return PyModule_Create(&definition); }
"""
TEXT = """note()

def region(x):
    return x.tanh() * {scale}
"""


def library(folder: Path) -> bytes:
    """A shared object that writes a mark when it is loaded, and has a function that writes another mark."""
    source, target = folder / "marks.c", folder / "marks.so"
    source.write_text(LIBRARY % {"variable": VARIABLE, "module": MODULE})
    compiler = shlex.split(sysconfig.get_config_var("CC") or "cc")[0]
    include = sysconfig.get_path("include")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", f"-I{include}", source, "-o", target], check=True)
    return target.read_bytes()


@dataclass
class Marks(FusionExecutor):
    """An executor that claims `x.tanh() * scale` and runs code that writes a mark."""

    library: bytes
    scale: float
    instructions: tuple[str, ...] = ()
    takes: bool = True
    name: str = "marks"

    @property
    def claims(self) -> str:
        return "tanh, mul"

    def fuses(self, bsym: BoundSymbol) -> bool:
        return self.takes and bsym.symbol.name.rpartition(".")[2] in ("tanh", "mul", "__mul__")

    def compile(self, regions: Sequence[Region]) -> Sequence[Fused | Refusal]:
        text = TEXT.format(scale=self.scale)
        return [Fused(MachineCode(text, self.library, self.instructions).function) for _ in regions]


class Scaled(torch.nn.Module):
    """A linear layer followed by the expression that the executor claims."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        torch.manual_seed(round(scale))
        self.scale = scale
        self.inner = torch.nn.Linear(4, 4)
        self.register_buffer("table", torch.arange(4.0), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.inner(x).tanh() * self.scale + self.table)[:, : round(self.scale)]


X = torch.linspace(-1, 1, 12).reshape(3, 4)


def artifact_of(scale: float, library: bytes, folder: Path, needs: tuple[str, ...] = ()) -> Path:
    """Save an artifact: program 0 is for inference with weights and a region, program 1 for training without."""
    model, marks = Scaled(scale), Marks(library, scale, needs, takes=False)
    compiled = thunder.jit(model, executors=(marks, "torch"))
    compiled(X)
    marks.takes = True
    with torch.no_grad():
        torch.testing.assert_close(compiled(X), model(X))
    return thunder.save(compiled, folder, example={"x": X * scale}, include_weights=True)
