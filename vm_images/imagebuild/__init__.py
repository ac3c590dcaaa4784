"""Turns a recipe into a root file system.

Role: recipe, manifest, store, bootstrap, layers; the command line is `vm_images/build.py`.
Rule: standard library only (a fresh machine runs it before anything is installed); imports nothing of DART.
"""
