"""A fake mode that gives wrong layouts, to test the checks that must detect them."""

from __future__ import annotations

from torch._subclasses.fake_tensor import FakeTensorMode

from thunder_core.tracing.capture.fakes.faithful import FaithfulMode


class UnfaithfulMode(FaithfulMode):
    """A mode with the strides of PyTorch's own fakes."""

    def dispatch(self, func, types, args=(), kwargs=None):
        return FakeTensorMode.dispatch(self, func, types, args, kwargs)
