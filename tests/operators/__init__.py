"""What operators compute: values, dtypes, rounding, random numbers, and PyTorch's own samples of them."""
