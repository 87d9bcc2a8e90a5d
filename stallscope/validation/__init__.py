"""Predictions against measured tables: rows, what the model says of each, and how far apart they are."""
