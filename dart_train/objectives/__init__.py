"""Objectives of policy optimisation: advantages, surrogates, corrections, aggregation, and the algorithms made of them."""
