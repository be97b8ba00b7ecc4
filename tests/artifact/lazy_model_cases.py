"""Uses of a lazily built model of an artifact. Each case runs in a process that has never imported transformers.

Usage: python -m tests.artifact.lazy_model_cases FOLDER. The parent imports PyTorch and Thunder, and forks. After the
first case the parent also imports the dependencies of transformers, which take longer than transformers itself.
"""

from __future__ import annotations

import copy
import importlib
import io
import json
import os
import pickle
import shutil
import sys
import threading
import traceback
from pathlib import Path

import pytest
import torch

import thunder_core as thunder
from thunder_core.foundation.errors import WrongInputs

IDS = torch.arange(8)[None]
NEEDED = ("torch._dynamo", "scipy.optimize", "huggingface_hub", "tokenizers")  # by transformers


def is_built() -> bool:
    return "transformers" in sys.modules


def call(model, **options):
    with torch.no_grad():
        return model(input_ids=IDS, return_dict=False, **options)[0]


def loaded(folder, **options):
    model = thunder.load(folder / "plain.thunder", **options)
    assert not is_built()
    return model, torch.load(folder / "expected.pt")


def runs_without_the_library_until_it_is_touched(folder):
    model, expected = loaded(folder, strict=True)
    assert isinstance(model, torch.nn.Module)
    assert torch.equal(call(model), expected["logits"])
    with torch.no_grad():
        assert torch.equal(model(return_dict=False, input_ids=IDS)[0], expected["logits"])
        assert torch.equal(model(IDS, return_dict=False)[0], expected["logits"])
    assert type(model).__name__ == "BertForMaskedLM"
    model(input_ids=IDS, return_dict=False)[0].sum().backward()  # into the parameters that the built model will have
    assert not is_built()
    assert model.config.hidden_size == 32
    assert is_built()
    assert thunder.cache_hits(model) == 4
    assert thunder.cache_misses(model) == 0
    library = sys.modules["transformers"]
    assert isinstance(model, library.BertForMaskedLM)
    assert isinstance(model, library.PreTrainedModel)
    state = model.state_dict()
    assert state.keys() == expected["state"].keys()
    assert all(torch.equal(state[name], value) for name, value in expected["state"].items())
    assert [name for name, _ in model.named_parameters()] == expected["parameters"]
    assert model.get_input_embeddings().weight is model.get_output_embeddings().weight
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, expected["gradients"][name])
    assert torch.equal(call(model), expected["logits"])
    with pytest.raises(WrongInputs):
        call(model.train())
    model.eval().config.output_hidden_states = True  # from here on the model is guarded like any model
    with pytest.raises(WrongInputs):
        call(model)


def becomes_the_compiled_module_whatever_is_done_with_it(folder):
    """Copy, pickle, hook and compile the model, and access it from several threads at once.

    The artifact's folder may disappear.
    """
    own = folder / "copy"
    shutil.copytree(folder / "plain.thunder", own / "plain.thunder")
    shutil.copy(folder / "expected.pt", own)
    models = [loaded(own)[0] for _ in range(6)]
    expected = torch.load(folder / "expected.pt")["logits"]
    shutil.rmtree(own)

    weights = []
    threads = [threading.Thread(target=lambda: weights.append(models[0].cls.predictions.bias)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(weights) == 4
    assert len({*map(id, weights)}) == 1
    met = []
    models[0].register_forward_hook(lambda *_: met.append(1))
    assert torch.equal(call(models[0]), expected)
    assert met == [1]
    models[0].attribute = 1
    assert models[0].to(torch.float64).dtype == torch.float64

    doubled = thunder.jit(lambda ids: models[1](input_ids=ids, return_dict=False)[0] * 2)
    with torch.no_grad():
        assert torch.equal(doubled(IDS), expected * 2)
        assert torch.equal(doubled(IDS), expected * 2)
    assert thunder.cache_misses(doubled) == 1

    seen = [copy.deepcopy(models[2]), copy.copy(models[3]), pickle.loads(pickle.dumps(models[4]))]
    file = io.BytesIO()
    torch.save(models[5], file)
    file.seek(0)
    seen.append(torch.load(file, weights_only=False))
    for model, copied in zip(models[2:], seen, strict=True):
        assert torch.equal(call(copied), expected)
        assert type(model).__module__ == type(copied).__module__ == "transformers.models.bert.modeling_bert"
    shared = seen[1].bert.embeddings.word_embeddings.weight is models[3].bert.embeddings.word_embeddings.weight
    apart = seen[0].bert.embeddings.word_embeddings.weight is not models[2].bert.embeddings.word_embeddings.weight
    assert shared and apart
    assert "BertEmbeddings" in repr(models[2])


def notices_what_others_change(folder):
    """Change PyTorch, which is imported before the model is built, and transformers, if other code imports it."""
    model, expected = loaded(folder)
    other, _ = loaded(folder)
    plain = torch.nn.functional.linear
    torch.nn.functional.linear = lambda *arguments: plain(*arguments) * 2
    assert not torch.equal(call(model), expected["logits"])
    torch.nn.functional.linear = plain
    assert torch.equal(call(model), expected["logits"])

    from transformers.models.bert import modeling_bert

    plain = modeling_bert.BertIntermediate.forward
    modeling_bert.BertIntermediate.forward = lambda self, hidden: torch.zeros(1, 8, 64)
    assert not torch.equal(call(other), expected["logits"])
    modeling_bert.BertIntermediate.forward = plain
    assert torch.equal(call(other), expected["logits"])
    built = thunder.load(folder / "plain.thunder")  # built at once from here on
    assert type(built).__module__ == modeling_bert.__name__


def objects_of_the_library_need_it(folder):
    """Models that return objects of transformers are built at once if transformers is installed."""
    model = thunder.load(folder / "class.thunder")
    assert is_built()
    with torch.no_grad():
        assert torch.equal(model(input_ids=IDS).logits, torch.load(folder / "expected.pt")["logits"])


def is_built_at_once_elsewhere(folder):
    """Models whose library settings come from the environment are built at once."""
    os.environ["TRANSFORMERS_OF_A_TEST"] = "1"
    model = thunder.load(folder / "plain.thunder")
    assert is_built()
    expected = torch.load(folder / "expected.pt")["logits"]
    assert torch.equal(call(model), expected)


CASES = [
    runs_without_the_library_until_it_is_touched,
    becomes_the_compiled_module_whatever_is_done_with_it,
    notices_what_others_change,
    objects_of_the_library_need_it,
    is_built_at_once_elsewhere,
]


def main() -> None:
    """Run each case in a child process, and print the error of each case as JSON."""
    found = {}
    for case in CASES:
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            try:
                case(Path(sys.argv[1]))
                told = ""
            except BaseException:
                told = traceback.format_exc()
            os.write(writing, told[-3000:].encode())
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading, "rb") as pipe:
            found[case.__name__] = pipe.read().decode()
        os.waitpid(child, 0)
        for name in NEEDED:
            importlib.import_module(name)
    assert not is_built()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
