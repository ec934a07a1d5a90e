"""Ternary weights: post-training quantisers, integer-only and packed run times."""
