"""The room `values/`: what is stored, and how it lies."""
