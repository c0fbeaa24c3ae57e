"""Other people's libraries on the device, unmodified, against the same on the CPU: `make ecosystem`."""
