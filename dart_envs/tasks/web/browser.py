"""The browser itself: families about downloads and bookmarks.

Role: what the browser did is the verdict: the server saw the browser fetch the file or the page, and the browser's own bookmarks
hold the page.
"""

from __future__ import annotations

from random import Random

from dart_envs.tasks.basics.parts import DONE, JsonDict, all_of, file_content_is, key, pause, type_text
from dart_envs.tasks.basics.words import sample_nouns
from dart_envs.tasks.suite import Family, TaskDraft
from dart_envs.tasks.web.pages import page
from dart_envs.tasks.web.parts import BASE_URL, BOOKMARKS, LOG, click, events_logged, serve_site

DOWNLOADS = "/home/user/Downloads"
BOOKMARKS_SAVED_S = 4.0
"""The browser writes its bookmarks some seconds after a change."""


def web_download(random: Random) -> TaskDraft:
    """Download one of some reports. The near miss downloads another."""
    words = sample_nouns(random, 4)
    names = {word: f"{word.lower()}_{random.randint(100, 999)}.csv" for word in words}
    texts = {word: f"{word},{random.randint(10**8, 10**9)}\n" for word in words}
    goal, wrong = random.sample(words, 2)
    links = "".join(f'<p><a href="/files/{name}">Report on {word}</a></p>' for word, name in names.items())
    path, local = f"/files/{names[goal]}", f"{DOWNLOADS}/{names[goal]}"

    def play(word: str) -> list[JsonDict]:
        return [click("link", f"Report on {word}"), pause(2.0), DONE]

    fetch = f"import urllib.request; urllib.request.urlretrieve({BASE_URL + path!r}, {local!r})"
    return TaskDraft(
        instruction=f"Download the report on {goal} with the browser; leave it in the folder Downloads under its own name.",
        config=serve_site(
            "Reports", {"/": page("Reports", links)}, {f"/files/{name}": texts[word] for word, name in names.items()}
        ),
        evaluator=all_of(events_logged(("download", path), name="download"), file_content_is(local, texts[goal])),
        oracle=play(goal),
        near_miss=play(wrong),
        exploits=[
            [{"do": "code", "text": fetch}, DONE],
            [{"do": "code", "text": f"open({local!r}, 'w').write('')"}, DONE],
        ],
    )


FORGED_BOOKMARKS_SCRIPT = """import json
held = dict(version=1, roots=dict())
for root in ("bookmark_bar", "other", "synced"):
    held["roots"][root] = dict(children=[], id=str(len(held["roots"]) + 1), name=root, type="folder")
held["roots"]["bookmark_bar"]["children"] = [dict(id="9", name={name!r}, type="url", url={url!r})]
open({path!r}, "w").write(json.dumps(held))
"""


def web_bookmark(random: Random) -> TaskDraft:
    """Bookmark one of some pages under a given name. The near miss bookmarks the page that is open first."""
    words = sample_nouns(random, 5)
    name = " ".join(sample_nouns(random, 2))
    goal = random.choice(words)
    path = f"/{goal.lower()}"
    pages = {f"/{word.lower()}": page(word, f"<p>All about {word}.</p>") for word in words}
    pages["/"] = page("Contents", "".join(f'<p><a href="/{word.lower()}">{word}</a></p>' for word in words))
    mark = [key("ctrl", "d"), pause(1.5), key("ctrl", "a"), type_text(f"{name}\n"), pause(BOOKMARKS_SAVED_S), DONE]
    html = f'<!DOCTYPE NETSCAPE-Bookmark-file-1><DL><DT><A HREF="{BASE_URL}{path}">{name}</A></DL>'
    written = f"open({'/home/user/Documents/bookmarks.html'!r}, 'w').write({html!r})"
    return TaskDraft(
        instruction=f"Open the page {goal}, and bookmark it under the name '{name}'.",
        config=serve_site("Contents", pages),
        evaluator=all_of(
            {
                "func": "is_in_list",
                "result": {"type": "web_log", "path": LOG, "name": "visit"},
                "expected": {"type": "rule", "rules": {"expected": {"name": "visit", "data": path}}},
            },
            {
                "func": "exact_match",
                "result": {"type": "chromium_bookmarks"},
                "expected": {"type": "rule", "rules": {"expected": [[name, f"{BASE_URL}{path}"]]}},
            },
        ),
        oracle=[click("link", goal), pause(1.0), *mark],
        near_miss=mark,
        exploits=[
            [
                {
                    "do": "code",
                    "text": FORGED_BOOKMARKS_SCRIPT.format(name=name, url=f"{BASE_URL}{path}", path=BOOKMARKS),
                },
                DONE,
            ],
            [{"do": "code", "text": written}, DONE],
        ],
    )


APP = "chrome"
FAMILIES = (
    Family("web_download", APP, "download the right file", 10, web_download),
    Family("web_bookmark", APP, "bookmark a page under a name", 15, web_bookmark, held_out=True),
)
