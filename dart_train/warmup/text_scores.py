"""Where on an image a text is, scored by what the language model takes the text for.

Role: `TextScores` scores every text at every place of every image token: s · (M_p f) · √D e / |e| + b, where f is the token's feature, e
the mean of the embeddings of the text's tokens, and M_p a matrix for each place. Rule: the texts are known by the embeddings of the
language model, which are trained with the tower. So a word of an instruction and the image token that shows it become alike, and the policy
finds one from the other; what else is learned here is thrown away. Non-goals: the loss, and what a place is (`dart_train.warmup.reading`).
Axes: B images, N tokens of an image, D hidden size, P places of a token, W texts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

NO_TEXT_LOGIT = -4.0
"""What the scores begin with: nearly every place of nearly every token shows no text."""
MAP_NOISE = 0.02
"""Standard deviation by which the matrices of the places begin apart."""


class TextScores:
    """Scores of texts.

    Args:
        embedding: The embedding of the language model's tokens.
        token_ids_W: Token ids of each text.
        places: P.
    """

    def __init__(self, embedding: Any, token_ids_W: Sequence[Sequence[int]], places: int) -> None:
        import torch

        width, device = embedding.weight.shape[1], embedding.weight.device
        self.embedding = embedding
        self._token_ids_W = [torch.tensor(ids, device=device) for ids in token_ids_W]
        self._places = places
        self._maps = torch.nn.Linear(width, places * width, bias=False).to(device)
        with torch.no_grad():
            noise = torch.randn(places * width, width, device=device)
            self._maps.weight.copy_(torch.eye(width, device=device).repeat(places, 1) + MAP_NOISE * noise)
        self._scale = torch.nn.Parameter(torch.ones((), device=device))
        self._bias_PW = torch.nn.Parameter(torch.full((places, len(token_ids_W)), NO_TEXT_LOGIT, device=device))

    def parameters(self) -> Iterator[Any]:
        """What is trained here besides the embedding.

        Yields:
            Parameters.
        """
        yield from (self._maps.weight, self._scale, self._bias_PW)

    def directions(self) -> Tensor:
        """Compute √D e / |e| of every text.

        Returns:
            [W, D].
        """
        import torch

        means_WD = torch.stack([self.embedding(ids).mean(dim=0) for ids in self._token_ids_W])
        return torch.nn.functional.normalize(means_WD, dim=1) * math.sqrt(means_WD.shape[1])

    def score(self, features_BND: Tensor) -> Tensor:
        """Score all texts.

        Args:
            features_BND: Image tokens as they enter the language model.

        Returns:
            Logits [B, N, P, W].
        """
        texts_WD = self.directions()
        mapped_BNPD = self._maps(features_BND).unflatten(-1, (self._places, -1))
        logits_BNPW: Tensor = self._scale * (mapped_BNPD @ texts_WD.T) + self._bias_PW
        return logits_BNPW
