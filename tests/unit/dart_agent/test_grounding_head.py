"""The action head against a reference in float64, in all three families, and the published layout on disk."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import numpy as np  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

from dart_agent.errors import ConfigError  # noqa: E402
from dart_agent.grounding.answers import answer_text  # noqa: E402
from dart_agent.grounding.forward import refusal_probabilities, run_forward  # noqa: E402
from dart_agent.grounding.head import HEADS, ActionHead  # noqa: E402
from dart_agent.grounding.model import HEAD_PREFIX, SETTINGS_KEY, head_weights, load_grounding_model  # noqa: E402
from dart_agent.grounding.packing import NO_LABEL, Question, QuestionPacker, pack  # noqa: E402
from dart_agent.grounding.verifier import load_verifier  # noqa: E402
from dart_train.model.init_model import init_model  # noqa: E402
from tests.unit.dart_agent.grounding_models import FAMILIES, relative_error, screen, small_model  # noqa: E402

LFS_POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:0123\nsize 16\n"
_HEADER = b'{"a":{"dtype":"F99","shape":[1],"data_offsets":[0,4]}}'
UNKNOWN_TYPE = len(_HEADER).to_bytes(8, "little") + _HEADER + bytes(4)
"""A file of weights as long as its header says, with a data type that safetensors does not know."""


def reference_logits(
    head: ActionHead, visual: torch.Tensor, pointers: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """GUI-Actor's equations 2 to 4, written out head by head: logits [K, M], with context [M, D] and queries [K, D]."""
    width = visual.shape[1] // HEADS
    weight, bias = head.self_attention.in_proj_weight, head.self_attention.in_proj_bias
    query, key, value = (visual @ weight.T + bias).chunk(3, dim=1)
    parts = []
    for number in range(HEADS):
        columns = slice(number * width, (number + 1) * width)
        scores = query[:, columns] @ key[:, columns].T / math.sqrt(width)
        shares = torch.exp(scores - scores.max(dim=1, keepdim=True).values)
        parts.append(shares / shares.sum(dim=1, keepdim=True) @ value[:, columns])
    out = head.self_attention.out_proj
    mixed = visual + torch.cat(parts, dim=1) @ out.weight.T + out.bias
    centred = mixed - mixed.mean(dim=1, keepdim=True)
    scaled = centred / torch.sqrt((centred**2).mean(dim=1, keepdim=True) + head.layer_norm.eps)
    context = scaled * head.layer_norm.weight + head.layer_norm.bias

    def project(layers: torch.nn.Sequential, inputs: torch.Tensor) -> torch.Tensor:
        inner = inputs @ layers[0].weight.T + layers[0].bias
        inner = inner * 0.5 * (1 + torch.erf(inner / math.sqrt(2)))
        return inner @ layers[2].weight.T + layers[2].bias

    keys, queries = project(head.projection_enc, context), project(head.projection_dec, pointers)
    return queries @ keys.T / math.sqrt(visual.shape[1]), context, queries


def reference_offset_logits(head: ActionHead, context: torch.Tensor, queries: torch.Tensor) -> torch.Tensor:
    """o = (W_p v~ + b_p) . W_q q / sqrt(R), for one pointer, cell and part after the other; [K, M, P]."""
    assert head.offset is not None
    wanted, (width, _) = [], head.offset.query.weight.shape
    for query in queries:
        narrow = head.offset.query.weight @ query
        for cell in context:
            for part in range(head.offset_parts**2):
                rows = slice(part * width, (part + 1) * width)
                key = head.offset.key.weight[rows] @ cell + head.offset.key.bias[rows]
                wanted.append((key * narrow).sum() / math.sqrt(width))
    return torch.stack(wanted).reshape(len(queries), len(context), head.offset_parts**2)


def test_head_and_gradients_equal_the_reference_in_float64() -> None:
    torch.manual_seed(1)
    head = ActionHead(32).double().eval()
    visual = torch.randn(12, 32, dtype=torch.float64, requires_grad=True)
    pointers = torch.randn(2, 32, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(2, 12, dtype=torch.float64)
    leaves = [visual, pointers, *(p for name, p in head.named_parameters())]
    ours, theirs = head(visual, pointers), reference_logits(head, visual, pointers)[0]
    assert torch.allclose(ours, theirs, atol=1e-12)
    found = torch.autograd.grad((ours.log_softmax(1) * weights).sum(), leaves)
    wanted = torch.autograd.grad((theirs.log_softmax(1) * weights).sum(), leaves)
    for one, other in zip(found, wanted, strict=True):
        assert torch.allclose(one, other, atol=1e-10)
    assert max(float(gradient.abs().max()) for gradient in found) > 0.1


def test_head_with_offsets_and_its_gradients_equal_the_reference_in_float64() -> None:
    torch.manual_seed(3)
    head = ActionHead(32, offset_parts=3).double().eval()
    assert head.offset is not None
    for parameter in head.offset.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    visual = torch.randn(6, 32, dtype=torch.float64, requires_grad=True)
    pointers = torch.randn(2, 32, dtype=torch.float64, requires_grad=True)
    cells, parts = torch.randn(2, 6, dtype=torch.float64), torch.randn(2, 6, 9, dtype=torch.float64)
    leaves = [visual, pointers, *head.parameters()]
    context = head.context(visual)
    ours = head.attend(context, pointers), head.all_offset_logits(context, pointers)
    logits, context, queries = reference_logits(head, visual, pointers)
    theirs = logits, reference_offset_logits(head, context, queries)
    for one, other in zip(ours, theirs, strict=True):
        assert relative_error(one, other) <= 1e-12
    found, wanted = (torch.autograd.grad((a * cells).sum() + (o * parts).sum(), leaves) for a, o in (ours, theirs))
    assert all(relative_error(one, other) <= 1e-10 for one, other in zip(found, wanted, strict=True))
    assert all(float(gradient.abs().max()) > 1e-3 for gradient in wanted)


def test_head_has_as_many_parameters_as_published() -> None:
    head = ActionHead(64)
    assert sum(p.numel() for p in head.parameters()) == 8 * 64**2 + 10 * 64  # 4 d^2 + 2 MLPs of 2 d^2, biases and norm


def test_offsets_are_uniform_before_training() -> None:
    head = ActionHead(32, offset_parts=4)
    logits = head.offset_logits(torch.randn(3, 32), torch.randn(3, 32))
    assert logits.shape == (3, 16)
    assert float(logits.detach().abs().max()) == 0
    with pytest.raises(ValueError, match="no offsets"):
        ActionHead(32).offset_logits(torch.randn(1, 32), torch.randn(1, 32))
    with pytest.raises(ValueError, match="no offsets"):
        ActionHead(32).all_offset_logits(torch.randn(1, 32), torch.randn(1, 32))


def test_offsets_are_the_product_of_a_key_for_each_part_and_a_query() -> None:
    torch.manual_seed(0)
    head = ActionHead(136, offset_parts=2).double()
    assert head.offset is not None
    torch.nn.init.normal_(head.offset.key.weight)
    torch.nn.init.normal_(head.offset.key.bias)
    context, pointers = torch.randn(3, 136).double(), torch.randn(3, 136).double()
    found = head.offset_logits(context, pointers)
    for row in range(3):
        query = head.offset.query.weight @ head.projection_dec(pointers[row])
        for part in range(4):
            lines = slice(128 * part, 128 * (part + 1))
            key = head.offset.key.weight[lines] @ context[row] + head.offset.key.bias[lines]
            assert float(found[row, part].detach()) == pytest.approx(float((key @ query).detach()) / 128**0.5)
    every_KMP = head.all_offset_logits(context, pointers)
    assert every_KMP.shape == (3, 3, 4)
    assert torch.allclose(every_KMP[range(3), range(3)], found, atol=1e-12)


def test_head_refuses_a_size_that_its_heads_do_not_divide() -> None:
    with pytest.raises(ValueError, match="multiple of 8"):
        ActionHead(30)


@pytest.mark.parametrize("family", FAMILIES)
def test_packed_questions_see_what_they_see_alone(family: str, tmp_path: Path) -> None:
    model = small_model(family, tmp_path)
    images = [screen(112, 84), screen(168, 56, seed=1)]
    asked = [
        [
            Question.point("click the button Apple"),
            Question.point("the field", targets=2),
            Question.point("Save", targets=0),
        ],
        [Question.point("click the Save button")],
    ]
    with torch.no_grad():
        packed = pack(model, images, asked)
        together = run_forward(model, packed)
        refused = refusal_probabilities(model, packed, together)
        for row, (image, questions) in enumerate(zip(images, asked, strict=True)):
            for column, question in enumerate(questions):
                single = pack(model, [image], [[question]])
                alone = run_forward(model, single)
                ours, theirs = together.questions[row][column], alone.questions[0][0]
                assert ours.logits_KM.shape == (question.answer.count("<|pointer_pad|>"), packed.grids[row].cells)
                assert torch.allclose(ours.logits_KM, theirs.logits_KM, atol=1e-5)
                assert refused[row][column] == pytest.approx(
                    refusal_probabilities(model, single, alone)[0][0], abs=1e-5
                )


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_of_kept_texts_are_those_of_new_ones(family: str, tmp_path: Path) -> None:
    model = small_model(family, tmp_path)
    apple, save, two = (
        Question.point("click Apple"),
        Question.point("click Save", targets=0),
        Question.point("x", targets=2),
    )
    small, large = screen(112, 84), screen(168, 56, seed=1)
    packer = QuestionPacker(model)
    for images, asked in (
        ([small, large], [[apple, two], [save]]),
        ([large, small], [[two, save, apple], [apple]]),
        ([small], [[save]]),
    ):
        kept, new = packer.pack(images, asked), pack(model, images, asked)
        assert (kept.grids, kept.pointers, kept.decisions) == (new.grids, new.pointers, new.decisions)
        for name in ("input_ids_BT", "labels_BT", "position_ids_3BT", "attention_mask_B1TT", "pixel_values"):
            assert torch.equal(getattr(kept, name), getattr(new, name)), name


@pytest.mark.parametrize("family", FAMILIES)
def test_head_reads_embeddings_before_and_states_after_the_language_model(family: str, tmp_path: Path) -> None:
    """The same tensors as transformers' own `hidden_states`: layer 0 at image tokens, the last after the norm at the pad."""
    model = small_model(family, tmp_path)
    packed = pack(model, [screen(112, 84)], [[Question.point("click the button Apple")]])
    with torch.no_grad():
        ours = run_forward(model, packed).questions[0][0]
        states = model.backbone(
            input_ids=packed.input_ids_BT,
            attention_mask=torch.ones_like(packed.input_ids_BT),
            pixel_values=packed.pixel_values,
            image_grid_thw=packed.image_grid_thw,
            mm_token_type_ids=(packed.input_ids_BT == model.backbone.config.image_token_id).to(torch.int32),
            output_hidden_states=True,
        ).hidden_states
        visual = states[0][packed.input_ids_BT == model.backbone.config.image_token_id]
        pointers = states[-1][packed.input_ids_BT == model.pad_id]
        assert torch.allclose(ours.logits_KM, model.head(visual, pointers), atol=1e-5)


def test_cells_come_from_the_processor(tmp_path: Path) -> None:
    for family, side in (("qwen2_5_vl", 28), ("qwen3_vl", 32)):
        model = small_model(family, tmp_path / family)
        grid = pack(model, [screen(4 * side, 2 * side)], [[Question.point("Save")]]).grids[0]
        assert (grid.columns, grid.rows, grid.cell_wh) == (4, 2, (side, side))


def test_forced_tokens_and_prompts_are_not_learnt(tmp_path: Path) -> None:
    model = small_model("qwen3_vl", tmp_path)
    packed = pack(model, [screen()], [[Question.point("click the button Apple")]])
    labels = packed.labels_BT[0]
    learnt = model.tokenizer.decode(labels[labels != NO_LABEL])
    assert learnt == answer_text(1).replace("<|pointer_end|>", "")


def test_new_embeddings_are_the_mean_of_the_old(tmp_path: Path) -> None:
    model = small_model("qwen3_vl", tmp_path)
    old = len(model.tokenizer) - 5
    for embedding in (model.backbone.get_input_embeddings(), model.backbone.get_output_embeddings()):
        assert embedding.weight.shape[0] == len(model.tokenizer)
        assert torch.allclose(embedding.weight[old:], embedding.weight[:old].mean(dim=0).expand(5, -1))


@pytest.mark.parametrize("family", FAMILIES)
def test_layout_on_disk_is_the_published_one(family: str, tmp_path: Path) -> None:
    model = small_model(family, tmp_path, offset_parts=2)
    path = tmp_path / "model"
    path.mkdir()
    model.save(path)
    config = json.loads((path / "config.json").read_text())
    weights = load_file(path / "model.safetensors")
    head = {name.removeprefix(HEAD_PREFIX) for name in weights if name.startswith(HEAD_PREFIX)}
    published = {
        f"{part}.{layer}.{kind}"
        for part in ("projection_enc", "projection_dec")
        for layer in (0, 2)
        for kind in ("weight", "bias")
    }
    published |= {
        "self_attention.in_proj_weight",
        "self_attention.in_proj_bias",
        "layer_norm.weight",
        "layer_norm.bias",
    }
    published |= {"self_attention.out_proj.weight", "self_attention.out_proj.bias"}
    assert {name for name in head if not name.startswith("offset")} == published
    assert config["architectures"][0].endswith("ForConditionalGenerationWithPointer")
    assert config["pointer_pad_token_id"] == len(model.tokenizer) - 1
    packed = pack(model, [screen()], [[Question.point("click the button Apple")]])
    again = load_grounding_model(path)
    with torch.no_grad():
        ours = run_forward(model, packed).questions[0][0].logits_KM
        theirs = (
            run_forward(again, pack(again, [screen()], [[Question.point("click the button Apple")]]))
            .questions[0][0]
            .logits_KM
        )
    assert torch.allclose(ours, theirs, atol=1e-6)
    assert again.head.offset_parts == 2


def test_a_checkpoint_of_gui_actor_gets_the_prompt_of_its_family(tmp_path: Path) -> None:
    model = small_model("qwen2_5_vl", tmp_path)
    path = tmp_path / "model"
    path.mkdir()
    model.save(path)
    config = json.loads((path / "config.json").read_text())
    del config[SETTINGS_KEY]
    (path / "config.json").write_text(json.dumps(config))
    again = load_grounding_model(path)
    assert again.head.offset is None
    assert again.system.startswith("You are a GUI agent. Given a screenshot")


def test_sharded_weights_get_a_file_for_the_head(tmp_path: Path) -> None:
    model = small_model("qwen3_vl", tmp_path)
    path = tmp_path / "model"
    path.mkdir()
    from dart_agent.grounding.model import _add_weights

    save_file({"lm_head.weight": torch.zeros(2)}, path / "model-00001-of-00001.safetensors")
    (path / "model.safetensors.index.json").write_text(
        json.dumps(
            {"metadata": {"total_size": 8}, "weight_map": {"lm_head.weight": "model-00001-of-00001.safetensors"}}
        )
    )
    state = {HEAD_PREFIX + name: tensor for name, tensor in model.head.state_dict().items()}
    _add_weights(path, state)
    index = json.loads((path / "model.safetensors.index.json").read_text())
    assert {index["weight_map"][name] for name in state} == {"model-pointer-head.safetensors"}
    assert index["metadata"]["total_size"] == 8 + sum(4 * tensor.numel() for tensor in state.values())


def test_models_without_a_head_are_refused(tmp_path: Path) -> None:
    start = init_model("tiny", tmp_path / "start")
    with pytest.raises(ConfigError, match="has no action head"):
        load_grounding_model(start)


def test_head_weights_that_are_missing_are_named(tmp_path: Path) -> None:
    model = small_model("qwen3_vl", tmp_path)
    path = tmp_path / "model"
    path.mkdir()
    model.save(path)
    weights = {n: t for n, t in load_file(path / "model.safetensors").items() if not n.startswith(HEAD_PREFIX)}
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ConfigError, match="have no action head"):
        load_grounding_model(path)


@pytest.mark.parametrize("content", [LFS_POINTER, b"", UNKNOWN_TYPE], ids=["pointer", "empty", "unknown type"])
def test_damaged_weights_are_named(content: bytes, tmp_path: Path) -> None:
    model = small_model("qwen3_vl", tmp_path)
    path = tmp_path / "model"
    path.mkdir()
    model.save(path)
    (path / "model.safetensors").write_bytes(content)
    for load in (load_grounding_model, load_verifier):
        with pytest.raises(ConfigError, match=r"model\.safetensors|cannot load a verifier") as caught:
            load(str(path))
        assert ("git lfs pull" in str(caught.value)) is (content == LFS_POINTER)
    with pytest.raises(ConfigError, match=r"model\.safetensors cannot be read .* get the file again"):
        head_weights(path)


def test_several_images_of_different_sizes_share_a_pass(tmp_path: Path) -> None:
    model = small_model("qwen3_vl", tmp_path)
    packed = pack(
        model,
        [screen(128, 64), screen(64, 96)],
        [[Question.point("Save")], [Question.point("Apple"), Question.point("Save")]],
    )
    shapes = [[tuple(q.logits_KM.shape) for q in row] for row in run_forward(model, packed).questions]
    assert shapes == [[(1, 8)], [(1, 6), (1, 6)]]
    assert not np.isnan(packed.position_ids_3BT.numpy()).any()
