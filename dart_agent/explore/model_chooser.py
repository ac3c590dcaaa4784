"""The multimodal model chooses in context, with Q-values as incentive (Q-ICRL).

Role: `ModelChooser` shows a model the screenshot with numbered marks, a table of the candidates and the latest steps, and reads its choice.
Rule: at most `shown` candidates are shown, drawn without replacement with probabilities softmax(Q / temperature). With Q they are the
untried ones as long as the screen has any, each with its Q-value; what was tried here stands below them without a number, with how often
and where it led. Where all was tried, all is offered. Without Q (`use_q = False`, the ablation) they are drawn evenly from everything, and
Q-values, tries and destinations are not shown. An answer is `{"choice": NUMBER, "text": TEXT, "reason": TEXT}` or begins with the number;
one that names no shown number, no answer, and an endpoint that fails are a `ModelFaultError`, which costs the explorer one step. Non-goals:
the endpoint's protocol and retries (`dart_agent.chat_api.endpoint_policy`; any `Policy` will do).

Source: GUI-Bee (arXiv 2501.13896): values from experience go into the context of a model that is not trained. The words are ours. To offer
only what is untried is a deviation: digests of GUI-Bee say that it samples from all candidates of a screen. Here `next_screen` has brought
the desktop to something untried, and the value of a tried candidate is that of where it leads, close to 1 in a young graph: such candidates
would crowd out what the desktop came for.
"""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Sequence
from typing import Any

from dart_agent.errors import ModelFaultError, PolicyUnavailableError
from dart_agent.explore.candidates import CandidateAction
from dart_agent.explore.choosers import Choice, ChoiceContext, GreatestQChooser, PlaceContext
from dart_agent.explore.drawing import draw_marks
from dart_agent.types import Policy, PolicyRequest, SamplingParams
from dart_envs.clock import SYSTEM_CLOCK, wait_for
from dart_envs.observations.geometry import model_size
from dart_envs.observations.transforms import resize_image
from dart_envs.types import RgbImage
from dart_server.wire import Clock

SYSTEM_PROMPT = (
    "You explore an application to learn what its elements do. Prefer what has not been tried and what may open a new screen; avoid "
    "what was tried without effect, and what closes or leaves the application. Answer with one JSON object and nothing else: "
    '{"choice": NUMBER, "text": "what to type, for entries only", "reason": "a few words"}.'
)
MAX_TEXT = 80
MAX_PICTURE_PIXELS = 1280 * 800
PICTURE_MULTIPLE = 28
ANSWER_TOKENS = 200
_NUMBER = re.compile(r"\s*\[?(\d{1,6})\b")
_DIGITS = re.compile(r"\d{1,6}")


class ModelChooser:
    """Asks a model.

    Args:
        model: Any policy: an endpoint, a local vLLM worker, a scripted model.
        use_q: Whether Q-values choose what is shown and where to go on, and are shown.
        shown: Most candidates in one question.
        temperature: Of the softmax over Q-values.
        timeout_s: Longest wait for an answer; a model that stalls longer is at fault.
        clock: The clock of the wait.
    """

    def __init__(
        self,
        model: Policy,
        *,
        use_q: bool = True,
        shown: int = 10,
        temperature: float = 0.1,
        timeout_s: float = 90.0,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._model = model
        self._use_q = use_q
        self._shown = shown
        self._temperature = temperature
        self._timeout_s = timeout_s
        self._clock = clock
        self._places = GreatestQChooser()

    def next_screen(self, context: PlaceContext) -> int:
        """As the greatest Q-value says; without Q, stay."""
        return self._places.next_screen(context) if self._use_q else context.screen_id

    async def choose(self, context: ChoiceContext) -> Choice:
        """What the model answers.

        Args:
            context: What is chosen from.

        Raises:
            ModelFaultError: The model gave no usable answer.
        """
        shown = self._draw(context, self._untried(context) or context.candidates)
        answer = await ask_model(
            self._model,
            SYSTEM_PROMPT,
            self._question(context, shown),
            [draw_marks(context.view.image, [one.box for one in shown])],
            request_id=f"explore-{context.step}",
            timeout_s=self._timeout_s,
            clock=self._clock,
        )
        number, text, reason = parse_choice(answer, len(shown))
        candidate = shown[number - 1]
        return Choice(candidate.with_text(text) if text else candidate, reason)

    def _untried(self, context: ChoiceContext) -> list[CandidateAction]:
        """What was never tried here; nothing without Q, which knows of no tries."""
        q, place = context.graph.q, context.screen_id
        return [one for one in context.candidates if not q.tries(place, one.key)] if self._use_q else []

    def _draw(self, context: ChoiceContext, candidates: Sequence[CandidateAction]) -> list[CandidateAction]:
        q, place = context.graph.q, context.screen_id
        values = [q.value(place, one.key) if self._use_q else 0.0 for one in candidates]
        return [candidates[at] for at in draw_softmax(values, self._shown, self._temperature, context.rng)]

    def _question(self, context: ChoiceContext, shown: Sequence[CandidateAction]) -> str:
        lines = [f"Application {context.view.application!r}, window {context.view.window!r}. Candidates:"]
        lines += [f"[{number}] {self._row(context, one)}" for number, one in enumerate(shown, 1)]
        if untried := self._untried(context):
            keys = {one.key for one in untried}
            tried = [one for one in context.candidates if one.key not in keys]
            rows = [f"- {self._row(context, one)}" for one in self._draw(context, tried)]
            lines += ["Tried here before:", *rows] if rows else []
        if context.history:
            lines += ["Latest steps:", *context.history]
        return "\n".join(lines)

    def _row(self, context: ChoiceContext, candidate: CandidateAction) -> str:
        q, screen_id = context.graph.q, context.screen_id
        if not self._use_q:
            return candidate.describe()
        led_to = ", ".join(
            "leaving the application"
            if place is None
            else "nothing visible"
            if place == screen_id
            else f"screen {place}"
            for place in q.destinations(screen_id, candidate.key)
        )
        row = f"{candidate.describe()}; Q={q.value(screen_id, candidate.key):.2f}; tried {q.tries(screen_id, candidate.key)} times"
        return f"{row}; led to {led_to}" if led_to else row


def draw_softmax(values: Sequence[float], count: int, temperature: float, rng: random.Random) -> list[int]:
    """Draw indices without replacement with probabilities softmax(values / temperature).

    The Gumbel trick: the greatest `count` of values / temperature + Gumbel noise are such a sample.

    Args:
        values: One per candidate.
        count: How many are drawn at most.
        temperature: Above 0.
        rng: Random numbers.

    Returns:
        Indices in ascending order.
    """
    keys = [value / temperature - math.log(-math.log(min(max(rng.random(), 1e-12), 1 - 1e-12))) for value in values]
    return sorted(sorted(range(len(values)), key=lambda index: -keys[index])[:count])


async def ask_model(
    model: Policy,
    system: str,
    question: str,
    pictures: Sequence[RgbImage],
    *,
    request_id: str,
    timeout_s: float,
    clock: Clock = SYSTEM_CLOCK,
    max_tokens: int = ANSWER_TOKENS,
) -> str:
    """Ask a question about pictures.

    Args:
        model: Who answers.
        system: The system prompt.
        question: The question.
        pictures: uint8 `[H, W, 3]`; large ones are made smaller.
        request_id: Id of the request.
        timeout_s: Longest wait.
        clock: The clock of the wait.
        max_tokens: Longest answer.

    Returns:
        The answer's text.

    Raises:
        ModelFaultError: There is no answer in time, or the endpoint failed.
    """
    content = [{"type": "image"} for _ in pictures] + [{"type": "text", "text": question}]
    messages = ({"role": "system", "content": system}, {"role": "user", "content": content})
    images = tuple(_fit(picture) for picture in pictures)
    request = PolicyRequest(messages, images, SamplingParams(temperature=0.0, max_tokens=max_tokens), request_id)
    try:
        completion = await wait_for(clock, timeout_s, model.complete(request))
    except TimeoutError:
        raise ModelFaultError(f"the model gave no answer within {timeout_s:g} s") from None
    except PolicyUnavailableError as error:
        raise ModelFaultError(f"the model gave no answer: {error}") from error
    return completion.text


def parse_choice(answer: str, count: int) -> tuple[int, str, str]:
    """Read a choice.

    Args:
        answer: The model's text.
        count: The greatest number that was shown.

    Returns:
        Number from 1, text to type ("" for none), reason.

    Raises:
        ModelFaultError: The answer names no shown number.
    """
    record = parse_json_object(answer)
    number = record.get("choice")
    if not record and (found := _NUMBER.match(answer)):
        number = int(found[1])
    if isinstance(number, str) and _DIGITS.fullmatch(number.strip()):
        number = int(number)
    if not isinstance(number, int) or isinstance(number, bool) or not 1 <= number <= count:
        raise ModelFaultError(f"the answer names none of the numbers 1 to {count}: {answer[:200]!r}")
    text, reason = (_words(record.get(name)) for name in ("text", "reason"))
    return number, text[:MAX_TEXT], reason[:200]


def parse_json_object(answer: str) -> dict[str, Any]:
    """Read the first JSON object of an answer, whatever stands around it.

    Args:
        answer: The model's text.

    Returns:
        The object; empty where there is none. Where one of its values is a string, it holds no NUL and no half of a surrogate pair, which
        JSON can write and neither a database nor a request can hold: there are question marks instead.
    """
    start = answer.find("{")
    while start >= 0:
        try:
            found, _ = json.JSONDecoder().raw_decode(answer, start)
        except (ValueError, RecursionError):
            start = answer.find("{", start + 1)
            continue
        values = found.items() if isinstance(found, dict) else ()
        return {key: _storable(value) if isinstance(value, str) else value for key, value in values}
    return {}


def _storable(text: str) -> str:
    return text.encode("utf-8", "replace").decode("utf-8").replace("\0", "?")


def _words(value: object) -> str:
    """A text or a number as text; "" for anything else."""
    return str(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else ""


def _fit(picture: RgbImage) -> RgbImage:
    wh = (picture.shape[1], picture.shape[0])
    return resize_image(picture, model_size(wh, multiple=PICTURE_MULTIPLE, max_pixels=MAX_PICTURE_PIXELS))
