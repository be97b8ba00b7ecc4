"""Layout checks in Inductor's wrapper are recognized in the spelling of each version of PyTorch."""

from __future__ import annotations

import ast

import pytest

from thunder_executors.inductor.torch_versions import with_plain_checks

SPELLED = {
    "assert_size_stride(a, (2, 3), (3, 1), 'input')": ["assert_size_stride(a, (2, 3), (3, 1), 'input')"],
    "assert_size_stride_grouped((a, b), ((2, s0), (4,)), ((s0, 1), (1,)), 'input')": [
        "assert_size_stride(a, (2, s0), (s0, 1), 'input')",
        "assert_size_stride(b, (4,), (1,), 'input')",
    ],
    "assert_tensor_metadata(c, (2,), (1,), torch.float32, 'torch.ops.aten.f')": [
        "assert_size_stride(c, (2,), (1,), 'torch.ops.aten.f')"
    ],
    "buf0 = empty_strided_cpu((2,), (1,), torch.float32)": ["buf0 = empty_strided_cpu((2,), (1,), torch.float32)"],
    "args.clear()": ["args.clear()"],
}


@pytest.mark.parametrize(("statement", "plain"), SPELLED.items())
def test_checks_are_plain_and_other_statements_are_kept(statement, plain):
    assert [ast.unparse(node) for node in with_plain_checks(ast.parse(statement).body)] == plain


def test_tuples_of_different_lengths_are_refused():
    with pytest.raises(ValueError, match="zip"):
        list(with_plain_checks(ast.parse("assert_size_stride_grouped((a, b), ((2,),), ((1,),), 'input')").body))
