"""The attributes from which an object is rebuilt."""

from __future__ import annotations

import torch

from thunder_core.frontend.acquire.codegen.rebuilding import attributes_of_tensor
from thunder_core.tracing.capture.fakes.fake import new_mode


def test_internal_attributes_of_a_fake_tensor_are_not_the_programs() -> None:
    fake = new_mode().from_tensor(torch.ones(2))
    vars(fake).update(_sizes_capsule=object(), _sym_strides_capsule_len=1, _item_memo_vc=0, label="the program's")
    assert attributes_of_tensor(fake) == {"label": "the program's"}
