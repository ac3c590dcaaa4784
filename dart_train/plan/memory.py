"""Memory of the trainer and of the inference workers, per GPU or on the CPU.

Role: pure functions from a recipe and the size of its policy to bytes. Rule: weights, gradients, optimiser and key-value cache are exact
products; activations are an estimate, and are named so. Sources: bytes per parameter of AdamW with float32 master weights (arXiv
1910.02054, section 3.1); activations of a transformer layer (arXiv 2205.05198, section 4). Non-goals: measuring; what all parts of a run
take of one host together (`dart_train.plan.host`).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from dart_train.config import Recipe
from dart_train.plan.policy_size import PolicySize

GIB = 2**30
FLOAT32, BFLOAT16, FLOAT8 = 4, 2, 1
RESERVED = 2 * GIB
"""Assumed: CUDA context, libraries, fragmentation, buffers of collectives."""
SCORE_BYTES = GIB // 2
"""Assumed: logits of one chunk of positions, with their gradient."""


@dataclass(frozen=True, slots=True)
class TrainerMemory:
    """Bytes of one process of the trainer.

    Attributes:
        trained_weights: Float32 master weights.
        gradients: Their gradients, float32.
        optimizer: Two moments of AdamW, float32.
        frozen_weights: Weights that are not trained.
        reference: A second model for the KL term.
        compute_copies: Copies of weights in the data type of matrix products.
        activations: Estimate: what a micro-batch keeps for its backward pass.
        scores: Estimate: logits of one chunk.
        reserved: Estimate: everything else.
    """

    trained_weights: int
    gradients: int
    optimizer: int
    frozen_weights: int
    reference: int
    compute_copies: int
    activations: int
    scores: int = SCORE_BYTES
    reserved: int = RESERVED

    @property
    def total(self) -> int:
        """All of it."""
        return sum(asdict(self).values())


@dataclass(frozen=True, slots=True)
class EngineMemory:
    """Bytes of one inference worker on one of its GPUs, or on the CPU.

    Attributes:
        share: What the worker may take.
        weights: Weights on this GPU, or in memory.
        reserved: Estimate: activations and graphs.
        kv_cache: What is left for the key-value cache; negative where the weights do not fit.
        kv_tokens: Tokens that fit into the cache of all GPUs of the worker.
    """

    share: int
    weights: int
    reserved: int
    kv_cache: int
    kv_tokens: int


def trained_parameters(recipe: Recipe, size: PolicySize) -> int:
    """Count what is trained: an adapter, the language model, or everything; and an action head.

    Args:
        recipe: The recipe.
        size: The policy.

    Returns:
        Number of parameters.
    """
    rank = recipe.train.lora_rank
    if rank is not None:
        return sum(rank * (rows + columns) for rows, columns in size.parameters.linear) + size.head
    return size.parameters.total - (size.parameters.vision if recipe.train.freeze_vision else 0) + size.head


def trainer_memory(recipe: Recipe, size: PolicySize) -> TrainerMemory:
    """Predict the memory of one process of the trainer.

    Args:
        recipe: The recipe.
        size: The policy.

    Returns:
        The bytes.
    """
    train, shards = recipe.train, recipe.trainer_shards
    compute = compute_bytes(recipe)
    divided = trained_parameters(recipe, size) - size.head
    trained = divided // shards + size.head
    frozen = size.parameters.total - (0 if train.lora_rank is not None else divided)
    gathered = 2 * size.parameters.largest_layer * compute
    cast = divided * compute if compute == BFLOAT16 and train.lora_rank is None else 0
    return TrainerMemory(
        trained_weights=FLOAT32 * trained,
        gradients=FLOAT32 * trained,
        optimizer=2 * FLOAT32 * trained,
        frozen_weights=compute * frozen // shards,
        reference=compute * size.parameters.total // shards if has_second_model(recipe) else 0,
        compute_copies=gathered if shards > 1 else cast,
        activations=activation_bytes(recipe, size, train.micro_batch_tokens, compute),
    )


def compute_bytes(recipe: Recipe) -> int:
    """Bytes of a value of the trainer's matrix products.

    Args:
        recipe: The recipe.
    """
    train = recipe.train
    half = train.dtype == "bfloat16" or (train.dtype == "auto" and train.device == "cuda")
    return BFLOAT16 if half else FLOAT32


def has_second_model(recipe: Recipe) -> bool:
    """Whether the trainer holds a second model for the KL term.

    Args:
        recipe: The recipe.
    """
    return bool(recipe.train.kl_coefficient) and recipe.train.lora_rank is None


def activation_bytes(recipe: Recipe, size: PolicySize, tokens: int, compute: int) -> int:
    """Estimate what a micro-batch keeps for its backward pass.

    A layer keeps about 16 values of the width and 3 of its MLP's width per token. With checkpointing each layer keeps its input, and one
    layer at a time is computed again.

    Args:
        recipe: The recipe.
        size: The policy.
        tokens: Tokens of the micro-batch.
        compute: Bytes of a value.

    Returns:
        Bytes.
    """
    stream = FLOAT32 if recipe.trainer_shards == 1 and recipe.train.lora_rank is None else compute
    layer = tokens * (16 * size.hidden + 3 * size.intermediate) * compute
    found = (
        size.layers * tokens * size.hidden * stream + layer
        if recipe.train.gradient_checkpointing
        else size.layers * layer
    )
    if recipe.train.lora_rank is None and not recipe.train.freeze_vision:
        patches = tokens * size.patches // max(1, size.image_tokens)
        vision_layer = patches * 24 * size.vision_hidden * compute
        kept = size.vision_layers * patches * size.vision_hidden * compute
        found += kept + vision_layer if recipe.train.gradient_checkpointing else size.vision_layers * vision_layer
    return found


def engine_memory(recipe: Recipe, size: PolicySize, device_bytes: int, *, on_cpu: bool = False) -> EngineMemory:
    """Predict the memory of an inference worker on one GPU, or on the CPU.

    Args:
        recipe: The recipe.
        size: The policy.
        device_bytes: Memory of a GPU, or of the host.
        on_cpu: Whether the worker runs on the CPU, where a key-value cache of a given size is all that it takes beside its weights.

    Returns:
        The bytes.
    """
    section = recipe.inference
    share = int(device_bytes * section.gpu_memory_fraction)
    value = FLOAT32 if section.dtype == "float32" else BFLOAT16
    weights = value * size.parameters.total
    if section.quantization is not None:
        weights -= (value - FLOAT8) * sum(rows * columns for rows, columns in size.parameters.linear)
    weights = weights // section.tensor_parallel + FLOAT32 * size.head
    if on_cpu and section.kv_cache_mib is not None:
        share = weights + RESERVED + section.kv_cache_mib * 2**20
    free = share - weights - RESERVED
    cache = free if section.kv_cache_mib is None else min(free, section.kv_cache_mib * 2**20)
    per_gpu = max(1, size.kv_bytes_per_token // section.tensor_parallel)
    return EngineMemory(share, weights, RESERVED, cache, max(0, cache // per_gpu))
