"""The main input of a class is read from its source; it is the one that the imported class has."""

from __future__ import annotations

import ast
import inspect

import pytest
import transformers

from thunder_core.workflow.models.inputs.class_source import (
    forward_parameters,
    main_input_in_source,
    main_input_name,
    module_of,
    parameters_in_source,
    values_of,
)

NAMES = ("BertModel", "LlamaForCausalLM", "ViTModel", "WhisperModel", "Wav2Vec2Model", "CLIPModel")


@pytest.mark.parametrize("name", NAMES)
def test_the_source_says_what_the_class_has(name: str) -> None:
    found = main_input_in_source(module_of(name), name)
    assert found == getattr(transformers, name).main_input_name
    assert main_input_name(name) == found


@pytest.mark.parametrize("name", [*NAMES, "CLIPForImageClassification", "GPT2ForSequenceClassification"])
def test_the_source_has_the_parameters_of_the_forward(name: str) -> None:
    forward = inspect.signature(getattr(transformers, name).forward)
    kinds = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    expected = {parameter.name for parameter in forward.parameters.values() if parameter.kind not in kinds}
    assert parameters_in_source(module_of(name), name) == expected
    assert forward_parameters(name) >= expected
    assert parameters_in_source(module_of(name), "NoSuchModel") == forward_parameters("NoSuchModel") == frozenset()


def test_tokens_are_the_input_of_a_class_that_does_not_exist() -> None:
    assert main_input_name("") == "input_ids"
    assert main_input_name("NoSuchModel") == "input_ids"


@pytest.mark.parametrize(
    "source",
    [
        "class A(PreTrainedModel):\n    main_input_name = NAME",
        "class A(PreTrainedModel):\n    @property\n    def main_input_name(self): return 'x'",
        "class A(Elsewhere):\n    pass",
        "class A(PreTrainedModel):\n    main_input_name = ['a', 'b']",
    ],
)
def test_a_source_that_does_not_say_plainly_is_left_to_the_import(source: str) -> None:
    classes = {node.name: node for node in ast.parse(source).body}
    with pytest.raises(LookupError):
        list(values_of("A", classes))
