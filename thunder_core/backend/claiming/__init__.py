"""Claiming: the choice of an executor for each bound symbol, the definition of executors, and freeing."""
