"""Compare claimed lines with eager PyTorch: each bound symbol and region of an executor, on its actual inputs."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from thunder_core.backend.claiming.check import RandomStates, checks_of
from thunder_core.backend.claiming.claim_checks import UnclaimedProgram, with_checks
from thunder_core.backend.claiming.copies import Values
from thunder_core.backend.claiming.free import last_uses
from thunder_core.backend.fusion.wrapping import unwrap
from thunder_core.tracing.ir.evaluate import evaluate
from thunder_core.tracing.ir.trace import Trace
from thunder_core.workflow.fault_localization.input_copies import copy_inputs
from thunder_core.workflow.fault_localization.judgement import Findings, set_judge
from thunder_core.workflow.fault_localization.recording import preserve_settings
from thunder_core.workflow.fault_localization.rounding import ROUNDING, Allowance
from thunder_core.workflow.fault_localization.time_limit import Deadline
from thunder_core.workflow.validation.internal_check import CheckedLines, Fault, NotCompared


@dataclass(frozen=True)
class ClaimFindings:
    """The results for a claimed trace: its wrong lines, the measured lines, and the lines that were not compared."""

    faults: tuple[Fault, ...]
    lines: tuple[CheckedLines, ...]
    not_compared: tuple[NotCompared, ...]


def examine_claims(
    claimed: Trace,
    unclaimed: Trace,
    inputs: Values,
    states: RandomStates,
    deadline: Deadline,
    allowance: Allowance = ROUNDING,
) -> ClaimFindings:
    """Evaluate a claimed trace on copies of inputs, and compare each executor's line with the operations it replaces.

    A line reads the values that the earlier lines actually computed, so that one mistake is reported at one line only.
    The lines of a CUDA graph are compared one by one. No line runs after the deadline.
    """
    bsyms = with_checks([*unwrap(claimed.bound_symbols)], UnclaimedProgram.of(unclaimed))
    checked = claimed.having(bsyms, made_by="check claims")
    judge = Findings(claimed.name, deadline, allowance)
    checks = set_judge(judge, checked)
    values = {**copy_inputs(inputs, claimed), **claimed.constants}
    with torch.no_grad(), preserve_settings(claimed.bound_symbols):
        states.restore()
        lines = zip(checked.bound_symbols, last_uses(replace(checked, output=())), strict=True)
        for index, (bsym, dying) in enumerate(lines):
            if deadline.is_over:
                judge.late += len(list(checks_of(checked.bound_symbols[index:])))
                break
            evaluate((bsym,), values)
            for proxy in dying:
                values.pop(proxy.name, None)
    return ClaimFindings(tuple(judge.faults), tuple(judge.lines()), tuple(judge.not_compared(checks)))
