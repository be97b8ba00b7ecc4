"""Generation of text by `generate`: trace its calls, measure its speed, and validate its tokens."""
