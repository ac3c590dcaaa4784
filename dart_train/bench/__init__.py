"""Measuring on this host what a plan predicts: train steps, published versions, inference workers."""
