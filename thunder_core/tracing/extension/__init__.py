"""Declarations of recipes, transforms and executors in any package: requirements, lookasides, transforms, traits."""
