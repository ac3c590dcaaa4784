"""What the files of a checkpoint say, without loading it.

Role: `resolve_checkpoint` gives the directory of a path or name; `read_checkpoint_info` tells which prompts and pictures suit it. Rule:
local files only, by JSON and the headers of weights: nothing is downloaded, neither torch nor transformers is imported, and what cannot be
served or trained is refused here, before any process starts. Non-goals: tensors (`weights.files`), loading (vLLM,
`dart_train.model.policy_model`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dart_agent.errors import ConfigError, WeightUpdateError
from dart_agent.inference.weights.files import read_header
from dart_agent.prompts.builder import PromptSpec, preset_names

PROMPT_KEY = "dart_prompt"
"""Names the prompt preset in the configuration of a model made here (`dart_train.model.init_model`)."""
VISION_DEFAULTS: Mapping[str, int] = {"qwen2_vl": 14, "qwen2_5_vl": 14, "qwen3_vl": 16}
"""Pixels per side of a patch, where config.json does not say."""
MERGE_DEFAULT = 2
"""Patches per side of a visual token, where it does not say."""
PROMPTS: Mapping[str, str] = {"qwen2_vl": "qwen2", "qwen2_5_vl": "uitars", "qwen3_vl": "qwen"}
"""Our own prompt for each architecture that can be trained, by its name in config.json."""
_OTHER_FILES = (
    ("config.json",),
    ("tokenizer.json", "vocab.json"),
    ("processor_config.json", "preprocessor_config.json"),
)
"""What a checkpoint has beside its weights: one file of each group."""
_LFS_POINTER = b"version https://git-lfs"
"""Begin of the text that stands in the place of a file which Git LFS has not fetched."""


@dataclass(frozen=True, slots=True)
class CheckpointInfo:
    """prompt: the preset that suits its architecture.

    tied: its output embedding is its input embedding, even where the files hold both. image_token_px: side of the square that becomes
    one token, image_token_id: that token. min_pixels, max_pixels: of pictures that its image processor does not resize.
    """

    prompt: str
    tied: bool
    image_token_px: int
    image_token_id: int
    min_pixels: int
    max_pixels: int

    def count_image_tokens(self, spec: PromptSpec, screen_wh: tuple[int, int]) -> int:
        """Tokens of a screen's picture in the prompt.

        Raises ConfigError when the image processor would resize the picture again: the model would then write points of another picture
        than the one it is said to see.
        """
        width, height = spec.picture_wh(screen_wh)
        fits = width % self.image_token_px == height % self.image_token_px == 0
        if not (fits and self.min_pixels <= width * height <= self.max_pixels):
            raise ConfigError(
                f"the prompt {spec.preset} shows a {screen_wh[0]}x{screen_wh[1]} screen as {width}x{height} pixels, but this checkpoint's "
                f"image processor takes multiples of {self.image_token_px} and {self.min_pixels} to {self.max_pixels} pixels in all: "
                "choose another resolution or prompt"
            )
        return width * height // self.image_token_px**2


def resolve_checkpoint(name_or_path: str | Path) -> Path:
    """Directory of a complete checkpoint: the path itself, or the name's place in the local Hugging Face cache.

    Raises ConfigError when it is not there or not whole, also where a file is a pointer of Git LFS or weights are cut off. A name is never
    fetched: a run must not wait for 16 GB half-way.
    """
    given = str(name_or_path)
    folder = Path(given).expanduser()
    if folder.is_dir():
        problem = f"{given} is no complete model"
        _check_complete(folder, problem, "give the folder of a saved model")
        _check_whole(folder, problem, "get the file again")
        return folder.absolute()
    if given.startswith((".", "/", "~")) or given.count("/") != 1:
        raise ConfigError(
            f"there is no folder {given}: give the folder of a saved model, or make one with `dart-train init-model`"
        )
    cached = _cached(given)
    if cached is None:
        raise ConfigError(
            f"there is neither a folder {given} nor a checkpoint of that name in the local Hugging Face cache: "
            f"correct the path, or fetch the checkpoint first with `hf download {given}`"
        )
    problem = f"{given} is not complete in the local Hugging Face cache"
    _check_complete(cached, problem, f"run `hf download {given}`")
    _check_whole(cached, problem, f"run `hf download {given} --force-download`")
    return cached


def is_lfs_pointer(path: Path) -> bool:
    """Whether a file is the pointer that Git LFS leaves where it has not fetched the file itself.

    Args:
        path: The file.

    Returns:
        Whether it begins as such pointers do.
    """
    with path.open("rb") as file:
        return file.read(len(_LFS_POINTER)) == _LFS_POINTER


def read_checkpoint_info(directory: Path) -> CheckpointInfo:
    """Of a directory that `resolve_checkpoint` gave. Raises ConfigError for an architecture that cannot be trained here."""
    config = _read_json(directory / "config.json")
    wanted = config.get(PROMPT_KEY) or PROMPTS.get(config.get("model_type", ""))
    prompt = next((name for name in preset_names() if name == wanted), None)
    if prompt is None:
        raise ConfigError(
            f"{directory} holds a model of type {config.get('model_type')!r}: give a Qwen2-VL (UI-TARS), Qwen2.5-VL (UI-TARS-1.5) or "
            "Qwen3-VL checkpoint"
        )
    vision = config["vision_config"]
    patch = (
        vision.get("patch_size") or VISION_DEFAULTS[config["model_type"]]
    )  # fine-tunes of Qwen2-VL leave defaults out
    image_token_px = int(patch) * int(vision.get("spatial_merge_size") or MERGE_DEFAULT)
    settings = _image_processor(directory)
    size = settings.get("size") or {}
    return CheckpointInfo(
        prompt=prompt,
        tied=bool(config.get("tie_word_embeddings", False)),
        image_token_px=image_token_px,
        image_token_id=int(config["image_token_id"]),
        min_pixels=int(settings.get("min_pixels") or size.get("shortest_edge") or 0),
        max_pixels=int(settings.get("max_pixels") or size.get("longest_edge") or 2**31),
    )


def _cached(name: str) -> Path | None:
    if find_spec("huggingface_hub") is None:
        return None
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, local_files_only=True))
    except (LocalEntryNotFoundError, HFValidationError):
        return None


def _check_complete(folder: Path, problem: str, fix: str) -> None:
    for names in (*_OTHER_FILES, *((shard,) for shard in _shards(folder))):
        if not any((folder / name).is_file() for name in names):
            raise ConfigError(f"{problem}, {' or '.join(names)} is missing: {fix}")


def _check_whole(folder: Path, problem: str, fix: str) -> None:
    """Check that the files of a complete checkpoint are the files themselves, and that the weights are not cut off."""
    shards = _shards(folder)
    for name in (*(name for names in _OTHER_FILES for name in names), *shards):
        if (folder / name).is_file() and is_lfs_pointer(folder / name):
            raise ConfigError(
                f"{problem}, {name} is a pointer of Git LFS: fetch the file itself with `git lfs pull`, or {fix}"
            )
    for name in shards:
        try:
            read_header(folder / name)
        except WeightUpdateError as error:
            raise ConfigError(f"{problem}, {error}: {fix}") from None


def _shards(folder: Path) -> list[str]:
    index = folder / "model.safetensors.index.json"
    found = set(_read_json(index)["weight_map"].values()) if index.is_file() else set()
    return sorted(found or {"model.safetensors"})


def _image_processor(directory: Path) -> dict[str, Any]:
    """Settings of the image processor: nested in newer checkpoints, a file of its own in older ones."""
    newer = directory / "processor_config.json"
    nested = _read_json(newer).get("image_processor") if newer.is_file() else None
    return nested or _read_json(directory / "preprocessor_config.json")


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read as JSON: {error}") from None
    return content
