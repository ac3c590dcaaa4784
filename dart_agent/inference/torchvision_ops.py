"""Make transformers' image processors importable beside a torchvision that cannot load its C++ operators.

Role: `ensure_torchvision_operators()` is called before the first import of torchvision (directly, or through
transformers or vLLM). A torchvision wheel built for another torch has no operator library, and its own import
then fails with "operator torchvision::nms does not exist". Declaring the schemas is enough: image resizing and
normalising use none of them.
Rule: nothing is declared when torchvision brings its own operators, or is not installed.
Non-goals: implementing the operators. Calling one of them still fails, with torch's own error.
"""

from __future__ import annotations

import importlib.util
import sys
from typing import Any

_SCHEMAS = {
    "nms": "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms": "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
}
# A torch library must stay referenced: its declarations vanish with it.
_declared: list[Any] = []


def ensure_torchvision_operators() -> bool:
    """Declare what torchvision's import needs, once per process.

    Returns True when this call or an earlier one declared operators, False when nothing had to be done.
    """
    if _declared:
        return True
    if "torchvision" in sys.modules or importlib.util.find_spec("torchvision") is None:
        return False
    import torch

    if _native_operators_load():
        return False
    library = torch.library.Library("torchvision", "DEF")
    for name, schema in _SCHEMAS.items():
        if not hasattr(torch.ops.torchvision, name):
            library.define(schema)
    _declared.append(library)
    return True


def _native_operators_load() -> bool:
    """Whether torchvision's own operator library loads into this process."""
    import torch

    spec = importlib.util.find_spec("torchvision")
    if spec is None or not spec.submodule_search_locations:
        return False
    from pathlib import Path

    for location in spec.submodule_search_locations:
        for library_path in sorted(Path(location).glob("_C*.so")):
            try:
                torch.ops.load_library(str(library_path))
            except OSError:
                return False
            return True
    return False
