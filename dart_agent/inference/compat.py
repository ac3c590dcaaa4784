"""Adaptations to published checkpoints, to wheels built for another torch and to vLLM, made before transformers or vLLM is used.

Role: `patch_torch_extras()` makes transformers and vLLM importable beside torchvision, torchaudio and torchcodec wheels built for another
torch. Such a wheel cannot load its operator library. For torchvision it is enough to declare the schemas that its import looks up: resizing
and normalising images use none of them. torchaudio and torchcodec are not used at all, so they are hidden and importers see them as not
installed. `register_legacy_processors()` registers a class name that Qwen2.5-VL checkpoints of early 2025 use and transformers renamed.
`keep_cached_images()` keeps an engine alive whose requests go on after its caches were cleared.
Rule: a package that loads, or is not installed, is left alone; checkpoints with the new name are not touched. `import torch` calls the
first (entry point `torch.backends`), so that programs of users need nothing of ours; `dart_train.model` and vLLM's general plugin call
both.
Non-goals: implementing the operators. Calling one of them still fails, with torch's own error.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import sys
from pathlib import Path
from typing import Any

_TORCHVISION_SCHEMAS = {
    "nms": "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms": "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
}
_LIBRARIES = {
    "torchvision": "_C*.so",
    "torchaudio": "lib/_torchaudio*.so",
    "torchcodec": "libtorchcodec_image.so",
}
"""What a package loads when it is imported, as a pattern in its folder."""
_HIDDEN_IF_BROKEN = ("torchaudio", "torchcodec")
_OLD_NAME = "Qwen2_5_VLImageProcessor"
_KEEPS_IMAGES = "_dart_keeps_images"
# A torch library must stay referenced: its declarations vanish with it.
_declared: list[Any] = []


def patch_torch_extras() -> None:
    """Declare torchvision's operators, hide torchaudio and torchcodec, where their own libraries do not load; idempotent."""
    # Looking for a library imports torch, which calls this function: what it declared there is not declared again.
    if (
        "torchvision" not in sys.modules
        and _library_is_broken("torchvision", _LIBRARIES["torchvision"])
        and not _declared
    ):
        from torch.library import Library

        library = Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
        for schema in _TORCHVISION_SCHEMAS.values():
            library.define(schema)  # type: ignore[no-untyped-call]
        _declared.append(library)
    for package in _HIDDEN_IF_BROKEN:
        if package not in sys.modules and _library_is_broken(package, _LIBRARIES[package]):
            sys.modules[package] = None  # type: ignore[assignment]


def broken_torch_extras() -> list[str]:
    """Return which of torchvision, torchaudio and torchcodec are installed, but built for another torch than the one that is."""
    return [package for package, pattern in _LIBRARIES.items() if _library_is_broken(package, pattern)]


def _library_is_broken(package: str, pattern: str) -> bool:
    """Whether `package` is installed and its operator library, found by `pattern`, cannot be loaded."""
    spec = importlib.util.find_spec(package)
    if spec is None:
        return False
    import torch  # noqa: F401 - the operator libraries link against torch's own

    for location in spec.submodule_search_locations or ():
        for path in sorted(Path(location).glob(pattern)):
            try:
                ctypes.CDLL(str(path))
            except OSError:
                return True
    return False


def register_legacy_processors() -> None:
    """Register the old name as one more form of the architecture's image processor; idempotent."""
    from transformers import AutoImageProcessor, Qwen2_5_VLConfig, Qwen2VLImageProcessor

    renamed = type(_OLD_NAME, (Qwen2VLImageProcessor,), {})
    AutoImageProcessor.register(Qwen2_5_VLConfig, image_processor_classes={_OLD_NAME: renamed}, exist_ok=True)


def keep_cached_images() -> None:
    """Let vLLM's first model runner keep the pixels of images that its prefix cache covers; idempotent.

    vLLM hands a new request to its runner without the pixels of images that the prefix cache covers. A request that goes on after a pause
    that cleared the caches, or after a preemption, is not handed to the first runner again. That runner then encodes images without pixels,
    which ends the engine. The second runner is handed the whole request again, and is left as it is.
    """
    from vllm.v1.core.sched import output

    made = output.NewRequestData.from_request.__func__
    if hasattr(made, _KEEPS_IMAGES) or not hasattr(output, "strip_covered_mm_data"):
        return

    @functools.wraps(made)
    def with_images(cls: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        data = made(cls, request, *args, **kwargs)
        if data.prefill_token_ids is None:  # only the second runner has them
            data.mm_features = request.mm_features
        return data

    setattr(with_images, _KEEPS_IMAGES, True)
    output.NewRequestData.from_request = classmethod(with_images)
