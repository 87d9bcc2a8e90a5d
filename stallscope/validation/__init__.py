"""Predictions against measured tables: which rows there are, what the model says of each, and how far apart they are."""
