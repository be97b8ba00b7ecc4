"""The last module that the fork server imports: its objects live on, so no rank collects or copies them."""

from __future__ import annotations

import gc

from tests.conftest import THRESHOLDS

gc.collect()
gc.freeze()
gc.set_threshold(*THRESHOLDS)
