"""A tiny real model and a batch of it, once per module."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from trainer_harness import (
    batch_of,
    tiny_model,
)

from dart_agent.data_client.image_store import ImageStore
from dart_agent.data_client.wire import Batch
from dart_train.model.policy_model import LoadedModel


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return tmp_path_factory.mktemp("trainer")


@pytest.fixture(scope="module")
def model_dir(root: Path) -> Path:
    return tiny_model(root)[0]


@pytest.fixture(scope="module")
def loaded(root: Path) -> LoadedModel:
    return tiny_model(root)[1]


@pytest.fixture(scope="module")
def images(root: Path) -> ImageStore:
    return ImageStore(root / "images")


@pytest.fixture(scope="module")
def batch(loaded: LoadedModel, images: ImageStore) -> Batch:
    return batch_of(loaded, images)
