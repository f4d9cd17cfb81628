"""Recall: finding again what was remembered."""
