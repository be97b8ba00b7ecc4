"""Requests of the commands, checked before anything is loaded."""
