"""Every kernel in every dtype compiles for an absent GPU, for exactly the arguments of its launches."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from filelock import FileLock

from tests.executors.triton.closeness import DTYPES
from tests.executors.triton.examples import EXAMPLES, empty_tensors, random_tensors
from thunder_core.foundation.errors import BadOption, Bug, EnvironmentLacks
from thunder_executors.triton import cubin as cubin_module
from thunder_executors.triton.cubin import Cubin, capability_of, compile_for, inconsistencies, launch_problems
from thunder_executors.triton.elf import architecture_of, local_memory, parameter_sizes, required_threads
from thunder_executors.triton.launch import INTERPRETED, Specialization
from thunder_executors.triton.operations import OPERATORS
from thunder_executors.triton.rms_norm import rms_norm

ROOT = Path(__file__).resolve().parents[3]
NAMES = [str(dtype).removeprefix("torch.") for dtype in DTYPES]
MOST_SHARED = 227 * 1024  # of a block on Hopper
MOST_SHARED_OF_AMPERE = 163 * 1024

pytestmark = pytest.mark.skipif(not INTERPRETED, reason="the GPU's own tests compile what they launch")


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    """A process without the interpreter, which would compile nothing."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join(map(str, (ROOT, ROOT / "executors", ROOT / "recipes")))
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, env=environment, cwd=ROOT)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of all compiled kernels, shared by the workers."""
    base = tmp_path_factory.getbasetemp()
    shared = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "cubins"
    with FileLock(f"{shared}.lock"):
        if not (shared / "all.json").exists():
            shared.mkdir(exist_ok=True)
            done = python("-m", "tests.executors.triton.compiling", "sm_90", str(shared), *NAMES)
            assert done.returncode == 0, done.stderr
    return shared


@pytest.fixture(scope="module")
def rows(folder: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((folder / "all.json").read_text(encoding="utf-8"))
    return found


@pytest.fixture(scope="module")
def cubins(folder: Path) -> list[Cubin]:
    files = [folder / f"{number}.json" for number in range(len(list(folder.glob("*.cubin"))))]
    return [
        Cubin.from_metadata(json.loads(file.read_text()), file.with_suffix(".cubin").read_bytes()) for file in files
    ]


def test_each_operation_has_examples() -> None:
    assert set(EXAMPLES) == set(OPERATORS)


@pytest.mark.slow
def test_each_operation_and_dtype_is_compiled(rows: list[dict[str, Any]]) -> None:
    assert {(row["operation"], row["dtype"]) for row in rows} == {(name, str(d)) for name in OPERATORS for d in DTYPES}


@pytest.mark.slow
def test_kernels_are_compiled_for_the_specializations_of_triton(rows: list[dict[str, Any]]) -> None:
    assert [row["ours"] for row in rows] == [row["triton"] for row in rows]


@pytest.mark.slow
def test_compiled_specializations_match_launches(cubins: list[Cubin]) -> None:
    """The specializations of real tensors in this process equal those of the fake tensors that were compiled for."""
    compiled = {cubin.specialization for cubin in cubins}
    for dtype in DTYPES:
        for name, examples in EXAMPLES.items():
            for arguments in examples(empty_tensors(dtype, "cpu")):
                assert {launch.specialization for launch in OPERATORS[name].launches(*arguments)} <= compiled


@pytest.mark.slow
def test_the_machine_code_is_whole(cubins: list[Cubin]) -> None:
    assert len(cubins) == len({cubin.specialization for cubin in cubins}) > 40
    for cubin in cubins:
        assert cubin.image.startswith(b"\x7fELF")
        assert architecture_of(cubin.image) == cubin.target == "sm_90"
        assert cubin.entry == cubin.specialization.kernel.partition(":")[2]
        assert required_threads(cubin.image, cubin.entry) == 32 * cubin.specialization.warps
        assert len(parameter_sizes(cubin.image, cubin.entry)) == len(cubin.specialization.types) + 2
        assert 0 <= cubin.shared <= MOST_SHARED
        assert cubin.compiler.startswith("triton 3.")


@pytest.mark.slow
def test_linear_layers_keep_their_sums_in_registers(cubins: list[Cubin]) -> None:
    kernels = [cubin for cubin in cubins if cubin.specialization.kernel.partition(":")[0].endswith("products.linear")]
    aligned = [cubin for cubin in kernels if "depth" in cubin.specialization.divisible]  # others are not compared
    assert len(aligned) > 30
    assert [cubin.specialization for cubin in aligned if local_memory(cubin.image)] == []


@pytest.mark.slow
def test_each_operation_is_compiled_for_ampere(tmp_path: Path) -> None:
    """A GPU of the architecture sm_80 has less shared memory, and converts no numbers to 8-bit floats."""
    done = python("-m", "tests.executors.triton.compiling", "sm_80", str(tmp_path), "bfloat16")
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "all.json").read_text(encoding="utf-8"))
    assert {row["operation"] for row in rows} == set(OPERATORS)
    assert [row["ours"] for row in rows] == [row["triton"] for row in rows]
    for file in tmp_path.glob("*.cubin"):
        cubin = Cubin.from_metadata(json.loads(file.with_suffix(".json").read_text()), file.read_bytes())
        assert architecture_of(cubin.image) == cubin.target == "sm_80"
        assert inconsistencies(cubin) == []
        assert cubin.shared <= MOST_SHARED_OF_AMPERE
        assert "*fp8e4nv" not in dict(cubin.specialization.types).values()


@pytest.mark.slow
def test_machine_code_holds_no_path_of_this_machine(cubins: list[Cubin]) -> None:
    assert not [cubin.entry for cubin in cubins if b".py" in cubin.image or str(ROOT).encode() in cubin.image]


@pytest.mark.slow
def test_machine_code_that_does_not_fit_its_launch_is_noticed(cubins: list[Cubin]) -> None:
    cubin = cubins[0]
    types, data = cubin.specialization.types, cubin.metadata()
    assert inconsistencies(cubin) == []
    for specialization in (
        {"types": types[:-1]},
        {"types": (*types[:-1], ("eps", "i64"))},
        {"warps": cubin.specialization.warps * 2},
    ):
        changed = {**data, "specialization": {**data["specialization"], **specialization}}
        assert inconsistencies(Cubin.from_metadata(changed, cubin.image))
    assert inconsistencies(Cubin.from_metadata({**data, "target": "sm_80"}, cubin.image))
    assert inconsistencies(Cubin.from_metadata({**data, "entry": "other"}, cubin.image))


def test_other_files_have_no_architecture() -> None:
    assert architecture_of(b"") is None
    assert architecture_of(b"\x7fELF" + bytes(100)) is None
    assert architecture_of(Path(sys.executable).resolve().read_bytes()) is None


def test_the_interpreter_compiles_nothing() -> None:
    (launch,) = rms_norm.launches(*next(EXAMPLES["rms_norm"](random_tensors(torch.float32, "cpu"))))
    with pytest.raises(EnvironmentLacks, match="interpreter"):
        compile_for(launch.specialization)


def test_kernel_of_another_class_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cubin_module, "INTERPRETED", False)
    (launch,) = rms_norm.launches(*next(EXAMPLES["rms_norm"](random_tensors(torch.float32, "cpu"))))
    with pytest.raises(Bug, match="an object of class InterpretedFunction"):
        compile_for(launch.specialization)


def test_launch_problems_name_options_and_the_architecture() -> None:
    (launch,) = rms_norm.launches(*next(EXAMPLES["rms_norm"](random_tensors(torch.float32, "cpu"))))
    cubin = Cubin(launch.specialization, b"", "kernel", 0, "sm_90", "triton")
    metadata = SimpleNamespace(num_ctas=2, launch_pdl=False)
    assert launch_problems(cubin, metadata) == ["num_ctas is 2", "its architecture is None, not sm_90"]


@pytest.mark.parametrize("target", ["sm_90a", "sm_100f"])
def test_variant_of_an_architecture_is_refused(target: str) -> None:
    with pytest.raises(BadOption, match="is not supported") as refused:
        capability_of(target)
    assert refused.value.fix == f"use {target[:-1]}"


@pytest.mark.parametrize("target", ["", "sm_", "90", "gfx90a", "sm_9x", "sm_-1"])
def test_a_target_is_named_for_its_architecture(target: str) -> None:
    with pytest.raises(BadOption, match="architecture"):
        capability_of(target)


@pytest.mark.slow
def test_machine_code_survives_a_round_trip_through_metadata(cubins: list[Cubin]) -> None:
    for cubin in cubins:
        data = json.loads(json.dumps(cubin.metadata()))
        assert Cubin.from_metadata(data, cubin.image) == cubin
        assert hash(Specialization.from_dict(data["specialization"])) == hash(cubin.specialization)
