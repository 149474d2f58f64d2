"""Measurements: `python -m bench` compares Joinery with its peers, the other modules measure one thing each."""
