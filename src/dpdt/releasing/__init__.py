"""A model that can be handed over, and a claim about it that others can check.

A release is a folder: the model, what is needed to rebuild it, a certificate, and a model card.
`verify` and `budget` need no torch, and run nothing that they find in a folder.
"""
