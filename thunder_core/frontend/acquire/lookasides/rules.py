"""The rules of all lookasides for calls that no table names, in the order in which they are asked."""

from __future__ import annotations

from thunder_core.frontend.acquire.lookasides.c_functions import lookasides_of_c_function
from thunder_core.frontend.acquire.lookasides.compiled import compiled_function
from thunder_core.frontend.acquire.lookasides.functions.function import call_from_c
from thunder_core.frontend.acquire.lookasides.functions.script_modules import call_script
from thunder_core.frontend.acquire.lookasides.functions.tensors import maker_of_tensors
from thunder_core.frontend.acquire.lookasides.operators.collectives import collective_call
from thunder_core.frontend.acquire.lookasides.operators.foreign import call_foreign
from thunder_core.frontend.acquire.lookasides.operators.higher_order import call_operator
from thunder_core.frontend.acquire.lookasides.operators.rolled_loops import record_loop_over_unbind
from thunder_core.frontend.acquire.lookasides.operators.tensor_branches import branch_on_tensor
from thunder_core.frontend.acquire.lookasides.state.draws import call_random_function
from thunder_core.frontend.acquire.lookasides.state.finalizers import dereference, require_no_del_method
from thunder_core.frontend.acquire.lookasides.state.output import method_that_logs_once
from thunder_core.frontend.acquire.lookasides.state.process_queries import call_process_function
from thunder_core.frontend.acquire.lookasides.state.world import call_world_function
from thunder_core.frontend.acquire.run.call_rules import CallRules
from thunder_core.frontend.acquire.run.drawn_arrays import call_on_drawn

CALL_RULES = CallRules(
    python_functions=(call_random_function, call_on_drawn),
    callables=(call_random_function, collective_call, call_world_function, call_on_drawn),
    objects=(maker_of_tensors, method_that_logs_once, record_loop_over_unbind, call_script, dereference),
    of_c_function=lookasides_of_c_function,
    compiled=compiled_function,
    foreign=call_foreign,
    uninterpreted=call_process_function,
    higher_order=call_operator,
    from_c=call_from_c,
    branch=branch_on_tensor,
    instantiation=require_no_del_method,
)
