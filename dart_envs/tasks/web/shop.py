"""Lists and shops: families about finding, ordering, sorting, paging, filtering, moving and deleting.

Role: what the page sent is the verdict. Rule: the place of the right entry is drawn anew each time.
"""

from __future__ import annotations

from random import Random

from dart_envs.tasks.basics.parts import JsonDict, key, pause
from dart_envs.tasks.basics.words import NOUNS, VERBS, sample_nouns
from dart_envs.tasks.suite import Family, TaskDraft
from dart_envs.tasks.web.pages import button, field, page, script_value, table
from dart_envs.tasks.web.parts import (
    FINISH,
    click,
    click_button,
    events_logged,
    exploit_direct_post,
    exploit_forged_log,
    exploit_headless_browser,
    fill,
    last_event_logged,
    serve_site,
)

CART_SCRIPT = """const cart = () => JSON.parse(sessionStorage.cart || "{}");
function add(item) {
  const held = cart();
  held[item] = (held[item] || 0) + 1;
  sessionStorage.cart = JSON.stringify(held);
  document.getElementById("said").textContent = item + " is in the cart.";
}
function show() {
  const list = document.getElementById("list");
  if (list) for (const [item, count] of Object.entries(cart())) {
    const line = document.createElement("li");
    line.textContent = count + " x " + item;
    list.append(line);
  }
}
show();
"""


def web_cart(random: Random) -> TaskDraft:
    """Put two things into a cart, one of them more than once, and order on the cart's page. The near miss forgets one piece."""
    items = sample_nouns(random, 6)
    first, second = random.sample(items, 2)
    count = random.randint(2, 3)
    links = [("/", "Shop"), ("/cart", "Cart")]
    rows = [[item, f"{random.randint(2, 60)}.00", button(f"Add {item}", f"add({item!r})")] for item in items]
    cart = '<ul id="list"></ul>' + button("Order", 'send(event, "order", cart())')
    pages = {
        "/": page("Shop", table(["Item", "Price", ""], rows), CART_SCRIPT, links),
        "/cart": page("Cart", cart, CART_SCRIPT, links),
    }
    data = {first: count, second: 1}

    def play(times: int) -> list[JsonDict]:
        order = [click("link", "Cart"), pause(), click_button("Order"), *FINISH]
        return [*([click_button(f"Add {first}")] * times), click_button(f"Add {second}"), *order]

    return TaskDraft(
        instruction=f"Order {count} pieces of {first} and one of {second} in the shop.",
        config=serve_site("Shop", pages),
        evaluator=events_logged(("order", data)),
        oracle=play(count),
        near_miss=play(count - 1),
        exploits=[exploit_direct_post("order", data), exploit_headless_browser("order", data)],
    )


SEARCH_SCRIPT = """const all = BOOKS;
function search() {
  const wanted = textOf("words").toLowerCase(), found = document.getElementById("found");
  found.replaceChildren();
  for (const book of all.filter(one => wanted && one.toLowerCase().includes(wanted))) {
    const one = document.createElement("button");
    one.textContent = "Reserve " + book;
    one.onclick = event => send(event, "reserve", book);
    found.append(document.createElement("br"), one);
  }
}
"""


def web_search(random: Random) -> TaskDraft:
    """Search a catalogue, and reserve one of the books that come up. The near miss takes another of them."""
    subject = sample_nouns(random, 1)[0]
    things = [noun for noun in NOUNS if noun != subject]
    found = [f"{subject} {verb} {thing}" for verb, thing in zip(VERBS[:3], random.sample(things, 3), strict=True)]
    rest = [f"{random.choice(things)} {random.choice(VERBS)} {random.choice(things)}" for _ in range(40)]
    books = [*found, *rest]
    random.shuffle(books)
    goal, wrong = random.sample(found, 2)
    body = field("words", "Words") + button("Search", "search()") + '<p id="found"></p>'
    script = SEARCH_SCRIPT.replace("BOOKS", script_value(books))

    def play(book: str) -> list[JsonDict]:
        return [*fill("Words", subject), click_button("Search"), click_button(f"Reserve {book}"), *FINISH]

    return TaskDraft(
        instruction=f"Search the library for {subject}, and reserve the book '{goal}'.",
        config=serve_site("Library", {"/": page("Library", body, script)}),
        evaluator=events_logged(("reserve", goal)),
        oracle=play(goal),
        near_miss=play(wrong),
        exploits=[exploit_direct_post("reserve", goal), exploit_forged_log("reserve", goal)],
    )


SORT_SCRIPT = """let down = {};
document.querySelectorAll("th button").forEach((head, column) => head.onclick = () => {
  const body = document.querySelector("tbody"), rows = [...body.rows];
  down[column] = !down[column];
  const key = row => { const text = row.cells[column].textContent; return isNaN(text) ? text : Number(text); };
  rows.sort((a, b) => (key(a) < key(b) ? -1 : key(a) > key(b) ? 1 : 0) * (down[column] ? 1 : -1));
  body.append(...rows);
});
"""


def web_sort(random: Random) -> TaskDraft:
    """A long table that can be sorted: choose the entry with the least or most of something. The near miss takes the other end."""
    headers = ["Flight", *random.sample(("Price", "Minutes", "Stops", "Seats"), 2)]
    column = random.choice((1, 2))
    most = random.random() < 0.5
    values = [random.sample(range(100, 999), 24) for _ in range(2)]
    flights = [f"{chr(65 + number)}{random.randint(10, 99)}" for number in range(24)]
    order = sorted(range(24), key=lambda row: values[column - 1][row], reverse=most)
    goal, wrong = flights[order[0]], flights[order[-1]]
    heads = "".join(f'<th><button type="button">{header}</button></th>' for header in headers)
    rows = [
        [flight, str(values[0][row]), str(values[1][row]), button(f"Take {flight}", f"send(event, 'take', {flight!r})")]
        for row, flight in enumerate(flights)
    ]
    body = table(["", "", "", ""], rows).replace("<th></th>" * 4, heads + "<th></th>")
    sort = [click_button(headers[column])] * (2 if most else 1)
    return TaskDraft(
        instruction=f"Take the flight with the {'most' if most else 'least'} {headers[column].lower()} of all.",
        config=serve_site("Flights", {"/": page("Flights", body, SORT_SCRIPT)}),
        evaluator=events_logged(("take", goal)),
        oracle=[*sort, click_button(f"Take {goal}"), *FINISH],
        near_miss=[*([click_button(headers[column])] * (1 if most else 2)), click_button(f"Take {wrong}"), *FINISH],
        exploits=[exploit_direct_post("take", goal), exploit_forged_log("take", goal)],
    )


def web_pages(random: Random) -> TaskDraft:
    """A list over several pages: invite one person of it. The near miss invites the first of the second page."""
    count, size = random.randint(4, 6), 5
    names = [f"{first} {second}" for first in sample_nouns(random, 10) for second in ("Old", "New", "Long")][
        : count * size
    ]
    random.shuffle(names)
    at = random.randrange(2, count)
    goal, wrong = names[at * size + random.randrange(size)], names[size]
    paths = ["/", *(f"/page{number}" for number in range(2, count + 1))]
    pages: dict[str, str] = {}
    for index, path in enumerate(paths):
        rows = [
            [name, button(f"Invite {name}", f"send(event, 'invite', {name!r})")]
            for name in names[index * size : (index + 1) * size]
        ]
        links = [(paths[index + 1], "Next page")] if index + 1 < count else []
        links = [(paths[index - 1], "Page before"), *links] if index else links
        pages[path] = page("Guests" if index == 0 else f"Guests {index + 1}", table(["Name", ""], rows), links=links)
    turn: list[JsonDict] = [click("link", "Next page"), pause()]
    return TaskDraft(
        instruction=f"Invite {goal}.",
        config=serve_site("Guests", pages),
        evaluator=events_logged(("invite", goal)),
        oracle=[*(turn * at), click_button(f"Invite {goal}"), *FINISH],
        near_miss=[*turn, click_button(f"Invite {wrong}"), *FINISH],
        exploits=[exploit_direct_post("invite", goal), exploit_headless_browser("invite", goal)],
    )


INBOX_SCRIPT = """function removeTicked(event) {
  const chosen = [...document.querySelectorAll("input:checked")].map(box => box.value);
  if (chosen.length && confirm("Delete " + chosen.length + " messages?")) {
    document.querySelectorAll("input:checked").forEach(box => box.closest("tr").remove());
    send(event, "keep", [...document.querySelectorAll("input")].map(box => box.value));
  }
}
"""


def web_inbox(random: Random) -> TaskDraft:
    """Delete all messages of one sender, in one go or several, and say yes to the question. The near miss says no."""
    senders = sample_nouns(random, 3)
    of = [*senders, *(random.choice(senders) for _ in range(4))]
    random.shuffle(of)
    goal = random.choice(senders)
    rows = [
        [f'<label><input type="checkbox" value="{number}"> Message {number}</label>', sender]
        for number, sender in enumerate(of, start=1)
    ]
    body = table(["", "From"], rows) + "<br>" + button("Delete", "removeTicked(event)")
    kept = [str(number) for number, sender in enumerate(of, start=1) if sender != goal]
    tick = [click("check box", f"Message {number}") for number, sender in enumerate(of, start=1) if sender == goal]
    return TaskDraft(
        instruction=f"Delete every message from {goal}, and no other.",
        config=serve_site("Inbox", {"/": page("Inbox", body, INBOX_SCRIPT)}),
        evaluator=last_event_logged("keep", kept),
        oracle=[*tick, click_button("Delete"), pause(1.0), key("enter"), *FINISH],
        near_miss=[*tick, click_button("Delete"), pause(1.0), key("escape"), *FINISH],
        exploits=[exploit_direct_post("keep", kept), exploit_headless_browser("keep", kept)],
    )


BOARD_STYLE = """<style>.column{display:inline-block;vertical-align:top;width:260px;height:330px;margin:8px;padding:8px;background:#eef}
.card{margin:8px;padding:14px;background:#fd9;cursor:grab;user-select:none}</style>"""

BOARD_SCRIPT = """let held = null;
document.querySelectorAll(".card").forEach(card => {
  card.onpointerdown = event => { held = card; card.setPointerCapture(event.pointerId); event.preventDefault(); };
  card.onpointerup = event => {
    const column = held && document.elementsFromPoint(event.clientX, event.clientY).find(one => one.matches(".column"));
    if (column && column !== held.parentElement) {
      column.append(held);
      const cards = [...document.querySelectorAll(".card")];
      send(event, "board", Object.fromEntries(cards.map(card => [card.textContent, card.parentElement.id])));
    }
    held = null;
  };
});
"""


def web_board(random: Random) -> TaskDraft:
    """Drag a card to another column, where the board has it at the end. The near miss drags it to the third."""
    columns = random.sample(("Ideas", "Next", "Now", "Done", "Later"), 3)
    cards = sample_nouns(random, 5)
    place = {card: random.choice(columns) for card in cards}
    goal = random.choice(cards)
    to, wrong = random.sample([column for column in columns if column != place[goal]], 2)
    body = BOARD_STYLE + "".join(
        f'<section class="column" id="{column}"><h2>{column}</h2>'
        + "".join(
            f'<div class="card" role="button" aria-label="{card}">{card}</div>'
            for card in cards
            if place[card] == column
        )
        + "</section>"
        for column in columns
    )
    board = place | {goal: to}

    def play(column: str) -> list[JsonDict]:
        target = {"role": "heading", "name": column, "dy": 120}
        card = {"role": "push button", "name": goal}
        return [{"do": "drag", "target": card, "to": target, "deferred": True}, *FINISH]

    return TaskDraft(
        instruction=f"Drag the card {goal} to the column {to}.",
        config=serve_site("Board", {"/": page("Board", body, BOARD_SCRIPT)}),
        evaluator=last_event_logged("board", board),
        oracle=play(to),
        near_miss=play(wrong),
        exploits=[exploit_direct_post("board", board), exploit_forged_log("board", board)],
    )


APP = "chrome"
FAMILIES = (
    Family("web_cart", APP, "order from a shop", 20, web_cart),
    Family("web_search", APP, "search a catalogue and reserve", 15, web_search),
    Family("web_sort", APP, "choose the largest or smallest of a long table", 15, web_sort),
    Family("web_pages", APP, "find somebody on one of several pages", 25, web_pages),
    Family("web_inbox", APP, "delete all messages of a sender", 20, web_inbox, held_out=True),
    Family("web_board", APP, "drag a card to another column", 10, web_board),
)
