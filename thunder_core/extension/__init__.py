"""What recipes, transforms and executors of any package declare: requirements, lookasides, transforms, traits."""
