"""Replace Dynamo's operators for checkpoints and autograd functions by modules with the user's functions.

AOTAutograd, which usually runs between Dynamo and a backend, would expand these operators. Thunder's backend traces the
user's functions instead.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from thunder_core.tracing.library.captured_parts import CheckpointedBody, OwnDerivative

# Thunder supports `autograd_function_apply` only in the PyTorch versions in which it has this keyword argument.
SAVED = "saved_for_backward_idx"


def checkpointed_body(module: torch.fx.GraphModule, node: torch.fx.Node) -> CheckpointedBody:
    """Return a module with the graph that a node checkpoints, and remove the graph from the node's arguments."""
    options = dict(node.kwargs)
    if (context := node.meta.get("_checkpoint_context_fn")) is not None:
        options["context_fn"] = context
    body = getattr(module, node.args[0].target)  # type: ignore[union-attr, arg-type]
    node.args = node.args[1:]
    return CheckpointedBody(body, options)


def with_own_derivative(module: torch.fx.GraphModule, node: torch.fx.Node) -> OwnDerivative | None:
    """Return a module with the autograd function that a node applies, and remove its graphs from the node's arguments.

    Returns None in PyTorch versions whose operator has other arguments.
    """
    if SAVED not in node.kwargs:
        return None
    body, derivative = (getattr(module, part.target) for part in node.args[:2])  # type: ignore[union-attr, arg-type]
    options = node.kwargs
    node.args = node.args[2:]
    return OwnDerivative(
        without_grad_mode_switches(body),
        without_grad_mode_switches(derivative),
        options.get("dirty_idx") or [],  # type: ignore[arg-type]
        options.get("non_differentiable_idx") or [],  # type: ignore[arg-type]
    )


def without_grad_mode_switches(body: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Remove the first and the last operation of a graph if they set the grad mode, and return the graph.

    Autograd itself sets the grad mode when it calls the forward and the backward of an autograd function.
    """
    operations = [node for node in body.graph.nodes if node.op not in ("placeholder", "output", "get_attr")]
    for node in (*operations[:1], *operations[1:][-1:]):
        if node.target is torch._C._set_grad_enabled:
            body.graph.erase_node(node)
    body.recompile()
    return body


Replacement = Callable[[torch.fx.GraphModule, torch.fx.Node], torch.nn.Module | None]
REPLACEMENTS: dict[str, Replacement] = {
    "tag_activation_checkpoint": checkpointed_body,
    "autograd_function_apply": with_own_derivative,
}


def replace_operators(module: torch.fx.GraphModule) -> None:
    """Replace Dynamo's operators by calls of modules, in a graph and in all graphs within the graph."""
    for inner in list(module.modules()):
        if isinstance(inner, torch.fx.GraphModule):
            for node in list(inner.graph.nodes):
                _replace(inner, node)
            # This removes only the nodes that passed the graphs to the operators.
            inner.graph.eliminate_dead_code(lambda node: node.op != "get_attr")
            inner.recompile()


def _replace(module: torch.fx.GraphModule, node: torch.fx.Node) -> None:
    name = getattr(node.target, "_name", "") if node.op == "call_function" else ""
    replacement = REPLACEMENTS[name](module, node) if name in REPLACEMENTS else None
    if replacement is not None:
        target = f"{name}_{node.name}"
        module.add_submodule(target, replacement)
        node.op, node.target, node.kwargs = "call_module", target, {}
