"""Requests for a model, which are checked before anything is loaded."""
