"""Encrypted inference (CKKS): quadratic activations by decision-aware separation, run on ciphertexts."""
