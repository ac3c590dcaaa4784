"""Pages of the suite `web`: HTML from plain values.

Role: one short function per kind of page part. Rule: everything drawn is escaped; what a person does is sent by `send`, which names the
doing and carries the event's own word that it was a person's. Non-goals: which page a task needs (`dart_envs.tasks.web.shop`, …).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

STYLE = """body{font:17px sans-serif;margin:24px;color:#222}table{border-collapse:collapse}td,th{border:1px solid #bbb;padding:4px 12px}
label{display:block;margin:10px 0}input,select,button{font:inherit;padding:3px 8px}nav a{margin-right:18px}
.select span:not([hidden]){display:flex;flex-direction:column;width:200px}.select>button::after{content:" ▾"}
#said{margin-top:14px;font-weight:bold;min-height:1.3em}"""

SEND = """async function send(event, name, data) {
  const body = JSON.stringify({token: "__TOKEN__", trusted: event.isTrusted, name: name, data: data});
  const answer = await fetch("/do", {method: "POST", headers: {"Content-Type": "application/json"}, body: body});
  document.getElementById("said").textContent = await answer.text();
}
const textOf = id => document.getElementById(id).value;
const unfold = head => { head.nextElementSibling.hidden = !head.nextElementSibling.hidden; };
function take(option) {
  const list = option.parentElement, head = list.previousElementSibling;
  head.value = head.textContent = option.value;
  list.hidden = true;
}
const isTicked = id => document.getElementById(id).checked;
"""


def page(title: str, body: str, script: str = "", links: Sequence[tuple[str, str]] = ()) -> str:
    """A whole page. links: (address, text) of a line of navigation."""
    line = "".join(f'<a href="{escape(address)}">{escape(text)}</a>' for address, text in links)
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title><style>{STYLE}</style>'
        f'<nav>{line}</nav><h1>{escape(title)}</h1>{body}<p id="said" role="status"></p><script>{SEND}{script}</script></html>'
    )


def field(name: str, label: str, kind: str = "text", **more: str) -> str:
    """A labelled field whose id is `name`."""
    extra = "".join(f' {key}="{escape(text)}"' for key, text in more.items())
    return f'<label>{escape(label)} <input id="{name}" type="{kind}" autocomplete="off"{extra}></label>'


def select(name: str, label: str, options: Sequence[str]) -> str:
    """A labelled drop-down list whose button has the id `name`; the first option is chosen.

    It is the page's own: a native list's pop-up ends the page's process in a browser that comes from a snapshot.
    """
    one = '<button type="button" value="{0}" onclick="take(this)">{0}</button>'
    listed = "".join(one.format(escape(option)) for option in options)
    first = escape(options[0])
    head = f'type="button" id="{name}" aria-label="{escape(label)}" value="{first}"'
    shown = f'<button {head} onclick="unfold(this)">{first}</button>'
    return f'<p class="select">{escape(label)} {shown}<span hidden>{listed}</span></p>'


def button(text: str, call: str) -> str:
    """A button that runs `call` (JavaScript)."""
    return f'<button type="button" onclick="{escape(call)}">{escape(text)}</button>'


def table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table whose cells are HTML already."""
    head = "".join(f"<th>{escape(header)}</th>" for header in headers)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f'<table id="table"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def script_value(value: Any) -> str:
    """A value as JavaScript inside a page."""
    return json.dumps(value).replace("<", "\\u003c")
