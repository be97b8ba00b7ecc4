"""Requests for a model, checked before anything is loaded."""
