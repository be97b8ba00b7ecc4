"""Examination of what lies around a computation: acquisition, reads from outside, and the epilogue."""
