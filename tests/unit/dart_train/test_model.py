"""A made-here model directory loads, and scores tokens as a plain forward pass does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dart_agent.prompts.suppressed_tokens import suppressed_token_ids
from dart_train.model.init_model import init_model
from dart_train.model.policy_model import LoadedModel, ModelNotFoundError, load_model, pixel_inputs, token_logprobs
from dart_train.types import TokenBatch

torch = pytest.importorskip("torch")


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return init_model("tiny", tmp_path_factory.mktemp("models") / "tiny", seed=3)


@pytest.fixture(scope="module")
def loaded(model_dir: Path) -> LoadedModel:
    return load_model(model_dir)


def _prompt(loaded: LoadedModel, question: str, image: np.ndarray) -> dict[str, torch.Tensor]:
    messages = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": question}]}]
    text = loaded.processor.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    return dict(loaded.processor(text=[text], images=[image], return_tensors="pt"))


def test_same_seed_same_weights_other_seed_others(model_dir: Path, tmp_path: Path) -> None:
    first = load_model(model_dir).model.state_dict()
    same = load_model(init_model("tiny", tmp_path / "same", seed=3)).model.state_dict()
    other = load_model(init_model("tiny", tmp_path / "other", seed=4)).model.state_dict()
    assert all(torch.equal(first[name], same[name]) for name in first)
    assert not all(torch.equal(first[name], other[name]) for name in first)


def test_init_refuses_a_directory_with_files(model_dir: Path) -> None:
    with pytest.raises(FileExistsError, match="not empty"):
        init_model("tiny", model_dir)


def test_unknown_preset_names_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="choose one of tiny"):
        init_model("huge", tmp_path / "x")


def test_missing_model_path_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"there is no folder .*/nothing: give the folder of a saved model"):
        load_model(tmp_path / "nothing")


def test_token_logprobs_equal_unpadded_forward_passes(loaded: LoadedModel) -> None:
    rng = np.random.default_rng(0)
    images = [rng.integers(0, 256, (160, 256, 3), dtype=np.uint8) for _ in range(2)]
    answers = ["Thought: OK\nAction: wait()<|im_end|>", "Thought: Olive\nAction: click(start_box='(12,40)')<|im_end|>"]
    rows, wanted = [], []
    for image, question, answer in zip(images, ["Press OK", "Choose Olive then"], answers, strict=True):
        inputs = _prompt(loaded, question, image)
        prompt_ids = inputs["input_ids"][0].tolist()
        answer_ids = loaded.tokenizer(answer, add_special_tokens=False).input_ids
        rows.append((prompt_ids, answer_ids))
        ids = torch.tensor([prompt_ids + answer_ids])
        with torch.no_grad():
            logits = loaded.model(
                input_ids=ids,
                pixel_values=inputs["pixel_values"],
                image_grid_thw=inputs["image_grid_thw"],
                mm_token_type_ids=(ids == loaded.model.config.image_token_id).int(),
            ).logits[0]
        logits[:, list(suppressed_token_ids(loaded.model.config))] = -torch.inf
        scaled = (logits[len(prompt_ids) - 1 : -1] / 0.7).log_softmax(-1)
        wanted.append(scaled.gather(-1, torch.tensor(answer_ids).unsqueeze(-1)).squeeze(-1))
    width = max(len(prompt) + len(answer) for prompt, answer in rows)
    ids_BT = torch.zeros((2, width), dtype=torch.long)
    attention_BT, response_BT = torch.zeros_like(ids_BT), torch.zeros_like(ids_BT)
    for index, (prompt, answer) in enumerate(rows):
        end = len(prompt) + len(answer)
        ids_BT[index, :end] = torch.tensor(prompt + answer)
        attention_BT[index, :end] = 1
        response_BT[index, len(prompt) : end] = 1
    pixels, grid = pixel_inputs(loaded.processor, images)
    batch = TokenBatch(ids_BT, attention_BT, response_BT, pixels, grid)
    with torch.no_grad():
        logprobs_BT, entropy_BT = token_logprobs(loaded.model, batch, temperature=0.7)
    for index, (prompt, answer) in enumerate(rows):
        torch.testing.assert_close(
            logprobs_BT[index, len(prompt) : len(prompt) + len(answer)], wanted[index], atol=1e-4, rtol=1e-4
        )
    assert bool((logprobs_BT[response_BT == 0] == 0).all())
    assert bool((entropy_BT[response_BT == 1] > 0).all())
    assert bool((entropy_BT[response_BT == 0] == 0).all())


def test_gradients_reach_the_pixels_path(loaded: LoadedModel) -> None:
    inputs = _prompt(loaded, "Press OK", np.full((160, 256, 3), 200, np.uint8))
    ids = inputs["input_ids"]
    response = torch.zeros_like(ids)
    response[:, -1] = 1
    logprobs_BT, _ = token_logprobs(
        loaded.model, TokenBatch(ids, torch.ones_like(ids), response, inputs["pixel_values"], inputs["image_grid_thw"])
    )
    loaded.model.zero_grad()
    logprobs_BT.sum().backward()
    assert float(loaded.model.model.visual.patch_embed.proj.weight.grad.abs().sum()) > 0
