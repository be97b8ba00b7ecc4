"""Manifests of earlier schemas in the form of this one."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from thunder_core.foundation.storage.manifest import text_of
from thunder_core.workflow.artifact.format.former_names import current_path
from thunder_core.workflow.artifact.format.manifest import SCHEMA_VERSION

Content = dict[str, Any]

UNKNOWN = (
    "it was saved by an earlier version of Thunder, which did not record the compile options; save it again to record "
    "them"
)


def upgraded(content: bytes, schema: int) -> bytes:
    """A manifest of that schema as this version would have written it; raises ValueError for what cannot be one."""
    if schema == SCHEMA_VERSION:
        return content
    try:
        found: Content = json.loads(content)
        if text_of(found) != content:
            raise ValueError("it is not in the form that Thunder writes")
        for number in range(schema, SCHEMA_VERSION):
            found = {**UPGRADES[number](found), "schema_version": number + 1}
        return text_of(found)
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"it is not a manifest of schema {schema}: {type(error).__name__} {error}") from error


def without_derivatives(content: Content) -> Content:
    """Schema 1 knows no derivatives, and is otherwise the next."""
    return content


def without_options(content: Content) -> Content:
    """Schema 2 kept one option, `data_dependent`, and that only where it was not `error`.

    The others are known of what `thunder optimize` made, which names its recipe. What `thunder_core.save` was given may
    have been compiled by any, so that nothing more is traced for it.
    """
    compiler = {**content["compiler"]}
    if "options" in compiler:
        raise ValueError("schema 2 has no options")
    options = {
        "cache": "constant values",
        "sharp_edges": "allow",
        "functional": False,
        "data_dependent": compiler.pop("data_dependent", "error"),
        "memory_budget": 1.0,
    }
    lacks = {} if content["recipe"] else {"lacks": compiler.get("lacks") or UNKNOWN}
    return {**content, "compiler": {"options": options, **compiler, **lacks}}


def without_limit(content: Content) -> Content:
    """Schema 3 did not keep how many programs are kept, which was no option."""
    compiler = content["compiler"]
    if "max_programs" in compiler["options"]:
        raise ValueError("schema 3 has no such option: max_programs")
    return {**content, "compiler": {**compiler, "options": {**compiler["options"], "max_programs": 64}}}


def with_former_names(content: Content) -> Content:
    """Schema 4 has the names that modules of Thunder had then; those in the text of traces are mended as it is read."""
    return {**content, "programs": [_with_former_names(program) for program in content["programs"]]}


def _with_former_names(program: Content) -> Content:
    return {**program, "stages": [{**stage, **_constants_of(stage)} for stage in program["stages"]]}


def _constants_of(stage: Content) -> Content:
    """The constants of a stage, where it has some, by the paths that they have now."""
    constants = stage.get("constants", {})
    found = {
        name: {**facts, "text": current_path(facts["text"])} if facts["kind"] == "import" else facts
        for name, facts in constants.items()
    }
    return {"constants": found} if "constants" in stage else {}


def without_symbolic(content: Content) -> Content:
    """Schema 5 did not keep which arguments were symbolic by name, which none were."""
    compiler = content["compiler"]
    if "symbolic" in compiler["options"]:
        raise ValueError("schema 5 has no such option: symbolic")
    return {**content, "compiler": {**compiler, "options": {**compiler["options"], "symbolic": []}}}


def without_observed_values(content: Content) -> Content:
    """Schema 6 did not keep the numbers that programs were traced with: what differs from them is learned anew."""
    return content


def without_lookasides(content: Content) -> Content:
    """Schema 7 knew no lookasides of the user's."""
    if "lookasides" in content["compiler"]:
        raise ValueError("schema 7 has no lookasides")
    return content


def without_methods(content: Content) -> Content:
    """Schema 8 did not keep which transforms have methods for the compiled module: what it loads has its class's."""
    if any("methods" in transform for transform in content["compiler"].get("transforms", ())):
        raise ValueError("schema 8 has no methods of transforms")
    return content


def without_operators(content: Content) -> Content:
    """Schema 9 knew no operators, executors of one function that need not be registered."""
    if "operators" in content["compiler"]:
        raise ValueError("schema 9 has no operators")
    return content


def without_prepared_models(content: Content) -> Content:
    """Schema 10 did not keep which transforms change the model, and there were none that did."""
    if any("prepares" in transform for transform in content["compiler"].get("transforms", ())):
        raise ValueError("schema 10 has no transforms that prepare models")
    return content


def without_left_out_parts(content: Content) -> Content:
    """Schema 11 did not keep what a recipe was told to leave out, which was nothing."""
    compiler = content["compiler"]
    if "without" in compiler["options"]:
        raise ValueError("schema 11 has no such option: without")
    return {**content, "compiler": {**compiler, "options": {**compiler["options"], "without": []}}}


UPGRADES: Mapping[int, Callable[[Content], Content]] = {
    1: without_derivatives,
    2: without_options,
    3: without_limit,
    4: with_former_names,
    5: without_symbolic,
    6: without_observed_values,
    7: without_lookasides,
    8: without_methods,
    9: without_operators,
    10: without_prepared_models,
    11: without_left_out_parts,
}
