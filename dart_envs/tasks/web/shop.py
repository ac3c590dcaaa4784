"""Lists and shops: families about finding, ordering, sorting, paging, filtering, moving and deleting.

Role: what the page sent is the verdict. Rule: the place of the right entry is drawn anew each time.
"""

from __future__ import annotations

from random import Random

from dart_envs.tasks.basics.parts import Data, key, pause
from dart_envs.tasks.basics.words import NOUNS, VERBS, pick
from dart_envs.tasks.suite import Draft, Family
from dart_envs.tasks.web.pages import button, field, page, script_value, table
from dart_envs.tasks.web.parts import END, click, fill, forged, logged, posted, press, served, unseen

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


def web_cart(random: Random) -> Draft:
    """Put two things into a cart, one of them more than once, and order on the cart's page. The near miss forgets one piece."""
    items = pick(random, 6)
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

    def play(times: int) -> list[Data]:
        order = [click("link", "Cart"), pause(), press("Order"), *END]
        return [*([press(f"Add {first}")] * times), press(f"Add {second}"), *order]

    return Draft(
        instruction=f"Order {count} pieces of {first} and one of {second} in the shop.",
        config=served("Shop", pages),
        evaluator=logged(("order", data)),
        oracle=play(count),
        near_miss=play(count - 1),
        exploits=[posted("order", data), unseen("order", data)],
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


def web_search(random: Random) -> Draft:
    """Search a catalogue, and reserve one of the books that come up. The near miss takes another of them."""
    subject = pick(random, 1)[0]
    things = [noun for noun in NOUNS if noun != subject]
    found = [f"{subject} {verb} {thing}" for verb, thing in zip(VERBS[:3], random.sample(things, 3), strict=True)]
    rest = [f"{random.choice(things)} {random.choice(VERBS)} {random.choice(things)}" for _ in range(40)]
    books = [*found, *rest]
    random.shuffle(books)
    goal, wrong = random.sample(found, 2)
    body = field("words", "Words") + button("Search", "search()") + '<p id="found"></p>'
    script = SEARCH_SCRIPT.replace("BOOKS", script_value(books))

    def play(book: str) -> list[Data]:
        return [*fill("Words", subject), press("Search"), press(f"Reserve {book}"), *END]

    return Draft(
        instruction=f"Search the library for {subject}, and reserve the book '{goal}'.",
        config=served("Library", {"/": page("Library", body, script)}),
        evaluator=logged(("reserve", goal)),
        oracle=play(goal),
        near_miss=play(wrong),
        exploits=[posted("reserve", goal), forged("reserve", goal)],
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


def web_sort(random: Random) -> Draft:
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
    sort = [press(headers[column])] * (2 if most else 1)
    return Draft(
        instruction=f"Take the flight with the {'most' if most else 'least'} {headers[column].lower()} of all.",
        config=served("Flights", {"/": page("Flights", body, SORT_SCRIPT)}),
        evaluator=logged(("take", goal)),
        oracle=[*sort, press(f"Take {goal}"), *END],
        near_miss=[*([press(headers[column])] * (1 if most else 2)), press(f"Take {wrong}"), *END],
        exploits=[posted("take", goal), forged("take", goal)],
    )


def web_pages(random: Random) -> Draft:
    """A list over several pages: invite one person of it. The near miss invites the first of the second page."""
    count, size = random.randint(4, 6), 5
    names = [f"{first} {second}" for first in pick(random, 10) for second in ("Old", "New", "Long")][: count * size]
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
    turn: list[Data] = [click("link", "Next page"), pause()]
    return Draft(
        instruction=f"Invite {goal}.",
        config=served("Guests", pages),
        evaluator=logged(("invite", goal)),
        oracle=[*(turn * at), press(f"Invite {goal}"), *END],
        near_miss=[*turn, press(f"Invite {wrong}"), *END],
        exploits=[posted("invite", goal), unseen("invite", goal)],
    )


INBOX_SCRIPT = """function removeTicked(event) {
  const chosen = [...document.querySelectorAll("input:checked")].map(box => box.value);
  if (chosen.length && confirm("Delete " + chosen.length + " messages?")) {
    document.querySelectorAll("input:checked").forEach(box => box.closest("tr").remove());
    send(event, "delete", chosen);
  }
}
"""


def web_inbox(random: Random) -> Draft:
    """Delete all messages of one sender, and say yes to the question. The near miss says no."""
    senders = pick(random, 3)
    of = [*senders, *(random.choice(senders) for _ in range(4))]
    random.shuffle(of)
    goal = random.choice(senders)
    rows = [
        [f'<label><input type="checkbox" value="{number}"> Message {number}</label>', sender]
        for number, sender in enumerate(of, start=1)
    ]
    body = table(["", "From"], rows) + "<br>" + button("Delete", "removeTicked(event)")
    numbers = [str(number) for number, sender in enumerate(of, start=1) if sender == goal]
    tick = [click("check box", f"Message {number}") for number in numbers]
    return Draft(
        instruction=f"Delete every message from {goal}, and no other.",
        config=served("Inbox", {"/": page("Inbox", body, INBOX_SCRIPT)}),
        evaluator=logged(("delete", numbers)),
        oracle=[*tick, press("Delete"), pause(1.0), key("enter"), *END],
        near_miss=[*tick, press("Delete"), pause(1.0), key("escape"), *END],
        exploits=[posted("delete", numbers), unseen("delete", numbers)],
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
      send(event, "move", {card: held.textContent, to: column.id});
    }
    held = null;
  };
});
"""


def web_board(random: Random) -> Draft:
    """Drag a card to another column. The near miss drags it to the third."""
    columns = random.sample(("Ideas", "Next", "Now", "Done", "Later"), 3)
    cards = pick(random, 5)
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
    data = {"card": goal, "to": to}

    def play(column: str) -> list[Data]:
        target = {"role": "heading", "name": column, "dy": 120}
        card = {"role": "push button", "name": goal}
        return [{"do": "drag", "target": card, "to": target, "later": True}, *END]

    return Draft(
        instruction=f"Drag the card {goal} to the column {to}.",
        config=served("Board", {"/": page("Board", body, BOARD_SCRIPT)}),
        evaluator=logged(("move", data)),
        oracle=play(to),
        near_miss=play(wrong),
        exploits=[posted("move", data), forged("move", data)],
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
