"""When and where traces are compiled: directly first, behind in another process, and kept on disk."""
