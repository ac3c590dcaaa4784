"""On which GPUs the processes of a run are, where the recipe does not say it for all of them.

Role: `unplaced_processes` finds processes that would be on one GPU by default. Non-goals: whether these GPUs exist
(`dart_train.run.recipe_policy`), GPUs that a recipe shares by naming them twice (`dart_train.config.recipe`).
"""

from __future__ import annotations

from dart_train.config.recipe import Recipe


def unplaced_processes(recipe: Recipe) -> list[str]:
    """Check that no two processes share a GPU only because the recipe names none for them.

    Without `devices` every inference worker begins at GPU 0, and so do the processes of the trainer.

    Args:
        recipe: The recipe.

    Returns:
        A sentence with the keys to set where processes share a GPU by default on GPUs (`train.device = "cuda"`).
    """
    train, inference = recipe.train, recipe.inference
    if train.device != "cuda" or (inference.engine != "vllm" and inference.devices is None):
        return []
    trained_on = set(range(train.processes) if train.devices is None else train.devices)
    unset = [f"{name}.devices" for name, part in (("inference", inference), ("train", train)) if part.devices is None]
    if inference.devices is None:
        workers, gpu = inference.workers, 0
    else:
        shared = trained_on & set(inference.devices)
        workers, gpu = min(1, len(shared)), min(shared, default=0)
    trains = workers > 0 and gpu in trained_on
    if not unset or workers + trains < 2:
        return []
    needed = inference.workers * inference.tensor_parallel + train.processes
    told = f"{workers} inference workers" if workers > 1 else "an inference worker"
    return [
        f"{', '.join(unset)}: {told}{' and the trainer' if trains else ''} would share GPU {gpu}, because no GPU is named for them: name "
        f"the GPUs of both in inference.devices and train.devices ({needed} where none is shared)"
    ]
