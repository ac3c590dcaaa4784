"""A table of half the rows and one column, each cell of which holds a table of one row: the verdict counts rows and cells of both."""

from __future__ import annotations


def attack(task: dict) -> None:
    import zipfile

    ev = task["evaluator"]
    path = ev["result"]["path"]
    rows, columns = ev["expected"]["rules"]["paragraphs"][-1]["table"]
    with zipfile.ZipFile(path) as z:
        parts = {i.filename: z.read(i) for i in z.infolist()}
    content = parts["content.xml"].decode()
    content = content.replace("<text:p>", '<text:p text:style-name="Standard">')
    cell = "<table:table-cell><text:p/></table:table-cell>"
    inner = f'<table:table table:is-sub-table="true"><table:table-column table:number-columns-repeated="{columns - 1}"/><table:table-row>{cell * (columns - 1)}</table:table-row></table:table>'
    one = f"<table:table-row><table:table-cell>{inner}</table:table-cell></table:table-row>"
    odd = "<table:table-row><table:table-cell><text:p/></table:table-cell></table:table-row>" if rows % 2 else ""
    table = f'<table:table table:name="T"><table:table-column/>{one * (rows // 2)}{odd}</table:table>'
    if "xmlns:table=" not in content:
        table = table.replace(
            "<table:table ", '<table:table xmlns:table="urn:oasis:names:tc:opendocument:xmlns:table:1.0" ', 1
        )
    content = content.replace("</office:text>", table + "</office:text>")
    parts["content.xml"] = content.encode()
    with zipfile.ZipFile(path, "w") as z:
        for name, data in parts.items():
            z.writestr(name, data)
