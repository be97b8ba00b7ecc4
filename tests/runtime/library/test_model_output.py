"""`ModelOutput` is read, changed, copied and pickled like the class of transformers."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch.utils import _pytree
from transformers.modeling_outputs import BaseModelOutputWithPooling, CausalLMOutput
from transformers.utils import ModelOutput as LibraryOutput

from thunder_core.tracing.library.model_output import ModelOutput, plain_output, set_outputs, tuple_outputs


def collected(**fields: object) -> dict[str, object]:
    """The keyword arguments of a call."""
    return fields


HIDDEN, POOLED = torch.ones(1, 2, 3), torch.zeros(1, 3)
READERS = {
    "attribute": lambda out: out.last_hidden_state,
    "attribute of None": lambda out: out.attentions,
    "key": lambda out: out["pooler_output"],
    "index": lambda out: out[0],
    "negative index": lambda out: out[-1],
    "slice": lambda out: out[:1],
    "to_tuple": lambda out: out.to_tuple(),
    "keys": lambda out: list(out.keys()),
    "iteration": list,
    "values": lambda out: list(out.values()),
    "items": lambda out: list(out.items()),
    "length": len,
    "contains": lambda out: ("last_hidden_state" in out, "attentions" in out, "other" in out),
    "get": lambda out: (out.get("attentions", 5), out.get("pooler_output")),
    "dict": dict,
    "keyword arguments": lambda out: collected(**out),
    "fields": lambda out: list(vars(out)),
    "leaves": _pytree.tree_leaves,
    "is a dict": lambda out: isinstance(out, dict),
}
WRONG_READERS = {
    "key of None": lambda out: out["attentions"],
    "no such key": lambda out: out["other"],
    "no such attribute": lambda out: out.other,
    "no such index": lambda out: out[5],
}
REFUSED = {
    "delete": lambda out: out.__delitem__("pooler_output"),
    "pop": lambda out: out.pop("pooler_output"),
    "setdefault": lambda out: out.setdefault("pooler_output", 1),
    "update": lambda out: out.update(pooler_output=1),
}


def library_output() -> LibraryOutput:
    """An output of transformers with fields of None."""
    return BaseModelOutputWithPooling(last_hidden_state=HIDDEN, pooler_output=POOLED)


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_plain_output_reads_as_the_output_of_the_library(read) -> None:
    assert repr(read(plain_output(library_output()))) == repr(read(library_output()))


@pytest.mark.parametrize("read", WRONG_READERS.values(), ids=WRONG_READERS)
def test_a_wrong_read_raises_the_same_kind_of_error(read) -> None:
    with pytest.raises((LookupError, AttributeError)) as expected:
        read(library_output())
    with pytest.raises(expected.type):
        read(plain_output(library_output()))


@pytest.mark.parametrize("change", REFUSED.values(), ids=REFUSED)
def test_fields_cannot_be_removed(change) -> None:
    with pytest.raises(Exception, match="cannot use"):
        change(library_output())
    with pytest.raises(TypeError, match="cannot be removed"):
        change(plain_output(library_output()))


@pytest.mark.parametrize("name", ["attentions", "pooler_output", "something_else"])
@pytest.mark.parametrize("value", [(HIDDEN,), None])
def test_attributes_are_set_as_the_librarys(name: str, value: object) -> None:
    outputs = plain_output(library_output()), library_output()
    for output in outputs:
        setattr(output, name, value)
    (ours, theirs) = outputs
    assert repr((vars(ours), dict(ours))) == repr((vars(theirs), dict(theirs)))


def test_items_are_set_as_the_librarys() -> None:
    outputs = plain_output(library_output()), library_output()
    for output in outputs:
        output["attentions"] = (HIDDEN,)
    assert repr(dict(outputs[0])) == repr(dict(outputs[1]))
    assert outputs[0].attentions[0] is HIDDEN


@pytest.mark.parametrize(
    "copied",
    [
        copy.copy,
        copy.deepcopy,
        lambda out: pickle.loads(pickle.dumps(out)),
        lambda out: _pytree.tree_map(torch.clone, out),
    ],
    ids=["copy", "deepcopy", "pickle", "tree_map"],
)
def test_copies_have_the_same_fields(copied) -> None:
    made = plain_output(library_output())
    again = copied(made)
    assert type(again) is ModelOutput
    assert repr((vars(again), list(again.items()))) == repr((vars(made), list(made.items())))


def test_repr_names_all_fields() -> None:
    assert repr(ModelOutput(loss=None, logits=3)) == "ModelOutput(loss=None, logits=3)"


def test_outputs_inside_of_outputs_are_exchanged_and_others_are_not() -> None:
    nested = CausalLMOutput(logits=library_output())
    assert type(plain_output(nested).logits) is ModelOutput
    assert plain_output(nested).logits[0] is HIDDEN
    for output in ((HIDDEN,), {"a": HIDDEN}, HIDDEN, None):
        assert plain_output(output) is output
        assert tuple_outputs(torch.nn.Linear(1, 1), (), output) is output


def test_outputs_of_an_unknown_kind_are_refused() -> None:
    with pytest.raises(ValueError, match="of the kind 'list'"):
        set_outputs(torch.nn.Linear(1, 1), "list")
