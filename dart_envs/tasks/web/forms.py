"""Forms: families about filling in, choosing, picking a date, logging in, looking something up.

Role: what the page sent when its button was pressed is the verdict, once and in full.
"""

from __future__ import annotations

import calendar
from datetime import date
from random import Random

from dart_envs.tasks.basics.parts import JsonDict, pause
from dart_envs.tasks.basics.words import sample_nouns
from dart_envs.tasks.suite import Family, TaskDraft
from dart_envs.tasks.web.pages import button, field, page, script_value, select, table
from dart_envs.tasks.web.parts import (
    FINISH,
    choose_option,
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

CITIES = ("Bergen", "Cadiz", "Dublin", "Florence", "Ghent", "Helsinki", "Krakow", "Lisbon", "Malmo", "Nantes")
PLANS = ("Basic", "Plus", "Premium")
PEOPLE = (
    "Ada",
    "Boris",
    "Clara",
    "Dmitri",
    "Elena",
    "Felix",
    "Greta",
    "Hugo",
    "Ines",
    "Jonas",
    "Karla",
    "Leon",
    "Mira",
    "Nils",
)


def another_word(random: Random, words: tuple[str, ...] | list[str], word: str) -> str:
    """Another one."""
    return random.choice([one for one in words if one != word])


def web_register(random: Random) -> TaskDraft:
    """A form with a name, a drop-down list, radio buttons and a check box. The near miss chooses another plan."""
    name = f"{random.choice(PEOPLE)} {sample_nouns(random, 1)[0]}"
    cities = random.sample(CITIES, 6)
    city, plan, news = random.choice(cities[1:]), random.choice(PLANS[1:]), random.random() < 0.5
    radios = "".join(
        f'<label><input type="radio" name="plan" value="{one}"{" checked" if one == PLANS[0] else ""}> {one}</label>'
        for one in PLANS
    )
    box = '<label><input type="checkbox" id="news"> Send me news</label>'
    call = (
        'send(event, "register", {name: textOf("name"), city: textOf("city"),'
        ' plan: document.querySelector("input[name=plan]:checked").value, news: isTicked("news")})'
    )
    body = field("name", "Full name") + select("city", "City", cities) + radios + box + button("Register", call)
    data = {"name": name, "city": city, "plan": plan, "news": news}
    tick = [click("check box", "Send me news")] if news else []

    def play(which: str) -> list[JsonDict]:
        return [
            *fill("Full name", name),
            *choose_option("City", city),
            click("radio button", which),
            *tick,
            click_button("Register"),
            *FINISH,
        ]

    return TaskDraft(
        instruction=f"Register {name} from {city} with the plan {plan}, {'with' if news else 'without'} news.",
        config=serve_site("Registration", {"/": page("Registration", body)}),
        evaluator=events_logged(("register", data)),
        oracle=play(plan),
        near_miss=play(another_word(random, PLANS, plan)),
        exploits=[exploit_direct_post("register", data), exploit_forged_log("register", data)],
    )


CALENDAR_SCRIPT = """const names = MONTHS; let shown = new Date(START), picked = "";
function draw() {
  const year = shown.getFullYear(), month = shown.getMonth();
  document.getElementById("month").textContent = names[month] + " " + year;
  const days = new Date(year, month + 1, 0).getDate(), grid = document.getElementById("days");
  grid.replaceChildren();
  for (let day = 1; day <= days; day++) {
    const one = document.createElement("button");
    one.textContent = day;
    one.onclick = () => {
      picked = year + "-" + String(month + 1).padStart(2, "0") + "-" + String(day).padStart(2, "0");
      document.getElementById("picked").textContent = "Chosen: " + picked;
    };
    grid.append(one);
  }
}
function turn(months) { shown = new Date(shown.getFullYear(), shown.getMonth() + months, 1); draw(); }
draw();
"""


def web_date(random: Random) -> TaskDraft:
    """A calendar that is turned month by month. The near miss takes the same day of the month that shows first."""
    start = date(random.randint(2024, 2027), random.randint(1, 12), 1)
    ahead = random.choice((-3, -2, -1, 1, 2, 3))
    month = start.year * 12 + start.month - 1 + ahead
    goal = date(month // 12, month % 12 + 1, random.randint(1, 28))
    names = list(calendar.month_name)[1:]
    script = CALENDAR_SCRIPT.replace("MONTHS", script_value(names)).replace(
        "START", f"{start.year}, {start.month - 1}, 1"
    )
    arrows = button("Previous month", "turn(-1)") + button("Next month", "turn(1)")
    body = f'<p>{arrows}</p><h2 id="month"></h2><p id="days"></p><p id="picked"></p>' + button(
        "Book", 'send(event, "book", picked)'
    )
    turns = [click_button("Next month" if ahead > 0 else "Previous month")] * abs(ahead)
    book = [click_button(str(goal.day)), click_button("Book"), *FINISH]
    return TaskDraft(
        instruction=f"Book the room for {goal.day} {goal:%B} {goal.year}.",
        config=serve_site("Room", {"/": page("Room", body, script)}),
        evaluator=events_logged(("book", goal.isoformat())),
        oracle=[*turns, *book],
        near_miss=book,
        exploits=[exploit_direct_post("book", goal.isoformat()), exploit_forged_log("book", goal.isoformat())],
    )


def web_profile(random: Random) -> TaskDraft:
    """Log in, go to the profile, and change the nickname. The near miss changes it without having logged in."""
    person, nickname = random.choice(PEOPLE).lower(), f"{sample_nouns(random, 1)[0]}{random.randint(10, 99)}"
    password = f"{sample_nouns(random, 1)[0].lower()}-{random.randint(100, 999)}"
    links = [("/", "Log in"), ("/profile", "Profile")]
    enter = (
        'sessionStorage.user = textOf("user"); sessionStorage.word = textOf("word");'
        'document.getElementById("said").textContent = "Welcome. Your profile is open to you."'
    )
    change = 'send(event, "profile", {user: sessionStorage.user || "", word: sessionStorage.word || "", nickname: textOf("nickname")})'
    pages = {
        "/": page(
            "Log in",
            field("user", "User") + field("word", "Password", "password") + button("Enter", enter),
            links=links,
        ),
        "/profile": page("Profile", field("nickname", "Nickname") + button("Change", change), links=links),
    }
    data = {"user": person, "word": password, "nickname": nickname}
    after = [click("link", "Profile"), pause(), *fill("Nickname", nickname), click_button("Change"), *FINISH]
    return TaskDraft(
        instruction=f"Log in as {person} with the password {password}, and change the nickname in the profile to {nickname}.",
        config=serve_site("Log in", pages),
        evaluator=last_event_logged("profile", data),
        oracle=[
            *fill("User", person),
            *fill("Password", password, role="password text"),
            click_button("Enter"),
            *after,
        ],
        near_miss=after,
        exploits=[exploit_direct_post("profile", data), exploit_forged_log("profile", data)],
    )


def web_lookup(random: Random) -> TaskDraft:
    """A number from one page goes into the form of another. The near miss takes the number of somebody else."""
    people = random.sample(PEOPLE, 8)
    numbers = random.sample(range(1000, 9999), len(people))
    goal, wrong = random.sample(range(len(people)), 2)
    links = [("/", "Call back"), ("/staff", "Staff")]
    call = 'send(event, "call", {person: textOf("person"), number: textOf("number")})'
    pages = {
        "/": page(
            "Call back", field("person", "Who") + field("number", "Extension") + button("Order call", call), links=links
        ),
        "/staff": page(
            "Staff",
            table(["Name", "Extension"], [[one, str(n)] for one, n in zip(people, numbers, strict=True)]),
            links=links,
        ),
    }
    data = {"person": people[goal], "number": str(numbers[goal])}

    def play(number: int) -> list[JsonDict]:
        look = [click("link", "Staff"), pause(), click("link", "Call back"), pause()]
        return [*look, *fill("Who", people[goal]), *fill("Extension", str(number)), click_button("Order call"), *FINISH]

    return TaskDraft(
        instruction=f"Order a call back from {people[goal]}: give the name and the extension that the page Staff has.",
        config=serve_site("Call back", pages),
        evaluator=events_logged(("call", data)),
        oracle=play(numbers[goal]),
        near_miss=play(numbers[wrong]),
        exploits=[exploit_direct_post("call", data), exploit_headless_browser("call", data)],
    )


APP = "chrome"
FAMILIES = (
    Family("web_register", APP, "fill in a form", 20, web_register),
    Family("web_date", APP, "pick a date in a calendar", 15, web_date),
    Family("web_profile", APP, "log in and change the profile", 20, web_profile),
    Family("web_lookup", APP, "carry a number from one page to another", 20, web_lookup, held_out=True),
)
