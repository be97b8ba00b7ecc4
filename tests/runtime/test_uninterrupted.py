"""Generations check the guards on the model once, unless code of the user may run between two tokens."""

from __future__ import annotations

import copy
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

transformers = pytest.importorskip("transformers")

from transformers import (  # noqa: E402
    DynamicCache,
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    MinLengthLogitsProcessor,
    PrefixConstrainedLogitsProcessor,
    StoppingCriteria,
    masking_utils,
)
from transformers.generation import BaseStreamer, MaxTimeCriteria  # noqa: E402
from transformers.generation import utils as generation_utils  # noqa: E402

import thunder_core as thunder  # noqa: E402
from tests.generation.models import model_of  # noqa: E402
from thunder_core.backend.runtime.prologues import uninterrupted  # noqa: E402
from thunder_core.foundation.errors import ModelChangedWarning  # noqa: E402
from thunder_core.frontend.acquire.codegen import prologue  # noqa: E402
from thunder_core.tracing.library.changes.memory_words import CAN_WATCH  # noqa: E402
from thunder_core.tracing.library.changes.module_state import ModuleState  # noqa: E402
from thunder_recipes.hf_generate import HFGenerate  # noqa: E402

pytestmark = [
    pytest.mark.skipif(not CAN_WATCH, reason="the versions of dicts are not known in this Python"),
    pytest.mark.skipif(bool(sys.gettrace() or sys.getprofile()), reason="a debugger may change a model between tokens"),
]
PROMPT = torch.arange(3, 10).view(1, 7)
TOKENS, CHANGED_AT = 12, 5  # new tokens, and the token before which the model is changed
FEW = 3  # checks of a generation: of the prompt, by both programs, and of the first token


class Uncompiled(HFGenerate):
    """The recipe with the executor torch, which compiles no kernels."""

    executors = ("torch",)


@pytest.fixture(autouse=True)
def few_statements_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prologue, "MIN_SKIPPED_STATEMENTS", 1)


def generate(model: Any, **options: Any) -> torch.Tensor:
    usual = {"attention_mask": torch.ones_like(PROMPT), "max_new_tokens": TOKENS, "do_sample": False}
    result: torch.Tensor = model.generate(PROMPT, **usual | options)
    return result


def fresh_model() -> Any:
    model = copy.deepcopy(model_of("llama"))
    model.generation_config.eos_token_id = None
    return model


def warm(model: Any) -> Any:
    """The compiled model, whose programs have begun to use their quick prologues."""
    compiled = thunder.compile(model, Uncompiled)
    for _ in range(3):
        generate(compiled)
    return compiled


@pytest.fixture(scope="module")
def pair() -> tuple[Any, Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prologue, "MIN_SKIPPED_STATEMENTS", 1)
        model = fresh_model()
        return model, warm(model)


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """The number of calls that have compared the module with its recorded state."""
    counter: Counter[str] = Counter()
    values = ModuleState.values
    monkeypatch.setattr(
        ModuleState, "values", lambda self, module: (counter.update(["state"]), values(self, module))[1]
    )
    return counter


def test_the_guards_on_the_model_are_checked_once_for_each_program(
    pair: tuple[Any, Any], checked: Counter[str]
) -> None:
    model, compiled = pair
    for number in (1, 2):
        assert torch.equal(generate(compiled), generate(model))
        assert checked["state"] <= FEW * number


OF_LIBRARY: dict[str, dict[str, Any]] = {
    "sampling": {"do_sample": True},
    "settings": {"generation_config": GenerationConfig(max_new_tokens=TOKENS, repetition_penalty=1.3)},
    "processors": {"logits_processor": LogitsProcessorList([MinLengthLogitsProcessor(9, 3, device="cpu")])},
    "criteria": {"stopping_criteria": [MaxTimeCriteria(1000.0)]},
    "scores": {"output_scores": True, "return_dict_in_generate": True},
}


@pytest.mark.parametrize("name", OF_LIBRARY)
def test_settings_of_the_library_keep_the_guards_settled(
    name: str, pair: tuple[Any, Any], checked: Counter[str]
) -> None:
    results = []
    for model in pair:
        torch.manual_seed(0)
        result: Any = generate(model, **OF_LIBRARY[name])
        results.append(result if isinstance(result, torch.Tensor) else result.sequences)
    assert torch.equal(*results)
    assert checked["state"] <= FEW


def test_a_call_after_a_generation_checks_all_guards(pair: tuple[Any, Any], checked: Counter[str]) -> None:
    _, compiled = pair
    generate(compiled)
    before = checked["state"]
    with torch.no_grad():
        for _ in range(4):
            compiled(PROMPT)
    assert uninterrupted.current_generation() is None
    assert checked["state"] > before


# ---- code of the user between two tokens --------------------------------------------------------------------------


class Change:
    """Changes a model before a token: the weight of its head is replaced."""

    def __init__(self, model: Any) -> None:
        self.model, self.calls = model, 0

    def __call__(self, *_: Any) -> None:
        self.calls += 1
        if self.calls == CHANGED_AT:
            self.model.lm_head.weight = nn.Parameter(-self.model.lm_head.weight.detach())


class ChangingProcessor(LogitsProcessor):  # type: ignore[misc]
    def __init__(self, change: Callable[[], Any]) -> None:
        self.change = change

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.change()
        return scores


class ChangingCriterion(StoppingCriteria):  # type: ignore[misc]
    def __init__(self, change: Change) -> None:
        self.change = change

    def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        self.change()
        return torch.zeros(len(input_ids), dtype=torch.bool)


class ChangingStreamer(BaseStreamer):  # type: ignore[misc]
    def __init__(self, change: Change) -> None:
        self.change = change

    def put(self, value: torch.Tensor) -> None:
        self.change()

    def end(self) -> None:
        pass


class ChangingCache(DynamicCache):  # type: ignore[misc]
    change: Any = None

    def get_mask_sizes(self, *args: Any, **kwargs: Any) -> Any:
        if not torch.compiler.is_compiling():
            self.change()
        return super().get_mask_sizes(*args, **kwargs)


class ChangingConfig(GenerationConfig):  # type: ignore[misc]
    change: Any = None

    @property
    def _pad_token_tensor(self) -> Any:
        return None

    @_pad_token_tensor.setter
    def _pad_token_tensor(self, value: Any) -> None:
        pass


def by_function(change: Change) -> Callable[..., Any]:
    def allowed(batch: int, ids: torch.Tensor) -> list[int]:
        change()
        return list(range(5, 40))

    return allowed


def own_loop(change: Change) -> Callable[..., Any]:
    def loop(model: Any, *args: Any, **kwargs: Any) -> Any:
        kwargs["logits_processor"] = LogitsProcessorList([ChangingProcessor(change)])
        return type(model)._sample(model, *args, **kwargs)

    return loop


OPTIONS: dict[str, Callable[[Change], dict[str, Any]]] = {
    "processor": lambda change: {"logits_processor": [ChangingProcessor(change)]},
    "list of processors": lambda change: {"logits_processor": LogitsProcessorList([ChangingProcessor(change)])},
    "processor of the library with a function": lambda change: {
        "logits_processor": [PrefixConstrainedLogitsProcessor(by_function(change), 1)]
    },
    "criterion": lambda change: {"stopping_criteria": [ChangingCriterion(change)]},
    "streamer": lambda change: {"streamer": ChangingStreamer(change)},
    "function of allowed tokens": lambda change: {"prefix_allowed_tokens_fn": by_function(change)},
    "own loop": lambda change: {"custom_generate": own_loop(change)},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_code_of_the_user_may_change_the_model_between_tokens(name: str) -> None:
    results = []
    for compile_model in (lambda model: model, warm):
        model = fresh_model()
        compiled = compile_model(model)
        change = Change(model)
        results.append(generate(compiled, **OPTIONS[name](change)))
        assert change.calls > CHANGED_AT
    assert torch.equal(*results)
    assert not torch.equal(results[0], generate(fresh_model(), **OPTIONS[name](Change(fresh_model()))))


def after(method: Any, change: Change) -> Callable[..., Any]:
    def changed(*args: Any, **kwargs: Any) -> Any:
        change()
        return method(*args, **kwargs)

    return changed


def replace_on_instance(model: Any, change: Change, patch: pytest.MonkeyPatch) -> None:
    model.prepare_inputs_for_generation = after(model.prepare_inputs_for_generation, change)


def replace_in_class(model: Any, change: Change, patch: pytest.MonkeyPatch) -> None:
    kind = transformers.GenerationMixin
    patch.setattr(kind, "_update_model_kwargs_for_generation", after(kind._update_model_kwargs_for_generation, change))


def replace_by_decorated_function(model: Any, change: Change, patch: pytest.MonkeyPatch) -> None:
    kind = transformers.GenerationMixin
    changed = torch.no_grad()(after(kind._update_model_kwargs_for_generation, change))
    patch.setattr(kind, "_update_model_kwargs_for_generation", changed)


def replace_in_another_class(model: Any, change: Change, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(generation_utils.StopCheck, "__call__", after(generation_utils.StopCheck.__call__, change))


def replace_function(model: Any, change: Change, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(generation_utils, "StopCheck", lambda *args: changing_check(change, *args))


def changing_check(change: Change, *args: Any) -> Callable[..., Any]:
    check = generation_utils.DeferredStopCheck.__base__(*args)
    changing = after(check, change)
    changing.finish = check.finish  # type: ignore[attr-defined]
    return changing


REPLACEMENTS = (
    replace_on_instance,
    replace_in_class,
    replace_by_decorated_function,
    replace_in_another_class,
    replace_function,
)


def test_a_registered_mask_function_makes_an_ordinary_call(monkeypatch: pytest.MonkeyPatch) -> None:
    model = fresh_model()
    table = masking_utils.ALL_MASK_ATTENTION_FUNCTIONS
    assert uninterrupted.is_uninterrupted(model, (PROMPT,), {})
    monkeypatch.setitem(table._global_mapping, "sdpa", lambda *args, **kwargs: table["eager"](*args, **kwargs))
    assert not uninterrupted.is_uninterrupted(model, (PROMPT,), {})


@pytest.mark.parametrize("replacement", REPLACEMENTS, ids=lambda function: function.__name__)
def test_a_replaced_function_may_change_the_model(replacement: Any) -> None:
    results = []
    for compile_model in (lambda model: model, warm):
        model = fresh_model()
        compiled = compile_model(model)
        change = Change(model)
        with pytest.MonkeyPatch.context() as patch:
            replacement(model, change, patch)
            results.append(generate(compiled))
        assert change.calls > CHANGED_AT
    assert torch.equal(*results)


def test_a_hook_that_the_program_replays_may_change_the_model() -> None:
    def count(module: Any, args: Any, output: Any) -> Any:
        module.calls = getattr(module, "calls", 0) + 1
        return output * -1 if module.calls > CHANGED_AT else output

    results = []
    for compile_model in (lambda model: model, warm):
        model = fresh_model()
        compiled = compile_model(model)
        model.lm_head.register_forward_hook(count)
        for _ in range(2):
            model.lm_head.calls = 0
            results.append(generate(compiled))
    assert all(torch.equal(result, results[0]) for result in results)


CALLS: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "positional": ((PROMPT, None, [], []), {}),
    "subclass of a tensor": ((PROMPT.as_subclass(type("Own", (torch.Tensor,), {})),), {}),
    "cache of the user": ((PROMPT,), {"past_key_values": ChangingCache()}),
    "settings of the user": ((PROMPT,), {"generation_config": ChangingConfig()}),
    "module": ((PROMPT,), {"unknown": nn.Linear(1, 1)}),
    "function in a list": ((PROMPT,), {"unknown": [print]}),
    "function in a dict": ((PROMPT,), {"unknown": {"a": print}}),
}


@pytest.mark.parametrize("name", CALLS)
def test_other_arguments_make_an_ordinary_call(name: str, pair: tuple[Any, Any]) -> None:
    args, kwargs = CALLS[name]
    assert uninterrupted.is_uninterrupted(pair[0], (PROMPT,), {})
    assert not uninterrupted.is_uninterrupted(pair[0], args, kwargs)


def test_models_of_the_user_and_debuggers_make_an_ordinary_call() -> None:
    class Own(type(fresh_model())):  # type: ignore[misc]
        pass

    model = fresh_model()
    assert uninterrupted.is_uninterrupted(model, (PROMPT,), {})
    model.__class__ = Own
    assert not uninterrupted.is_uninterrupted(model, (PROMPT,), {})
    before = sys.gettrace()
    sys.settrace(lambda *_: None)
    try:
        assert not uninterrupted.is_uninterrupted(fresh_model(), (PROMPT,), {})
    finally:
        sys.settrace(before)
    with torch.device("cpu"):  # a mode
        assert not uninterrupted.is_uninterrupted(fresh_model(), (PROMPT,), {})


# ---- the end of a generation --------------------------------------------------------------------------------------


@pytest.fixture
def hidden(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Changes between tokens that are not expected, such as those of another thread."""
    monkeypatch.setattr(uninterrupted, "is_uninterrupted", lambda *_: True)
    yield


@pytest.mark.usefixtures("hidden")
def test_a_change_that_was_not_expected_is_reported() -> None:
    model = fresh_model()
    compiled = warm(model)
    with pytest.warns(ModelChangedWarning, match="LlamaForCausalLM was changed during generate"):
        generate(compiled, logits_processor=[ChangingProcessor(Change(model))])
    assert torch.equal(generate(compiled), generate(model))


@pytest.mark.usefixtures("hidden")
def test_a_change_that_no_guard_reads_is_not_reported() -> None:
    model = fresh_model()
    compiled = warm(model)

    processor = ChangingProcessor(lambda: setattr(model, "unrelated", object()))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        generate(compiled, logits_processor=[processor])


@pytest.mark.usefixtures("hidden")
def test_a_weight_with_other_metadata_is_reported() -> None:
    model = fresh_model()
    compiled = warm(model)

    processor = ChangingProcessor(lambda: model.model.norm.weight.requires_grad_(False))
    with pytest.warns(ModelChangedWarning):
        generate(compiled, logits_processor=[processor])


def test_an_error_ends_the_generation(pair: tuple[Any, Any]) -> None:
    with pytest.raises(Exception, match=r"."):
        generate(pair[1], max_new_tokens=-3)
    assert uninterrupted.current_generation() is None
