"""The base of what reports consist of: frozen data that JSON holds."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class ReportFacts(BaseModel):
    """Frozen data that refuses unknown keys; infinities and NaN survive JSON."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")
