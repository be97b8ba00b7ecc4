"""Load Hugging Face models: find the files, check the files, and create example inputs."""
