"""The three metrics and the getter that today's tasks name and release 1.0.2 does not have.

Role: `METRICS` and `GETTERS`, called as the release's own are. Rule: files come as paths, None where the desktop had none; a broken file
raises. Non-goals: being what newer trees have word for word; docs/osworld.md says what each one does.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any


def check_structure_sim_with_threshold(result: str | None, expected: str | None, ssim_threshold: float = 0.9) -> float:
    """1 where two pictures of one size have a structural similarity of at least `ssim_threshold`."""
    if result is None or expected is None:
        return 0.0
    image = importlib.import_module("PIL.Image")
    similar = importlib.import_module("desktop_env.evaluators.metrics.gimp").structure_check_by_ssim
    with image.open(result) as held, image.open(expected) as wanted:
        if held.size != wanted.size:
            return 0.0
        return 1.0 if similar(held.convert("RGB"), wanted.convert("RGB"), threshold=ssim_threshold) else 0.0


PAPER_FIELDS = {
    "title": r"title",
    "authors": r"authors?",
    "abstract": r"abstract|summary",
    "arxiv": r"arxiv.*|link|url|pdf",
}
"""Fields of a paper's record and how a document may label them."""


def paper_records(path: str) -> list[dict[str, str]]:
    """Records of a document: paragraphs `label: value`, a new record at each title; a paragraph without a label goes on with its field."""
    document = importlib.import_module("docx").Document(path)
    records: list[dict[str, str]] = []
    field = ""
    for paragraph in document.paragraphs:
        text = paragraph.text.strip()
        label, colon, value = text.partition(":")
        named = [
            name
            for name, pattern in PAPER_FIELDS.items()
            if colon and re.fullmatch(pattern, label.strip(), re.IGNORECASE)
        ]
        if named:
            field = named[0]
            if field == "title":
                records.append({})
            if records:
                records[-1][field] = value.strip()
        elif text and field and records:
            records[-1][field] = f"{records[-1][field]} {text}".strip()
    return records


def compare_docx_paper_records(
    result: str | None,
    expected: str | None,
    weights: Mapping[str, float] | None = None,
    prefilled_titles: list[str] | None = None,
    title_align_threshold: float = 85,
    field_full_threshold: float = 95,
) -> float:
    """The mean over the expected records, those that were there before left out, of the weights of the fields that agree.

    Records are paired by title (fuzzy ratio of at least `title_align_threshold`); a field agrees from `field_full_threshold` on, of 100.
    """
    if result is None or expected is None:
        return 0.0
    ratio = importlib.import_module("rapidfuzz.fuzz").ratio
    weights = weights or {name: 1.0 / len(PAPER_FIELDS) for name in PAPER_FIELDS}

    def similarity(one: str, other: str) -> float:
        return float(ratio(" ".join(one.lower().split()), " ".join(other.lower().split())))

    known = prefilled_titles or []
    wanted = [
        record
        for record in paper_records(expected)
        if not any(similarity(record.get("title", ""), title) >= title_align_threshold for title in known)
    ]
    if not wanted:
        raise ValueError("the expected document has no record that was not there before")
    left = paper_records(result)
    total = 0.0
    for record in wanted:
        ranked = sorted(left, key=lambda held: similarity(held.get("title", ""), record.get("title", "")), reverse=True)
        if not ranked or similarity(ranked[0].get("title", ""), record.get("title", "")) < title_align_threshold:
            continue
        held = ranked[0]
        left.remove(held)
        agreeing = (
            name for name in weights if similarity(held.get(name, ""), record.get(name, "")) >= field_full_threshold
        )
        total += sum(float(weights[name]) for name in agreeing)
    return total / len(wanted)


def check_play_and_exit(result: str | None, rule: Mapping[str, Any]) -> float:
    """1 where vlcrc's `play-and-exit` is `expected_play_and_exit`; a line that is missing or commented out means 0."""
    if result is None:
        return 0.0
    held = 0
    for line in Path(result).read_text(encoding="utf-8").splitlines():
        name, equals, value = line.partition("=")
        if equals and name.strip() == "play-and-exit":
            held = int(value.strip())
    return 1.0 if held == int(rule["expected_play_and_exit"]) else 0.0


APPEARANCE_MODES = {"0": "system", "1": "light", "2": "dark"}
READ_MODE = """() => {
    const below = root => [...root.querySelectorAll('*')].flatMap(one => [one, ...(one.shadowRoot ? below(one.shadowRoot) : [])]);
    const menu = below(document).find(one => ['colorModeSelect', 'colorSchemeModeSelect'].includes(one.id)
        || one.getAttribute('pref-key') === 'browser.theme.color_scheme');
    return menu ? String(menu.value) : null;
}"""


def get_chrome_appearance_mode_ui(env: Any, _config: Mapping[str, Any]) -> str | None:
    """light, dark or system: what the menu of Chrome's appearance settings shows, on the page that is open or on a new one."""
    playwright = importlib.import_module("playwright.sync_api")
    with playwright.sync_playwright() as running:
        browser = running.chromium.connect_over_cdp(f"http://{env.vm_ip}:{env.chromium_port}")
        context = browser.contexts[0]
        page = next((one for one in context.pages if one.url.startswith("chrome://settings/appearance")), None)
        opened = page is None
        if page is None:
            page = context.new_page()
            page.goto("chrome://settings/appearance")
        page.wait_for_timeout(500)
        value = page.evaluate(READ_MODE)
        if opened:
            page.close()
    return None if value is None else APPEARANCE_MODES.get(str(value), str(value))


METRICS: Mapping[str, Callable[..., float]] = {
    "check_structure_sim_with_threshold": check_structure_sim_with_threshold,
    "compare_docx_paper_records": compare_docx_paper_records,
    "check_play_and_exit": check_play_and_exit,
}
GETTERS: Mapping[str, Callable[..., Any]] = {"chrome_appearance_mode_ui": get_chrome_appearance_mode_ui}
