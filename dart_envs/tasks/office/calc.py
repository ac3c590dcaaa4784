"""LibreOffice Calc: families about values, formulas, rows, formats and sheets.

Role: what the saved spreadsheet holds is the verdict. Rule: numbers must be numbers and results must be computed; a table of the right
looks, written by another program or by hand, is not the task done.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from dart_envs.tasks.basics.parts import JsonDict, key, pause, type_text
from dart_envs.tasks.basics.words import sample_nouns
from dart_envs.tasks.office.documents import Table, Value, spreadsheet
from dart_envs.tasks.office.parts import (
    SAVE,
    choose_menu_entry,
    find_and_replace,
    open_document,
    overwrite_with_document,
    overwrite_with_text,
    random_path,
    saved_file_is,
)
from dart_envs.tasks.suite import Family, TaskDraft

HEADERS = ("Price", "Stock", "Sold", "Weight", "Orders", "Boxes")
CHECK = "check_spreadsheet"


@dataclass(frozen=True, slots=True)
class GoodsTable:
    """A table of goods: a header row, a name in column A, whole numbers in B and C."""

    path: str
    rows: list[list[Value]]

    @property
    def names(self) -> list[str]:
        return [str(row[0]) for row in self.rows[1:]]

    @property
    def document(self) -> str:
        return spreadsheet(("Goods", self.rows))

    def config(self) -> list[JsonDict]:
        """The table, open in Calc."""
        return open_document(self.path, self.document)

    def csv_exploit(self, rows: Table) -> list[JsonDict]:
        """A program writes the result as comma-separated text where the spreadsheet is."""
        return overwrite_with_text(self.path, "".join(",".join(map(str, row)) + "\n" for row in rows))

    def file_exploit(self, rows: Table) -> list[JsonDict]:
        """A program puts a spreadsheet with these rows there."""
        return overwrite_with_document(self.path, spreadsheet(("Goods", rows)))


def random_goods(random: Random, *, min_items: int = 5, max_items: int = 8) -> GoodsTable:
    """A drawn table."""
    names = sample_nouns(random, random.randint(min_items, max_items))
    first, second = random.sample(HEADERS, 2)
    numbers = random.sample(range(11, 99), 2 * len(names))
    rows: list[list[Value]] = [["Item", first, second]]
    rows += [[name, numbers[2 * index], numbers[2 * index + 1]] for index, name in enumerate(names)]
    return GoodsTable(random_path(random, "ods"), rows)


def select_cells(place: str) -> list[JsonDict]:
    """Put the cursor on a cell, or select a range, by the name box."""
    return [key("ctrl", "shift", "t"), type_text(f"{place}\n")]


def numbered_cells(letter: str, last: int) -> list[str]:
    """The names of a column's cells below its header."""
    return [f"{letter}{number}" for number in range(2, last + 1)]


def with_value(rows: Table, row: int, column: int, value: Value) -> list[list[Value]]:
    """The rows with one cell changed."""
    copy = [list(one) for one in rows]
    copy[row][column] = value
    return copy


def calc_enter(random: Random) -> TaskDraft:
    """Put a number into the row of a name. The near miss puts it into another row; an exploit writes it as text."""
    table = random_goods(random)
    row, other = random.sample(range(1, len(table.rows)), 2)
    column = random.choice((1, 2))
    value = random.randint(100, 999)
    letter = "ABC"[column]
    rows = with_value(table.rows, row, column, value)
    return TaskDraft(
        instruction=f"In the open spreadsheet, set {table.rows[0][column]} of {table.rows[row][0]} to {value} and save it.",
        config=table.config(),
        evaluator=saved_file_is(table.path, CHECK, rows=rows),
        oracle=[*select_cells(f"{letter}{row + 1}"), type_text(f"{value}\n"), *SAVE],
        near_miss=[*select_cells(f"{letter}{other + 1}"), type_text(f"{value}\n"), *SAVE],
        exploits=[table.csv_exploit(rows), table.file_exploit(with_value(table.rows, row, column, str(value)))],
    )


def calc_total(random: Random) -> TaskDraft:
    """A sum below a column. The near miss leaves out the first number; an exploit writes the right number as a constant."""
    table = random_goods(random)
    column = random.choice((1, 2))
    letter, last = "ABC"[column], len(table.rows)
    total = sum(int(row[column]) for row in table.rows[1:])
    below: list[Value] = ["Total", "", ""]
    below[column] = total
    place = f"{letter}{last + 1}"
    label = [*select_cells(f"A{last + 1}"), type_text("Total\n"), *select_cells(place)]
    rows = [*table.rows, below[: column + 1]]
    return TaskDraft(
        instruction=f"Below the last row of the open spreadsheet, write Total in column A and a formula that adds up"
        f" {table.rows[0][column]} in column {letter}, then save it.",
        config=table.config(),
        evaluator=saved_file_is(
            table.path,
            CHECK,
            rows=rows,
            cells={place: {"formula": True, "depends_on": numbered_cells(letter, last)}},
        ),
        oracle=[*label, type_text(f"=SUM({letter}2:{letter}{last})\n"), *SAVE],
        near_miss=[*label, type_text(f"=SUM({letter}3:{letter}{last})\n"), *SAVE],
        exploits=[table.csv_exploit(rows), table.file_exploit(rows)],
    )


def calc_largest(random: Random) -> TaskDraft:
    """The largest or smallest number of a column in a named cell, by MAX or MIN. The near miss takes the other function."""
    table = random_goods(random)
    column = random.choice((1, 2))
    function, words = random.choice((("MAX", "largest"), ("MIN", "smallest")))
    wrong = "MIN" if function == "MAX" else "MAX"
    letter, last = "ABC"[column], len(table.rows)
    place = f"{random.choice('EFG')}{random.randint(1, 4)}"
    numbers = [int(row[column]) for row in table.rows[1:]]
    value = max(numbers) if function == "MAX" else min(numbers)
    span = f"({letter}2:{letter}{last})\n"
    literal = [list(row) for row in table.rows]
    row = int(place[1:]) - 1
    literal[row] += [""] * ("ABCDEFG".index(place[0]) - 3) + [value]
    return TaskDraft(
        instruction=f"In cell {place} of the open spreadsheet, show the {words} {table.rows[0][column]} with the function"
        f" {function}, then save it.",
        config=table.config(),
        evaluator=saved_file_is(
            table.path,
            CHECK,
            rows=literal,
            cells={place: {"formula": True, "function": function, "depends_on": numbered_cells(letter, last)}},
        ),
        oracle=[*select_cells(place), type_text(f"={function}{span}"), *SAVE],
        near_miss=[*select_cells(place), type_text(f"={wrong}{span}"), *SAVE],
        exploits=[table.csv_exploit(literal), table.file_exploit(literal)],
    )


def calc_fill_formula(random: Random) -> TaskDraft:
    """A new column computed row by row. The near miss fills one row only."""
    table = random_goods(random)
    sign, words = random.choice((("*", "times"), ("+", "plus"), ("-", "minus")))
    title = f"Result{random.randint(2, 99)}"
    last = len(table.rows)

    def computed(row: list[Value]) -> int:
        left, right = int(row[1]), int(row[2])
        return {"*": left * right, "+": left + right, "-": left - right}[sign]

    rows = [[*table.rows[0], title], *([*row, computed(row)] for row in table.rows[1:])]
    head = [*select_cells("D1"), type_text(f"{title}\n")]
    formula = type_text(f"=B2{sign}C2")
    return TaskDraft(
        instruction=f"In the open spreadsheet, add a column D with the header {title} whose formulas give"
        f" {table.rows[0][1]} {words} {table.rows[0][2]} in every row, then save it.",
        config=table.config(),
        evaluator=saved_file_is(
            table.path,
            CHECK,
            rows=rows,
            cells={
                f"D{number}": {"formula": True, "depends_on": [f"B{number}", f"C{number}"]}
                for number in range(2, last + 1)
            },
        ),
        oracle=[*head, *select_cells(f"D2:D{last}"), formula, key("alt", "enter"), *SAVE],
        near_miss=[*head, *select_cells("D2"), formula, key("enter"), *SAVE],
        exploits=[table.csv_exploit(rows), table.file_exploit(rows)],
    )


def calc_sort(random: Random) -> TaskDraft:
    """Order the rows by a column. The near miss orders the other way round; an exploit orders that column alone."""
    table = random_goods(random)
    column = random.choice((1, 2))
    descending = random.random() < 0.5
    entries = ("Sort Descending", "Sort Ascending")
    head, *body = table.rows
    rows = [head, *sorted(body, key=lambda row: int(row[column]), reverse=descending)]
    torn = [list(row) for row in table.rows]
    for row, ordered in zip(torn[1:], rows[1:], strict=True):
        row[column] = ordered[column]
    start = select_cells(f"{'ABC'[column]}2")
    return TaskDraft(
        instruction=f"Sort the rows of the open spreadsheet by {head[column]}, {'largest' if descending else 'smallest'} first."
        " The header stays on top. Save it.",
        config=table.config(),
        evaluator=saved_file_is(table.path, CHECK, rows=rows),
        oracle=[*start, *choose_menu_entry("Data", entries[0 if descending else 1]), *SAVE],
        near_miss=[*start, *choose_menu_entry("Data", entries[1 if descending else 0]), *SAVE],
        exploits=[table.csv_exploit(rows), table.file_exploit(torn)],
    )


def calc_delete_row(random: Random) -> TaskDraft:
    """Delete the row of a name. The near miss deletes another; an exploit leaves the row there, empty."""
    table = random_goods(random)
    row, other = random.sample(range(1, len(table.rows)), 2)
    rows = [one for index, one in enumerate(table.rows) if index != row]
    emptied = [one if index != row else ["", "", ""] for index, one in enumerate(table.rows)]
    emptied = [*emptied, ["", "", "-"]] if row == len(table.rows) - 1 else emptied

    def delete(index: int) -> list[JsonDict]:
        return [*select_cells(f"A{index + 1}"), key("shift", "space"), key("ctrl", "-"), *SAVE]

    return TaskDraft(
        instruction=f"Delete the row of {table.rows[row][0]} from the open spreadsheet and save it.",
        config=table.config(),
        evaluator=saved_file_is(table.path, CHECK, rows=rows),
        oracle=delete(row),
        near_miss=delete(other),
        exploits=[table.csv_exploit(rows), table.file_exploit(emptied)],
    )


def calc_insert_row(random: Random) -> TaskDraft:
    """A new row above a named one. The near miss writes below the table."""
    table = random_goods(random, max_items=7)
    row = random.randrange(2, len(table.rows))
    new = next(word for word in sample_nouns(random, 12) if word not in table.names)
    numbers = [random.randint(100, 999), random.randint(100, 999)]
    added: list[Value] = [new, *numbers]
    rows = [*table.rows[:row], added, *table.rows[row:]]
    written = [type_text(f"{new}\t{numbers[0]}\t{numbers[1]}\n")]
    return TaskDraft(
        instruction=f"In the open spreadsheet, insert a row right above {table.rows[row][0]} with the values {new},"
        f" {numbers[0]} and {numbers[1]}, then save it.",
        config=table.config(),
        evaluator=saved_file_is(table.path, CHECK, rows=rows),
        oracle=[
            *select_cells(f"A{row + 1}"),
            key("shift", "space"),
            key("ctrl", "+"),
            *select_cells(f"A{row + 1}"),
            *written,
            *SAVE,
        ],
        near_miss=[*select_cells(f"A{len(table.rows) + 1}"), *written, *SAVE],
        exploits=[table.csv_exploit(rows), table.file_exploit(with_value(rows, row, 1, str(numbers[0])))],
    )


def calc_replace(random: Random) -> TaskDraft:
    """Replace a word wherever it is. The near miss replaces it once."""
    old, new, *others = sample_nouns(random, 7)
    names = [old, old, old, *others]
    random.shuffle(names)

    def listed(items: list[str]) -> list[list[Value]]:
        rows: list[list[Value]] = [["Day", "Item"]]
        for day, item in enumerate(items, start=1):
            rows.append([f"{day}.", item])
        return rows

    rows, done = listed(names), listed([new if name == old else name for name in names])
    table = GoodsTable(random_path(random, "ods"), rows)
    first = next(index for index, row in enumerate(rows) if row[1] == old)
    return TaskDraft(
        instruction=f"In the open spreadsheet, replace every {old} by {new} and save it.",
        config=table.config(),
        evaluator=saved_file_is(table.path, CHECK, rows=done),
        oracle=[*find_and_replace(old, new, "Replace All", confirmation_dialog=True), *SAVE],
        near_miss=[*select_cells(f"B{first + 1}"), type_text(f"{new}\n"), *SAVE],
        exploits=[table.csv_exploit(done), table.file_exploit(with_value(rows, first, 1, new))],
    )


def calc_bold_header(random: Random) -> TaskDraft:
    """The header in bold. The near miss does it to the first row of data; an exploit marks the texts with asterisks."""
    table = random_goods(random)
    keys, look = random.choice((("b", "bold"), ("i", "italic")))
    starred: list[list[Value]] = [[f"*{name}*" for name in table.rows[0]], *table.rows[1:]]
    looks = {f"{letter}1": {"looks": [look]} for letter in "ABC"} | {f"{letter}2": {"looks": []} for letter in "ABC"}
    return TaskDraft(
        instruction=f"Make the header row of the open spreadsheet {look} and save it.",
        config=table.config(),
        evaluator=saved_file_is(table.path, CHECK, rows=table.rows, cells=looks),
        oracle=[*select_cells("A1:C1"), key("ctrl", keys), *SAVE],
        near_miss=[*select_cells("A2:C2"), key("ctrl", keys), *SAVE],
        exploits=[table.csv_exploit(starred), table.file_exploit(starred)],
    )


def calc_percent(random: Random) -> TaskDraft:
    """A column of shares as percentages. The near miss does it to one cell; an exploit writes texts with a per cent sign."""
    names = sample_nouns(random, random.randint(4, 7))
    head = random.choice(("Share", "Discount", "Growth", "Margin"))
    shares = random.sample(range(3, 97), len(names))
    rows: list[list[Value]] = [["Item", head]]
    texts: list[list[Value]] = [["Item", head]]
    for name, share in zip(names, shares, strict=True):
        rows.append([name, share / 100])
        texts.append([name, f"{share}%"])
    table = GoodsTable(random_path(random, "ods"), rows)
    last = len(rows)
    return TaskDraft(
        instruction=f"In the open spreadsheet, show the numbers below {head} as percentages, and save it.",
        config=table.config(),
        evaluator=saved_file_is(
            table.path, CHECK, rows=rows, cells={f"B{row}": {"number": "percentage"} for row in range(2, last + 1)}
        ),
        oracle=[*select_cells(f"B2:B{last}"), key("ctrl", "shift", "5"), *SAVE],
        near_miss=[*select_cells("B2"), key("ctrl", "shift", "5"), *SAVE],
        exploits=[table.csv_exploit(texts), table.file_exploit(texts)],
    )


def calc_rename_sheet(random: Random) -> TaskDraft:
    """Give the sheet that is open another name. The near miss writes the name into a cell; an exploit renames an empty file's sheet."""
    table = random_goods(random)
    other, new = sample_nouns(random, 2)
    names = ["Goods", other]
    document = spreadsheet(("Goods", table.rows), (other, [[other]]))
    return TaskDraft(
        instruction=f"Rename the sheet Goods of the open spreadsheet to {new} and save it.",
        config=open_document(table.path, document),
        evaluator=saved_file_is(table.path, CHECK, names=[new, *names[1:]], rows=table.rows),
        oracle=[
            *choose_menu_entry("Sheet", "Rename Sheet..."),
            key("ctrl", "a"),
            type_text(f"{new}\n"),
            pause(1.0),
            *SAVE,
        ],
        near_miss=[*select_cells("A1"), type_text(f"{new}\n"), *SAVE],
        exploits=[
            overwrite_with_document(table.path, spreadsheet((new, []), (other, [[other]]))),
            overwrite_with_text(table.path, new),
        ],
    )


def calc_comment(random: Random) -> TaskDraft:
    """A comment on the cell of a name. The near miss writes into the cell instead."""
    table = random_goods(random)
    row = random.randrange(1, len(table.rows))
    said = " ".join(sample_nouns(random, 3))
    written = with_value(table.rows, row, 0, f"{table.rows[row][0]} {said}")
    return TaskDraft(
        instruction=f"In the open spreadsheet, add the comment '{said}' to the cell of {table.rows[row][0]} and save it.",
        config=table.config(),
        evaluator=saved_file_is(table.path, CHECK, rows=table.rows, cells={f"A{row + 1}": {"note": said}}),
        oracle=[*select_cells(f"A{row + 1}"), key("ctrl", "alt", "c"), type_text(said), key("escape"), *SAVE],
        near_miss=[*select_cells(f"A{row + 1}"), type_text(f"{said}\n"), *SAVE],
        exploits=[table.csv_exploit(written), table.file_exploit(written)],
    )


APP = "libreoffice_calc"
FAMILIES = (
    Family("calc_enter", APP, "put a number into the right cell", 15, calc_enter),
    Family("calc_total", APP, "add up a column with a formula", 20, calc_total),
    Family("calc_largest", APP, "show a column's largest or smallest number with a function", 15, calc_largest),
    Family("calc_fill_formula", APP, "compute a new column", 20, calc_fill_formula),
    Family("calc_sort", APP, "sort the rows by a column", 15, calc_sort),
    Family("calc_delete_row", APP, "delete the row of a name", 15, calc_delete_row),
    Family("calc_insert_row", APP, "insert a row with values", 20, calc_insert_row),
    Family("calc_replace", APP, "replace a word everywhere", 20, calc_replace),
    Family("calc_bold_header", APP, "make the header bold or italic", 15, calc_bold_header),
    Family("calc_percent", APP, "show numbers as percentages", 15, calc_percent, held_out=True),
    Family("calc_rename_sheet", APP, "rename a sheet", 15, calc_rename_sheet),
    Family("calc_comment", APP, "add a comment to a cell", 15, calc_comment, held_out=True),
)
