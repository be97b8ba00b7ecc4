"""From a computation to what runs: who runs each line, and when each tensor is let go."""
