"""Residue arithmetic of CKKS in kernels of our own: every result equals Microsoft SEAL's bit for bit."""
