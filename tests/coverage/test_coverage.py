"""PyTorch's databases of operators and modules under `jit`: a fixed part, and proof that the harness can fail."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch

from tests.coverage import symbolic_page, vmapped_page
from tests.coverage.finding import Finding
from tests.coverage.known import disagreements, read_known_reasons
from tests.coverage.outcome import Outcome, difference
from tests.coverage.page import PAGE, failing
from tests.processes import run_python

ROOT = Path(__file__).parents[2]

# One entry of each kind: elementwise, reductions, views, indexing, random numbers, several results, shapes that
# depend on values, arguments that are lists, factories, losses, attention, convolutions, complex numbers, layouts.
SUBSET = (
    *(
        "add",
        "atan2",
        "where",
        "clamp",
        "__rdiv__",
        "pow",
        "sum",
        "amax",
        "cumsum",
        "topk",
        "transpose",
        "split",
        "narrow",
    ),
    *("as_strided_copy", "tensor_split", "__getitem__", "gather", "index_put", "nonzero", "unique", "item", "equal"),
    *(
        "bernoulli",
        "normal.in_place",
        "nn.functional.dropout",
        "empty_like",
        "linspace",
        "matmul",
        "einsum",
        "linalg.svd",
    ),
    *("cat", "view_as_complex", "conj", "to_sparse", "sparse.sampled_addmm", "nn.functional.conv1d", "addbmm"),
    *("nn.functional.layer_norm", "nn.functional.cross_entropy", "nn.functional.embedding", "linalg.qr"),
    *("nn.functional.scaled_dot_product_attention", "nn.Linear", "nn.BatchNorm1d", "nn.LSTM", "nn.MultiheadAttention"),
    *("nn.TransformerEncoderLayer", "nn.LazyConv1d", "invoke_quant.simple", "flex_attention.simple", "scan.simple"),
)


@pytest.mark.slow
@pytest.mark.timeout(900)  # more than a minute on an idle machine
def test_part_of_the_databases_matches_the_list(tmp_path: Path) -> None:
    results = tmp_path / "results.json"
    command = ("-W", "ignore", "-m", "tests.coverage", "--results", str(results), *SUBSET)
    paths = os.pathsep.join(str(ROOT / folder) for folder in ("", "executors", "recipes"))
    ran = run_python(*command, cwd=ROOT, env={**os.environ, "PYTHONPATH": paths})
    found = json.loads(results.read_text(encoding="utf-8"))
    assert disagreements(found) == [] and ran.returncode == 0, ran.stdout + ran.stderr
    assert set(found) == set(SUBSET)
    assert all(sum(verdict["tried"] for verdict in verdicts.values()) for verdicts in found.values())


def test_page_names_the_entries_of_the_list() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert "\n".join(failing(name for _, name in read_known_reasons())) in page, "run `make coverage`"


def test_list_is_wrong_if_another_entry_fails_or_a_listed_entry_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "tests.coverage.known.read_known_reasons", lambda: {("forward", "add"): "why", ("errors", "cat"): "why"}
    )
    monkeypatch.setattr(torch, "__version__", "2.13.0")
    failing, passing = {"failure": "float32: wrong"}, {"failure": None}
    assert disagreements({"add": {"forward": failing}, "cat": {"errors": failing, "forward": passing}}) == []
    assert disagreements({"add": {"forward": passing}}) == ["add forward passes and is in known.toml: take it out"]
    assert disagreements({"cat": {"forward": failing, "errors": failing}}) == [
        "cat forward fails and is not in known.toml: float32: wrong"
    ]
    monkeypatch.setattr(torch, "__version__", "2.14.1")
    assert disagreements({"add": {"forward": passing}}) == []
    assert len(disagreements({"cat": {"forward": failing}})) == 1


X = torch.tensor([1.0, 2.0])
DIFFERENT = {
    "values": (X, X + 1e-5),
    "a nan": (X / 0, X / 0 - X / 0),
    "a data type": (X, X.double()),
    "strides": (torch.ones(2, 2), torch.ones(2, 2).t()),
    "requires_grad": (X, X.clone().requires_grad_()),
    "a number": (1.0, 2.0),
    "a class": ((1, 2), [1, 2]),
    "a length": ([X], [X, X]),
    "a key": ({"a": X}, {"b": X}),
    "an exception": (ValueError("a"), TypeError("a")),
    "a message": (ValueError("a"), ValueError("b")),
    "no exception": (ValueError("a"), X),
    "an exception where eager has none": (X, ValueError("a")),
}


def outcome_of(value: object) -> Outcome:
    """Return an outcome for a value or an exception."""
    return Outcome(raised=value) if isinstance(value, Exception) else Outcome(result=value)


@pytest.mark.parametrize("name", DIFFERENT)
def test_difference_is_reported(name: str) -> None:
    eager, compiled = map(outcome_of, DIFFERENT[name])
    assert difference(eager, compiled) is not None
    assert difference(eager, eager) is None
    assert difference(compiled, compiled) is None


def test_final_random_state_is_compared() -> None:
    assert difference(Outcome(result=X, drawn=b"a"), Outcome(result=X, drawn=b"b")) is not None


@pytest.mark.parametrize("name", ["invoke_subgraph.simple", "invoke_quant_packed.simple", "register_hook.simple"])
def test_a_higher_order_operator_matches_eager(name: str) -> None:
    from tests.coverage.higher_order import examine

    findings = list(examine(name))
    assert {finding.direction for finding in findings} >= {"forward"}
    assert [finding.failure for finding in findings] == [None] * len(findings)


# One entry of each kind: elementwise, reductions, views, indexing, joining, products, layouts.
SYMBOLIC = ("add", "softmax", "squeeze", "narrow", "gather", "cat", "matmul", "cumsum")


def examined(name: str) -> list[Finding]:
    """Return the findings on an operator; the database is imported when it is needed, not when tests are collected."""
    from tests.coverage.symbolic import examine

    return list(examine(name))


@pytest.mark.parametrize("name", SYMBOLIC)
def test_two_sizes_of_a_sample_share_one_program(name: str) -> None:
    findings = examined(name)
    assert {finding.direction for finding in findings} == {"forward", "backward"}
    assert [(finding.failure, finding.specialized) for finding in findings] == [(None, "")] * len(findings)


def test_operator_that_specializes_is_reported_with_its_reason() -> None:
    (finding, *_) = examined("unbind")
    assert finding.failure is None and "args[0].size(0): required s1 == 5" in finding.specialized


def test_page_lists_differences_and_specializations() -> None:
    verdict = {
        "tried": 2,
        "failed": 1,
        "specialized": 1,
        "failure": "float32: wrong",
        "specialized_by": "required s0 == 3",
    }
    page = symbolic_page.render({"cat": {"forward": verdict}, "add": {"forward": verdict | {"failed": 0}}, "sub": {}})
    assert "| equal | 1 of 2 (50.0%) |" in page and "| equal, by one program | 0 of 2 (0.0%) |" in page
    assert "- `cat` (forward): float32: wrong" in page and "| `add` | 1 of 2 |  | required s0 == 3 |" in page


# One entry of each kind: elementwise, indexing, joining, products, random numbers.
VMAPPED = ("add", "index_put", "cat", "matmul", "nn.functional.dropout")


@pytest.mark.parametrize("name", VMAPPED)
def test_operator_within_vmap_matches_eager_vmap(name: str) -> None:
    from tests.coverage.vmapped import examine

    findings = list(examine(name))
    assert {finding.direction for finding in findings} == {"one level", "two levels"}
    assert [finding.failure for finding in findings] == [None] * len(findings)


def test_page_of_vmap_lists_differences() -> None:
    verdict = {"tried": 2, "failed": 1, "guarded": 1, "failure": "float32: wrong"}
    page = vmapped_page.render(
        {"cat": {"one level": verdict}, "add": {"one level": verdict | {"failed": 0}}, "sub": {}}
    )
    assert "| equal | 1 of 2 (50.0%) | 0 of 0 (0.0%) |" in page
    assert "- `cat` (one level): float32: wrong" in page and "| `add` | 2 * |  |" in page
