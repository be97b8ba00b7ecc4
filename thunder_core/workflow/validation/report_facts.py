"""The base class of the data in reports: frozen, and stored as JSON."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class ReportFacts(BaseModel):
    """Frozen data that rejects unknown keys; infinities and NaN are stored in JSON as strings."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")
