"""The compile service: another process compiles traces. Nobody waits for a compiler, and nobody's process dies of one.

`client` is this process's side. It starts the helper (`helper`) at the first request. The helper (`worker`) forks, for
each request, a process with bounds on its time and memory (`bounds`), which leaves a program's bytes or a reason.
"""
