"""Models of diffusers: find the model of a pipeline, load the model, and create inputs for it."""
