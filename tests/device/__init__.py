"""`torch.tiny` itself, which device is behind it, and its memory."""
