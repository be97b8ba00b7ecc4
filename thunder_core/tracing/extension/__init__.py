"""Declarations of recipes, transforms and executors of any package: requirements, lookasides, transforms, traits."""
