"""Writes of a program to outside objects, as the log of effects stores them."""
