"""What the recorder and the cache must know about the compiler, without importing it.

They are gathered from the compiler's own tables, when the package is built and whenever its source has changed since,
and kept under the state of all source that they come from. A process then starts without tinygrad, which takes half a
second to import, until the first trace is to be compiled.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

import torch

from . import _C


@dataclass(frozen=True)
class Facts:
    lifts: dict[str, list[str]]  # of each operator with a lowering: arguments that may be inputs of a program
    complex_alone: list[str]  # operators with a lowering for complex numbers, and none for others
    recorded: list[str]  # operators that the recorder registers itself for
    settings: list[str]  # names of tinygrad's settings, which it reads from the environment


@functools.cache
def _python() -> str:
    """A digest of versions and of our own source in Python."""
    found = hashlib.blake2b(digest_size=16)
    parts = [torch.__version__.encode(), _tinygrad().encode()]
    parts += [path.read_bytes() for path in sorted(Path(__file__).parent.rglob("*.py"))]
    for part in parts:
        found.update(part + b"\0")
    return found.hexdigest()


@functools.cache
def source() -> str:
    """A digest of versions and of all our own source."""
    built = os.stat(_C.__file__)
    return f"{_python()} {built.st_size} {built.st_mtime_ns}"


def _tinygrad() -> str:
    """Its version; of a checkout, which has none, the state of its files."""
    try:
        return version("tinygrad")
    except PackageNotFoundError:
        found = find_spec("tinygrad")
        files = sorted(Path(found.origin).parent.rglob("*.py")) if found is not None and found.origin else []
        return "".join(f"{file} {file.stat().st_size} {file.stat().st_mtime_ns}\n" for file in files)


def gathered() -> Facts:
    """From the tables themselves."""
    from tinygrad.helpers import ContextVar

    import torch_tinygrad.engine.compile  # noqa: F401  (fills them)

    from . import ops
    from .lower.complex import COMPLEX_LOWERINGS
    from .lower.registry import LOWERINGS

    lifts = {name: sorted(lowering.lifts) for name, lowering in LOWERINGS.items()}
    complex_alone = sorted(set(COMPLEX_LOWERINGS) - set(lifts))
    return Facts(lifts, complex_alone, ops.recorded_names(set(lifts)), sorted(ContextVar._cache))


_KEY = b"facts".ljust(16)
PACKAGED = Path(__file__).with_name("facts.json")


def write_packaged() -> None:
    """When the extension is built."""
    PACKAGED.write_text(json.dumps({"of": _python(), **asdict(gathered())}))


def _packaged() -> Facts | None:
    try:
        data = json.loads(PACKAGED.read_text())
        return Facts(**data) if data.pop("of") == _python() else None
    except (OSError, ValueError, TypeError, KeyError):  # none, or damaged
        return None


@functools.cache
def facts() -> Facts:
    if (packaged := _packaged()) is not None:
        return packaged
    from . import cache

    _C.set_disk_cache(cache.folder(), source(), cache.BOUND)
    try:
        return Facts(**json.loads(_C.load_note(_KEY) or ""))
    except (ValueError, TypeError):  # none, or damaged
        found = gathered()
        _C.save_note(_KEY, json.dumps(asdict(found)))
        return found
