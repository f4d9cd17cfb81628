"""What `scripts/make_vectors.py` writes, a module for each layer of the protocol."""
