"""What an object is made of when it is made anew."""

from __future__ import annotations

import torch

from thunder_core.frontend.acquire.written.rebuilding import attributes_of_tensor
from thunder_core.tracing.capture.fakes.fake import new_mode


def test_what_pytorch_keeps_in_a_tensor_without_data_is_no_attribute_of_the_programs() -> None:
    fake = new_mode().from_tensor(torch.ones(2))
    vars(fake).update(_sizes_capsule=object(), _sym_strides_capsule_len=1, _item_memo_vc=0, label="the program's")
    assert attributes_of_tensor(fake) == {"label": "the program's"}
