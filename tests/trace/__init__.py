"""The room `trace/`: regions as sets of elements, and passes over recorded nodes."""
