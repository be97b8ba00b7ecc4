"""Operations that Inductor computes less precisely than PyTorch: which it may compute, and how it is corrected."""
